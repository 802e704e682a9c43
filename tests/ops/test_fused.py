"""Groups as ops: what they accept, and results that lie over operands."""

import itertools

import numpy as np
import pytest
from codegen.on_cpu import aligned
from ops.samples.fused import GROUPS
from ops.test_strides import run

import graphc as g
from graphc.errors import DTypeError, GraphcError, GraphError, OptionError, ShapeError
from graphc.ir.builder import apply
from graphc.ir.types import as_dtype
from graphc.ops.fused import Fused, FusedAttributes


def group(members, results, inputs):
    return apply(Fused, *inputs, attributes=FusedAttributes(members, results))


def drawn(node, seed=3):
    rng = np.random.default_rng(seed)
    return {
        v: rng.random(v.shape) > 0.5
        if v.type.dtype.kind == "bool"
        else rng.standard_normal(v.shape).astype(v.type.dtype.numpy)
        for v in node.inputs
    }


def assignments(node):
    """Every way to put outputs over inputs of their shape and size, each input at most once."""
    choices = [
        [None, *(v for v in node.inputs if (v.shape, v.type.bytes) == (y.shape, y.type.bytes))]
        for y in node.outputs
    ]
    for taken in itertools.product(*choices):
        used = [v for v in taken if v is not None]
        if len(set(used)) == len(used):
            yield dict(zip(node.outputs, taken, strict=True))


OVER = [
    *((*row[:4], row[5]) for row in GROUPS),
    ("turned", ("cast(x0, dtype=bfloat16)", "cast(x1, dtype=float16)", "add(x0, x1)"), (0, 1, 2),
     ((4, 6), (4, 6)), ("float32", "float32")),
    ("crossed", ("cast(x1, dtype=bfloat16)", "cast(x0, dtype=float16)"), (0, 1),
     ((4, 6), (4, 6)), ("float16", "bfloat16")),
    ("identity", ("cast(x0, dtype=float32)", "mul(m0, m0)", "cast(m1, dtype=bfloat16)",
                  "exp(m2)"), (0, 1, 2, 3), ((4, 6),), ("bfloat16",)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("label", "members", "results", "shapes", "dtypes"), OVER)
def test_outputs_may_lie_over_any_operands(label, members, results, shapes, dtypes, dtype):
    kinds = [dtype if d == "float64" else d for d in dtypes or ("float64",) * len(shapes)]
    inputs = [g.input(f"x{i}", s, d) for i, (s, d) in enumerate(zip(shapes, kinds, strict=True))]
    node = group(members, results, inputs)
    feeds = drawn(node)
    wanted = None
    for over in assignments(node):
        arrays = {value: aligned(array) for value, array in feeds.items()}
        for y, x in over.items():
            kind = y.type.dtype.numpy
            arrays[y] = np.zeros(y.shape, kind) if x is None else arrays[x].view(kind)
        found = [array.tobytes() for array in run(node, arrays)]
        wanted = wanted or found
        assert found == wanted, over


def test_a_16_bit_group_rounds_as_its_members_do():
    x = g.input("x", (5, 7), "bfloat16")
    node = group(("mul(x0, x0)", "shift(m0, value=1.0)", "sqrt(m1)"), (2,), [x])
    feed = drawn(node)[x]
    (found,) = run(node, {x: feed, node.output: np.zeros_like(feed)})
    bfloat16 = as_dtype("bfloat16").numpy
    wanted = np.float32(feed)
    for function in (np.square, lambda a: a + np.float32(1), np.sqrt):
        wanted = function(wanted).astype(bfloat16).astype(np.float32)
    unrounded = np.sqrt(np.square(np.float32(feed)) + 1).astype(bfloat16)
    np.testing.assert_array_equal(np.float32(found), wanted)
    assert (np.float32(found) != np.float32(unrounded)).any()


@pytest.mark.parametrize(
    ("members", "results", "error", "message"),
    [
        ((), (0,), GraphError, "at least one member"),
        (("add(x0, x1)",), (), GraphError, "results must be ascending indices of the 1 members"),
        (("add(x0, x1)", "neg(m0)"), (0,), GraphError, "include the last one"),
        (("add(x0, x1)", "neg(m0)"), (1, 1), GraphError, "ascending"),
        (("add(x0, x1",), (0,), GraphError, "a member must be a call such as"),
        (("add(x0, x2)",), (0,), GraphError, r"add\(x0, x2\) reads x2; a member can read only"),
        (("neg(m0)",), (0,), GraphError, "reads m0"),
        (("add(x0)",), (0,), GraphError, "add takes 2 operands"),
        (("neg(x0, value=1)",), (0,), GraphError, r"neg needs the attributes \[\]"),
        (("scale(x0)",), (0,), GraphError, r"scale needs the attributes \['value'\]"),
        (("scale(x0, value=many)",), (0,), OptionError, "value must be a finite number"),
        (("softmax(x0, axis=1)",), (0,), GraphError, "softmax cannot be a member"),
        (("fused(x0)",), (0,), GraphError, "fused cannot be a member"),
        (("increment(x0)",), (0,), GraphError, "increment cannot be a member"),
        (("missing(x0)",), (0,), OptionError, "unknown op 'missing'"),
        (("cast(x0, dtype=half)",), (0,), DTypeError, "unknown dtype"),
        (("cast(x0, dtype=float64)",), (0,), DTypeError, "must use one float dtype"),
        (("cast(x0, dtype=int32)",), (0,), DTypeError, "must use one float dtype"),
        (
            ("neg(x1)", "add(x0, m0)"),
            (0, 1),
            ShapeError,
            "members of a group must have equal shapes",
        ),
    ],
)
def test_malformed_groups_are_refused(members, results, error, message):
    with pytest.raises(error, match=message):
        group(members, results, [g.input("a", (3, 4)), g.input("b", (4,))])


def test_groups_of_integers_are_refused():
    with pytest.raises(DTypeError, match="must use one float dtype"):
        group(("neg(x0)",), (0,), [g.input("x", (3,), "int32")])


def test_missing_gradients_are_refused():
    x = g.input("x", (3,))
    y = group(("neg(x0)", "exp(m0)"), (1,), [x]).output
    with pytest.raises(
        GraphcError, match=r"neg\+exp has no gradient with respect to its input 'xs'"
    ):
        g.gradient(g.sum(y), [x])


def test_the_work_is_that_of_the_members():
    a, b = g.input("a", (3, 4)), g.input("b", (4,))
    node = group(("add(x0, x1)", "tanh(m0)", "mul(m1, m1)"), (1, 2), [a, b])
    alone = [g.add(a, b).node]
    alone += [g.tanh(alone[0].output).node]
    alone += [g.mul(alone[1].output, alone[1].output).node]
    cost = node.op.cost(node)
    assert cost.flops == sum(each.op.cost(each).flops for each in alone)
    assert (cost.bytes_read, cost.bytes_written) == (64, 96)


def test_a_node_is_called_by_its_members():
    x = g.input("x", (3,))
    with g.scope("layer"):
        short = group(("neg(x0)", "exp(m0)"), (1,), [x])
        long = group((*("neg(x0)",) * 5, "exp(m4)"), (5,), [x])
    assert short.label == "layer/neg+exp"
    assert long.label == "layer/neg+neg+...+exp"
