"""Extents and known numbers that `graphc.onnx.load` is given: what agrees, and what is refused."""

import numpy as np
import pytest
from onnx import helper
from onnx_cases.models import FLOAT, INT64, array, layers, model, run

import graphc
from graphc.errors import OnnxError, OptionError


def test_an_extent_without_a_number_is_named_with_the_cure():
    with pytest.raises(OnnxError, match=r"'x:0' is \[N, 4\].*dims=\{'N': 1\}"):
        graphc.onnx.load(layers()[0])


def test_dims_that_the_model_does_not_have_are_refused():
    with pytest.raises(OptionError, match="did you mean N"):
        graphc.onnx.load(layers()[0], dims={"n": 2})
    with pytest.raises(OptionError, match="integers of at least 1"):
        graphc.onnx.load(layers()[0], dims={"N": 0})


def test_a_shape_by_the_inputs_name_stands_in_for_its_symbols():
    network = graphc.onnx.load(layers()[0], dims={"x:0": (7, 4)})
    assert network.output.shape == (7, 3)


def both():
    """y = a · b of a (n, 3) and b (n, m)."""
    node = helper.make_node("Gemm", ["a", "b"], ["y"], transA=1)
    types = {"a": (FLOAT, ("n", 3)), "b": (FLOAT, ("n", "m"))}
    return model([node], types, {"y": (FLOAT, (3, "m"))})


def test_the_shape_of_an_input_settles_its_symbols_for_the_others():
    network = graphc.onnx.load(both(), dims={"a": (5, 3), "m": 2})
    assert network.inputs["b"].shape == (5, 2)
    network = graphc.onnx.load(both(), dims={"m": 2}, known={"a": array((5, 3))})
    assert network.inputs["b"].shape == (5, 2)


@pytest.mark.parametrize(
    ("dims", "told"),
    [
        ({"a": (2, 7, 5), "m": 1}, r"'a' must be \[n, 3\], got the shape \(2, 7, 5\)"),
        ({"a": 2, "m": 1}, r"'a' must be \[n, 3\], got the shape \(2,\)"),
        ({"a": (2, 3), "n": 9, "m": 1}, r"'n' is 9, but the input 'a'.*\(2, 3\)"),
        ({"a": (2, 3), "b": (4, 1)}, r"'n' is 2, but the input 'b'.*\(4, 1\)"),
        ({"q": 1}, "no extent or input 'q'; choose one of: a, b, m, n"),
        (3, "must map names to numbers"),
        (0, "must map names to numbers"),
    ],
)
def test_extents_that_do_not_agree_are_refused(dims, told):
    with pytest.raises(OptionError, match=told):
        graphc.onnx.load(both(), dims=dims)


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"a": array(4)}, r"'a' must be \[n, 3\] of float, got \[4\] of float32"),
        ({"a": array((4, 2))}, r"'a' must be \[n, 3\] of float, got \[4, 2\] of float32"),
        ({"a": np.ones((4, 3))}, r"got \[4, 3\] of float64"),
        ({"a": [["x"] * 3]}, r"got \[1, 3\] of <U1"),
        ({"a": array((4, 3)), "b": array((5, 1))}, r"'n' is 4, but the input 'b'"),
        ({"a": [[1.0], [1.0, 2.0]]}, "'a' is not an array: "),
        ({"q": 1}, "no input 'q'; choose one of: a, b"),
        (3, "must map names of inputs to arrays, got 3"),
    ],
)
def test_known_numbers_that_are_not_the_inputs_are_refused(known, told):
    with pytest.raises(OptionError, match=told):
        graphc.onnx.load(both(), known=known)


def test_known_numbers_of_another_shape_than_dims_says_are_refused():
    known = {"a": array((4, 3))}
    for dims in ({"a": (5, 3)}, {"n": 5}):
        with pytest.raises(OptionError, match=r"5.*\(4, 3\).*(give one|use one number)"):
            graphc.onnx.load(both(), dims={**dims, "m": 2}, known=known)
    assert graphc.onnx.load(both(), {"a": (4, 3), "m": 2}, known=known).inputs["b"].shape == (4, 2)


