"""graphc as a backend of onnx's runner: what it is given, and what it refuses."""

import numpy as np
import pytest
from onnx import helper
from onnx_cases.models import FLOAT, INT64, array, model

import graphc
from graphc.errors import FeedError, GpuUnavailable, OptionError
from graphc.onnx import backend

Backend = graphc.onnx.Backend


def difference():
    """y = a - b of (n) each."""
    node = helper.make_node("Sub", ["a", "b"], ["y"])
    return model([node], {"a": (FLOAT, ("n",)), "b": (FLOAT, ("n",))}, {"y": (FLOAT, ("n",))})


def test_a_gpu_is_supported_where_the_machine_has_it(monkeypatch):
    assert Backend.supports_device("CPU")
    assert not any(map(Backend.supports_device, ("TPU", "cpu", "CUDA:x", "", None)))

    def find(number):
        if number > 1:
            raise GpuUnavailable(f"this machine has no cuda:{number}", "use another")

    monkeypatch.setattr(backend, "find_gpu", find)
    assert [Backend.supports_device(f"CUDA{n}") for n in ("", ":1", ":2")] == [True, True, False]


def test_a_model_of_sequences_is_not_compatible():
    node = helper.make_node("SequenceLength", ["s"], ["y"])
    made = model([node], {}, {"y": (INT64, ())})
    assert Backend.is_compatible(difference())
    assert not Backend.is_compatible(difference(), "TPU")
    made.graph.input.append(helper.make_tensor_sequence_value_info("s", FLOAT, None))
    assert not Backend.is_compatible(made)


def test_inputs_are_taken_in_order_and_by_name_and_refused_otherwise():
    prepared, a, b = Backend.prepare(difference()), array(3), array(3, 1)
    for given in ([a, b], (a, b), {"b": b, "a": a}):
        np.testing.assert_array_equal(prepared.run(given)[0], a - b)
    for given in ([a], a, [a, b, b], {"a": a}, {"a": a, "b": b, "c": b}, {}):
        with pytest.raises(FeedError, match=r"the model has (2 \()?a, b"):
            prepared.run(given)
    with pytest.raises(FeedError, match="'a' is not an array"):
        prepared.run([[[1.0], [1.0, 2.0]], b])


def test_an_input_with_a_default_may_be_given():
    values = dict.fromkeys("xyz", (FLOAT, (3,)))
    nodes = [helper.make_node("Sub", ["x", "y"], ["d"]), helper.make_node("Mul", ["d", "z"], ["o"])]
    x, y, z, other = (array(3, seed) for seed in range(4))
    made = model(nodes, values, {"o": (FLOAT, (3,))}, {"y": y})
    prepared = Backend.prepare(made)
    for given, held in (
        ([x, z], y), ({"x": x, "z": z}, y), ({"x": x, "y": other, "z": z}, other),
        ([x, other, z], other), ([x, z], y),
    ):  # fmt: skip
        np.testing.assert_allclose(prepared.run(given)[0], (x - held) * z, rtol=1e-6)
    for given, told in ((x, r"2 \(x, z and optionally y\); got 1"), ({"x": x, "y": y}, "x, y")):
        with pytest.raises(FeedError, match=f"the model has .*{told}"):
            prepared.run(given)


def test_unsupported_models_are_refused():
    with pytest.raises(OptionError, match=r"an onnx\.ModelProto, got None"):
        Backend.prepare(None)
    for device in ("TPU", "CUDA:", None):
        with pytest.raises(OptionError, match='"CPU", "CUDA" or "CUDA:1"'):
            Backend.prepare(difference(), device)


def test_a_model_is_compiled_once_for_inputs_of_one_type(monkeypatch):
    programs = []

    def compiled(**options):
        programs.append(graphc.compile(**options))
        return programs[-1]

    monkeypatch.setattr(backend, "compile", compiled)
    prepared = Backend.prepare(difference())
    for extent, count in ((3, 1), (3, 1), (4, 2), (3, 3)):
        a, b = array(extent), array(extent, 1)
        np.testing.assert_array_equal(prepared.run([a, b])[0], a - b)
        assert len(programs) == count
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    made = model([node], {"x": (FLOAT, (6,)), "shape": (INT64, (2,))}, {"y": (FLOAT, None)})
    prepared, shape = Backend.prepare(made), np.array([2, 3])
    for rows, count in ((2, 4), (2, 4), (3, 5)):  # an input that is part of the program
        shape[:] = rows, 6 // rows
        assert prepared.run([array(6), shape])[0].shape == (rows, 6 // rows)
        assert len(programs) == count


def test_one_node_is_run():
    x = array((2, 3))
    node = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    exp = np.exp(x.astype(np.float64))
    (found,) = Backend.run_node(node, [x])
    np.testing.assert_allclose(found, exp / exp.sum(0), rtol=1e-6)
    node.ClearField("attribute")  # up to opset 12 over all axes from the second on
    (old,) = Backend.run_node(node, {"x": x.reshape(1, 3, 2)}, opset_version=11)
    np.testing.assert_allclose(old.reshape(2, 3), exp / exp.sum(), rtol=1e-6)
    square = helper.make_node("Mul", ["x", "x"], ["y"])
    for given in ([x], [x, x.copy()], {"x": x}):
        np.testing.assert_array_equal(Backend.run_node(square, given)[0], x * x)
    for other in (x + 1, x.astype(np.float64), x[:1]):
        with pytest.raises(FeedError, match="'x' is given twice, with different values"):
            Backend.run_node(square, [x, other])
    with pytest.raises(FeedError, match=r"the model has 1 \(x\); got 2"):
        Backend.run_node(node, [x, x])
