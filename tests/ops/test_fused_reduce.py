"""Fused reductions as ops: what they accept, and results with the bits of separate nodes."""

import numpy as np
import pytest
from ops.test_strides import run

import graphc as g
from graphc.errors import DTypeError, GraphcError, GraphError, OptionError, ShapeError
from graphc.ir.builder import apply
from graphc.ops.fused_reduce import FusedReduce, FusedReduceAttributes
from graphc.ops.reduce import square_sum

PRODUCT = ("mul(x0, x1)", "relu(m0)")


def reduced(members, reduction, axes, keepdims, order, inputs, after=()):
    given = FusedReduceAttributes(members, reduction, axes, keepdims, order, after)
    return apply(FusedReduce, *inputs, attributes=given)


def alone(reduction, x, axes, keepdims):
    if reduction == "square_sum":
        return square_sum(x).node
    return getattr(g, reduction)(x, axes, keepdims).node


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("reduction", "axes", "keepdims"),
    [
        ("sum", (0,), False), ("sum", (1,), True), ("mean", (0, 1), False), ("max", (1,), False),
        ("mean", (0,), True), ("square_sum", (0, 1), False),
        ("min", (0,), False),
    ],
)  # fmt: skip
def test_the_bits_are_those_of_separate_nodes(reduction, axes, keepdims, dtype):
    a, b = g.input("a", (2300, 9), dtype), g.input("b", (9,), dtype)
    rng = np.random.default_rng(3)
    feeds = {v: rng.normal(size=v.shape).astype(v.type.dtype.numpy) for v in (a, b)}
    node = reduced(PRODUCT, reduction, axes, keepdims, (0, 1), [a, b])
    (found,) = run(
        node, {**feeds, node.output: np.zeros(node.output.shape, node.output.type.dtype.numpy)}
    )
    product = g.relu(a * b)
    arrays = dict(feeds)
    for each in (
        product.node.inputs[0].node,
        product.node,
        alone(reduction, product, axes, keepdims),
    ):
        own = {v: arrays[v] for v in each.inputs}
        kind = each.output.type.dtype.numpy
        (arrays[each.output],) = run(each, {**own, each.output: np.zeros(each.output.shape, kind)})
    assert found.tobytes() == arrays[each.output].tobytes()
    assert node.output.type == each.output.type


@pytest.mark.parametrize(
    ("members", "reduction", "axes", "keepdims", "order", "error", "message"),
    [
        (PRODUCT, "median", (0,), False, (0, 1), OptionError, "median"),
        (PRODUCT, "sum", (2,), False, (0, 1), ShapeError, "axes"),
        (PRODUCT, "sum", (1, 0), False, (0, 1), ShapeError, "axes must be ascending"),
        (
            PRODUCT,
            "sum",
            (0,),
            False,
            (0,),
            ShapeError,
            "order must be a permutation of the axes from 0 to 1",
        ),
        (
            PRODUCT,
            "sum",
            (0,),
            False,
            (1, 1),
            ShapeError,
            "order must be a permutation of the axes",
        ),
        (PRODUCT, "square_sum", (0,), False, (0, 1), GraphError, "must reduce all axes"),
        (PRODUCT, "square_sum", (0, 1), True, (0, 1), GraphError, "without keepdims"),
        (("less(x0, x1)",), "max", (0,), False, (0, 1), DTypeError, "a float tensor, got b1"),
        ((), "sum", (0,), False, (0, 1), GraphError, "needs one input, got 2"),
        (("softmax(x0, axis=1)",), "sum", (0,), False, (0, 1), GraphError, "cannot be a member"),
    ],
)
def test_impossible_reductions_are_refused(
    members, reduction, axes, keepdims, order, error, message
):
    with pytest.raises(error, match=message):
        reduced(members, reduction, axes, keepdims, order,
                [g.input("a", (3, 4)), g.input("b", (4,))])  # fmt: skip


@pytest.mark.parametrize(
    ("after", "error", "message"),
    [
        (("add(x0, x1)",), GraphError, "reads x1"),
        (("softmax(x0, axis=0)",), GraphError, "cannot be a member"),
        (("cast(x0, dtype=float64)",), DTypeError, "must use one float dtype"),
    ],
)
def test_impossible_epilogues_of_a_reduction_are_refused(after, error, message):
    with pytest.raises(error, match=message):
        reduced((), "sum", (0,), False, (0, 1), [g.input("a", (3, 4))], after)


def test_missing_gradients_are_refused():
    x = g.input("x", (3,))
    y = reduced(("neg(x0)", "exp(m0)"), "sum", (0,), False, (0,), [x]).output
    with pytest.raises(
        GraphcError, match=r"neg\+exp\+sum has no gradient with respect to its input 'xs'"
    ):
        g.gradient(y, [x])


def test_the_work_is_that_of_the_members_and_of_the_sum():
    a, b = g.input("a", (3, 4)), g.input("b", (4,))
    node = reduced(PRODUCT, "sum", (0,), False, (0, 1), [a, b], ("tanh(x0)", "neg(m0)"))
    product = g.mul(a, b).node
    nodes = [product, g.relu(product.output).node]
    nodes.append(g.sum(nodes[1].output, 0).node)
    nodes.append(g.tanh(nodes[2].output).node)
    nodes.append(g.neg(nodes[3].output).node)
    cost = node.op.cost(node)
    assert cost.flops == sum(each.op.cost(each).flops for each in nodes)
    assert (cost.bytes_read, cost.bytes_written) == (64, 16)