def test_known_numbers_may_be_lists():
    made = model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        {"x": (FLOAT, (6,)), "s": (INT64, (2,))},
        {"y": (FLOAT, None)},
    )
    assert graphc.onnx.load(made, known={"s": [2, 3]}).output.shape == (2, 3)
    assert graphc.onnx.load(made, known={"s": [2.0, 3.0]}).output.shape == (2, 3)
    for numbers, told in (([2.5, 3], r"of float64, \[2.5, 3\]"), ([[1], [1, 2]], "not an array: ")):
        with pytest.raises(OptionError, match=told):
            graphc.onnx.load(made, known={"s": numbers})


@pytest.mark.parametrize("number", [0.1, 1, float("nan"), float("-inf"), 2**25 + 1])
def test_known_numbers_are_rounded_to_floats(number):
    made = model(
        [helper.make_node("Mul", ["x", "s"], ["y"])],
        {"x": (FLOAT, (2,)), "s": (FLOAT, ())},
        {"y": (FLOAT, (2,))},
    )
    found = run(graphc.onnx.load(made, known={"s": number}), x=np.ones(2, np.float32))["y"]
    np.testing.assert_array_equal(found, np.full(2, number, np.float32), strict=True)
    for given, told in ((1e300, "of float64, 1e[+]300"), (np.float64(0.1), "of float64$")):
        with pytest.raises(OptionError, match=rf"'s' must be \[\] of float, got \[\] {told}"):
            graphc.onnx.load(made, known={"s": given})


def test_scales_of_a_resize_may_be_ordinary_numbers():
    made = model(
        [helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")],
        {"x": (FLOAT, (1, 1, 4, 4)), "s": (FLOAT, (4,))},
        {"y": (FLOAT, None)},
    )
    assert graphc.onnx.load(made, known={"s": [1, 1, 1.3, 1.3]}).output.shape == (1, 1, 5, 5)


def test_shapes_are_computed_in_the_graph_as_exporters_do():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    tensors = {
        "zero": np.int64(0),
        "axes": np.array([0], np.int64),
        "rest": np.array([-1], np.int64),
    }
    made = model(nodes, {"x": (FLOAT, ("N", 2, 3))}, {"y": (FLOAT, ("N", 6))}, tensors)
    network = graphc.onnx.load(made, dims={"N": 5})
    assert network.output.shape == (5, 6)
    assert [node.op.name for node in graphc.plan(outputs=dict(network.outputs)).graph.nodes] == [
        "reshape"
    ]


def test_a_known_tensor_may_be_read_twice_by_a_node():
    nodes = [
        helper.make_node("Range", ["one", "four", "one"], ["shape"]),
        helper.make_node("Expand", ["x", "shape"], ["y"]),
    ]
    tensors = {"one": np.int64(1), "four": np.int64(4)}
    made = model(nodes, {"x": (FLOAT, ())}, {"y": (FLOAT, None)}, tensors)
    assert graphc.onnx.load(made).output.shape == (1, 2, 3)


def test_a_batch_that_is_fixed_in_a_reshape_is_named():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "/flatten/Reshape")]
    tensors = {"shape": np.array([1, 6], np.int64)}
    made = model(nodes, {"x": (FLOAT, (1, 2, 3))}, {"y": (FLOAT, (1, 6))}, tensors)
    assert graphc.onnx.load(made).output.shape == (1, 6)
    with pytest.raises(OnnxError, match=r"/flatten/Reshape.*\[1, 6\].*export the batch as -1"):
        graphc.onnx.load(made, dims={"x": (4, 2, 3)})


def test_known_inputs_become_part_of_the_network():
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    made = model(
        nodes, {"x": (FLOAT, (2, 3)), "shape": (INT64, (1,))}, {"y": (FLOAT, None)}
    )  # fmt: skip
    with pytest.raises(OnnxError, match=r"known=.*: shape") as caught:
        graphc.onnx.load(made)
    assert caught.value.undetermined == {"shape"}
    network = graphc.onnx.load(made, known={"shape": np.array([6])})
    assert list(network.inputs) == ["x"]
    assert network.output.shape == (6,)
    with pytest.raises(OptionError, match="did you mean shape"):
        graphc.onnx.load(made, known={"shapes": np.array([6])})
