"""Operators whose meaning changed between opsets, in models of the older opset.

Right values are from ONNX's definition of that opset: by hand, or by onnxruntime in tests/peers.
"""

import numpy as np
import pytest

import graphc as g

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
helper = onnx.helper

LINE = np.array([0, 1, 4, 9], np.float32).reshape(1, 1, 1, 4)


def model_of(op, opset, arrays, constants=(), **attributes):
    """A model of one node that reads arrays named x0, x1, ..., and then constants."""
    numpy_helper = onnx.numpy_helper
    named = {f"x{i}": array for i, array in enumerate(arrays)}
    held = {f"c{i}": np.asarray(array) for i, array in enumerate(constants)}
    node = helper.make_node(op, [*named, *held], ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in named.items()
    ]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph([node], "graph", inputs, [output], tensors)
    version = 4 if opset < 11 else 8
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=version), named


def found(model, named):
    network = g.onnx.load(model)
    (y,) = g.compile(outputs=network.outputs).step(named).values()
    return y


def scales(*numbers):
    return [np.array(numbers, np.float32)]


@pytest.mark.parametrize(
    ("op", "opset", "constants", "attributes", "expected"),
    [
        ("Upsample", 9, scales(1, 1, 1, 2), {"mode": "linear"}, [0, 0.5, 1, 2.5, 4, 6.5, 9, 9]),
        ("Upsample", 9, scales(1, 1, 1, 2), {"mode": "nearest"}, [0, 0, 1, 1, 4, 4, 9, 9]),
        ("Upsample", 7, [], {"scales": [1.0, 1, 1, 2]}, [0, 0, 1, 1, 4, 4, 9, 9]),
        ("Resize", 10, scales(1, 1, 1, 2), {"mode": "linear"}, [0, 0.5, 1, 2.5, 4, 6.5, 9, 9]),
        ("Resize", 10, scales(1, 1, 1, 1.5), {"mode": "nearest"}, [0, 0, 1, 4, 4, 9]),
        ("Resize", 10, scales(1, 1, 1, 0.5), {"mode": "nearest"}, [0, 4]),
        ("Resize", 10, scales(1, 1, 1, 0.6), {"mode": "nearest"}, [0, 4]),
    ],
)
def test_resampling(op, opset, constants, attributes, expected):
    y = found(*model_of(op, opset, [LINE], constants, **attributes))
    np.testing.assert_allclose(y.reshape(-1), expected, rtol=1e-6)
