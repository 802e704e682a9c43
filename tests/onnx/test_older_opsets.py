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
    program = g.compile(outputs=network.outputs)
    network.initialize(program)
    (y,) = program.step(named).values()
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


X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("opset", [7, 11, 12])
@pytest.mark.parametrize("axis", [None, 2])
def test_softmax_and_hardmax_flatten_before_opset_13(opset, axis):
    given = {} if axis is None else {"axis": axis}
    rows = X.reshape(2 if axis is None else 6, -1)
    places = found(*model_of("Hardmax", opset, [X], **given)).reshape(rows.shape)
    np.testing.assert_array_equal(places, np.eye(rows.shape[1])[rows.argmax(1)])
    shares = found(*model_of("Softmax", opset, [X], **given)).reshape(rows.shape)
    exact = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    np.testing.assert_allclose(shares, exact, rtol=1e-5)


def test_hardmax_of_opset_13_is_along_the_last_axis():
    places = found(*model_of("Hardmax", 13, [X]))
    np.testing.assert_array_equal(places, np.eye(4)[X.argmax(-1)])


def test_an_aspect_ratio_policy_has_one_scale():
    """5 x 7 for 4 x 3 is 2 x 3 elements by the scale 3 / 7, and not by 2 / 5."""
    model, named = model_of(
        "Resize", 19, [np.arange(35, dtype=np.float32).reshape(1, 1, 5, 7)],
        mode="linear", keep_aspect_ratio_policy="not_larger", axes=[2, 3],
    )  # fmt: skip
    model.graph.node[0].input.extend(["", "", "sizes"])
    sizes = onnx.numpy_helper.from_array(np.array([4, 3]), "sizes")
    model.graph.initializer.append(sizes)
    rows, columns = ((np.arange(n) + 0.5) / (3 / 7) - 0.5 for n in (2, 3))
    expected = 7 * rows[:, None] + columns
    np.testing.assert_allclose(found(model, named)[0, 0], expected, rtol=1e-6)


@pytest.mark.parametrize("scale", [(1, 1, 4), (1, 4), (2, 3, 4), (1, 3, 1), (4,), (1,)])
@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_scales_of_norms_broadcast(op, scale):
    """ONNX allows any scale that broadcasts to x."""
    rng = np.random.default_rng(1)
    weight, bias = (rng.standard_normal(scale).astype(np.float32) for _ in range(2))
    has_bias = op == "LayerNormalization"
    constants = [weight, bias] if has_bias else [weight]
    y = found(*model_of(op, 17 if has_bias else 23, [X], constants))
    centered = X - X.mean(-1, keepdims=True) if has_bias else X
    normal = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, normal * weight + bias * has_bias, rtol=1e-5, atol=1e-6)


def test_a_global_norm_of_each_map():
    x = X.reshape(1, 2, 3, 4)
    y = found(*model_of("GlobalLpPool", 2, [x], p=3))
    np.testing.assert_allclose(y.reshape(2), (np.abs(X) ** 3).sum((1, 2)) ** (1 / 3), rtol=1e-5)
