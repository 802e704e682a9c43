"""A model of gigabytes is planned from its structure: its weights stay in the file beside it."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphc

LAYERS, WIDTH = 36, 4096
WEIGHT_BYTES = LAYERS * WIDTH * WIDTH * 4

MOST_RESIDENT = 300 * 2**20


def external(name, shape, offset, length):
    """A tensor whose numbers are in a file beside the model's."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": "weights.bin", "offset": str(offset), "length": str(length)}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def write(folder, layers, width):
    """A chain of products, its weights in a sparse file of the full size, 1 at some places."""
    each = width * width * 4
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(layers * each)
        for layer in range(layers):
            file.seek(layer * each + 4 * layer)
            file.write(np.float32(layer + 1).tobytes())
    nodes, tensors = [], []
    for layer in range(layers):
        nodes.append(
            helper.make_node("MatMul", [f"h{layer}", f"w{layer}"], [f"m{layer}"], f"/l{layer}/mul")
        )
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"h{layer + 1}"], f"/l{layer}/relu"))
        tensors.append(external(f"w{layer}", (width, width), layer * each, each))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("h0", TensorProto.FLOAT, ("N", width))],
        [helper.make_tensor_value_info(f"h{layers}", TensorProto.FLOAT, ("N", width))],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_external_weights_are_read_when_a_program_gets_them(tmp_path):
    network = graphc.onnx.load(write(tmp_path, 3, 16), dims={"N": 2})
    program = graphc.compile(outputs={"y": network.output})
    network.initialize(program)
    for layer in range(3):
        expected = np.zeros(256, np.float32)
        expected[layer] = layer + 1
        np.testing.assert_array_equal(program.parameters[f"w{layer}"].reshape(-1), expected)
    (tmp_path / "weights.bin").unlink()
    again = graphc.onnx.load(tmp_path / "model.onnx", dims={"N": 2})
    with pytest.raises(graphc.GraphcError, match="external data of 'w0' cannot be read"):
        again.initialize(program)


PLANNING = """
import sys, graphc
network = graphc.onnx.load(sys.argv[1], dims={"N": 32}, weights=False)
plan = graphc.plan(graphc.mean(network.output), optimizer=graphc.optim.SGD(0.1))
# Of this process alone: getrusage knows that of the one it was forked from, too.
with open("/proc/self/status") as status:
    (most,) = [line.split()[1] for line in status if line.startswith("VmHWM")]
print(plan.arena_bytes, int(most) * 1024)
"""


@pytest.mark.slow
def test_a_model_of_gigabytes_is_planned_in_little_memory(tmp_path):
    path = write(tmp_path, LAYERS, WIDTH)
    done = subprocess.run(
        [sys.executable, "-c", PLANNING, path], capture_output=True, text=True, check=True
    )
    arena_bytes, resident_bytes = map(int, done.stdout.split())
    assert WEIGHT_BYTES > 2.4e9
    assert arena_bytes > WEIGHT_BYTES
    assert resident_bytes < MOST_RESIDENT
