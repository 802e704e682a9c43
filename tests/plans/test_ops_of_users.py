"""View and gathering ops from outside the package: planned, checked, and run."""

from unittest import mock

import numpy as np
import pytest

import graphc as g
from graphc.errors import GraphError, PlanError
from graphc.ir.builder import apply
from graphc.ir.op import REGISTRY, Op
from graphc.ir.types import Layout
from graphc.ops.concat import Concat


@pytest.fixture(autouse=True)
def clean_registry():
    with mock.patch.dict(REGISTRY):
        yield


def reversed_op(**members):
    """An op whose output is the first axis of x from its end, always a view."""
    body = {
        "name": "reversed_rows",
        "inputs": ("x",),
        "views": "x",
        "infer": lambda self, attributes, x: x,
        "view": lambda self, node, source: (
            Layout(
                source.offset + (node.inputs[0].shape[0] - 2) * source.strides[0],
                source.strides,
            ),
        ),
        "numpy_views": lambda self, node, x: (x[-2:],),
        "infer_types": lambda self, attributes, types: (types[0].with_shape((2, 3)),),
    }
    return type("LastRows", (Op,), body | members)


def test_a_view_op_of_a_user_is_planned_and_run():
    last = reversed_op()
    x = g.input("x", (5, 3))
    y = apply(last, x * 2.0).output
    program = g.compile(outputs=[y, y + 1.0], poison=True)
    assert program.plan.placements[program.plan.graph.outputs["output0"]].how == "view"
    fed = np.arange(15, dtype=np.float32).reshape(5, 3)
    found = program.step(x=fed)
    np.testing.assert_array_equal(found["output0"], fed[-2:] * 2)
    np.testing.assert_array_equal(found["output1"], fed[-2:] * 2 + 1)


def test_a_false_view_is_found():
    wrong = reversed_op(numpy_views=lambda self, node, x: (x[:2],))
    with pytest.raises(PlanError, match="at 36 with strides"):
        g.plan(outputs=[apply(wrong, g.input("x", (5, 3)) * 2.0).output])


def test_a_view_op_says_what_numpy_makes_of_it():
    with pytest.raises(GraphError, match="it has `views` but no `numpy_views`"):
        reversed_op(numpy_views=Op.numpy_views)


def test_a_gathering_op_of_a_user_has_its_parts_in_place():
    joined = type("Joined", (Concat,), {"name": "joined"})
    x = g.input("x", (4, 3))
    parts = [g.tanh(x), g.exp(x)]
    loss = apply(joined, *parts, attributes=Concat.attributes(0)).output
    program = g.compile(outputs=[loss * 1.5], poison=True)
    places = program.plan.placements
    assert [places[v].how for n in program.plan.graph.nodes[:2] for v in n.outputs] == ["part"] * 2
    fed = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    found = program.step(x=fed)["output0"]
    np.testing.assert_allclose(found, 1.5 * np.concatenate([np.tanh(fed), np.exp(fed)]), rtol=1e-6)
