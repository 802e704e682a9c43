"""Tensors without elements inside a model: values are those of onnx."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphc as g

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LEFT, RIGHT = np.zeros((4, 0), np.float32), np.zeros((0, 4), np.float32)
BIAS = np.arange(4, dtype=np.float32)
JOINED = ("Concat", ["part", "x"], {"axis": 1})
CASES = {
    "largest of none": ([("TopK", ["x", "k"], {}), JOINED], {"k": np.array([0])}),
    "repeated never": ([("Tile", ["x", "n"], {}), JOINED], {"n": np.array([1, 0])}),
    "no rows": ([("Gather", ["x", "i"], {"axis": 1}), JOINED], {"i": np.zeros(0, np.int64)}),
    "products": ([("MatMul", ["x", "a"], {}), ("MatMul", ["part", "b"], {})],
                 {"a": LEFT, "b": RIGHT}),
    "layers": ([("Gemm", ["x", "a", "z"], {"transB": 1}), ("Gemm", ["part", "b", "c"], {})],
               {"a": RIGHT, "z": BIAS[:0], "b": RIGHT, "c": BIAS}),
    "vectors": ([("Gather", ["x", "i"], {"axis": 1}), ("MatMul", ["part", "e"], {})],
                {"i": np.zeros(0, np.int64), "e": BIAS[:0]}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_onnx(case):
    (first, second), given = CASES[case]
    outputs = ["part", "places"] if first[0] == "TopK" else ["part"]
    nodes = [
        helper.make_node(first[0], first[1], outputs, **first[2]),
        helper.make_node(second[0], second[1], ["y"], **second[2]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in given.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    network = g.onnx.load(model)
    program = g.compile(outputs=network.outputs)
    network.initialize(program)
    found = program.step({each.name: X for each in program.plan.graph.inputs})
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": X})
    np.testing.assert_array_equal(found["y"], wanted)
