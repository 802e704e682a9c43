"""Functions, branches and loops of ONNX models, put in place node by node."""

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx_cases.models import BOOL, FLOAT, INT64, array, model, run

import graphc
from graphc.errors import OnnxError

TRUE = np.array(True)


def test_functions_of_the_model_are_put_in_place():
    function = helper.make_function(
        "com.example", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 22)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Twice", ["x"], ["h"], domain="com.example"),
        helper.make_node("Twice", ["h"], ["y"], domain="com.example"),
    ]
    made = model(
        nodes, {"x": (FLOAT, (3,))}, {"y": (FLOAT, (3,))}, functions=[function],
        domains=("com.example",),
    )  # fmt: skip
    x = array(3)
    np.testing.assert_array_equal(run(graphc.onnx.load(made), x=x)["y"], 4 * x)


def body(nodes, inputs, outputs, tensors=None):
    return model(nodes, inputs, outputs, tensors).graph


def test_a_known_branch_is_taken_and_an_unknown_one_is_told():
    branches = {
        "then_branch": body([helper.make_node("Neg", ["x"], ["t"])], {}, {"t": (FLOAT, (3,))}),
        "else_branch": body([helper.make_node("Abs", ["x"], ["e"])], {}, {"e": (FLOAT, (3,))}),
    }
    nodes = [helper.make_node("If", ["c"], ["y"], **branches)]
    inputs = {"x": (FLOAT, (3,)), "c": (BOOL, ())}
    x = array(3)
    for condition, expected in ((True, -x), (False, np.abs(x))):
        made = model(nodes, {"x": inputs["x"]}, {"y": (FLOAT, (3,))}, {"c": np.bool_(condition)})
        np.testing.assert_array_equal(run(graphc.onnx.load(made), x=x)["y"], expected)
    with pytest.raises(OnnxError, match=r"If.*must be constant"):
        graphc.onnx.load(model(nodes, inputs, {"y": (FLOAT, (3,))}))


def test_a_loop_of_known_turns_is_unrolled():
    """h ← 2 h + i, with each h shown."""
    nodes = [
        helper.make_node("Add", ["h", "h"], ["twice"]),
        helper.make_node("Cast", ["i"], ["number"], to=FLOAT),
        helper.make_node("Add", ["twice", "number"], ["next"]),
        helper.make_node("Identity", ["next"], ["shown"]),
        helper.make_node("Identity", ["go"], ["going"]),
    ]
    loop = body(
        nodes,
        {"i": (INT64, ()), "go": (BOOL, ()), "h": (FLOAT, (3,))},
        {"going": (BOOL, ()), "next": (FLOAT, (3,)), "shown": (FLOAT, (3,))},
    )
    made = model(
        [helper.make_node("Loop", ["turns", "", "x"], ["y", "all"], body=loop)],
        {"x": (FLOAT, (3,))},
        {"y": (FLOAT, (3,)), "all": (FLOAT, (4, 3))},
        {"turns": np.int64(4)},
    )
    x, found = array(3), []
    h = x
    for i in range(4):
        h = 2 * h + np.float32(i)
        found.append(h)
    outputs = run(graphc.onnx.load(made), x=x)
    np.testing.assert_array_equal(outputs["y"], h)
    np.testing.assert_array_equal(outputs["all"], np.stack(found))


def counting(condition):
    """y = x, added to itself for up to 10⁹ turns while a condition holds."""
    loop = body(
        [helper.make_node("Add", ["h", "h"], ["next"]), *condition],
        {"i": (INT64, ()), "go": (BOOL, ()), "h": (FLOAT, (3,))},
        {"going": (BOOL, ()), "next": (FLOAT, (3,))},
        {"two": np.int64(2)},
    )
    return model(
        [helper.make_node("Loop", ["turns", "", "x"], ["y"], body=loop)],
        {"x": (FLOAT, (3,))}, {"y": (FLOAT, (3,))}, {"turns": np.int64(10**9)},
    )  # fmt: skip


@pytest.mark.parametrize("source", ["go", "always"])
def test_a_loop_that_nothing_ends_is_refused_by_its_turns(source):
    always = helper.make_node("Constant", [], ["always"], value=numpy_helper.from_array(TRUE))
    made = counting([always, helper.make_node("Identity", [source], ["going"])])
    with pytest.raises(OnnxError, match="at most 10000 iterations can be unrolled, got 1000000000"):
        graphc.onnx.load(made)


def test_a_loop_of_many_turns_may_end_before():
    x = array(3)
    made = counting([helper.make_node("Less", ["i", "two"], ["going"])])
    np.testing.assert_array_equal(run(graphc.onnx.load(made), x=x)["y"], 8 * x)


def test_a_scan_is_unrolled_backwards_too():
    """Running sums of rows from the end."""
    scanned = body(
        [helper.make_node("Add", ["s", "r"], ["t"]), helper.make_node("Identity", ["t"], ["u"])],
        {"s": (FLOAT, (2,)), "r": (FLOAT, (2,))},
        {"t": (FLOAT, (2,)), "u": (FLOAT, (2,))},
    )
    node = helper.make_node(
        "Scan", ["start", "x"], ["last", "all"], body=scanned, num_scan_inputs=1,
        scan_input_directions=[1], scan_output_directions=[1],
    )  # fmt: skip
    made = model(
        [node], {"x": (FLOAT, (5, 2))}, {"last": (FLOAT, (2,)), "all": (FLOAT, (5, 2))},
        {"start": np.zeros(2, np.float32)},
    )  # fmt: skip
    x = array((5, 2))
    sums = np.cumsum(x[::-1], 0, dtype=np.float32)[::-1]
    outputs = run(graphc.onnx.load(made), x=x)
    np.testing.assert_allclose(outputs["all"], sums, rtol=1e-6)
    np.testing.assert_allclose(outputs["last"], sums[0], rtol=1e-6)
