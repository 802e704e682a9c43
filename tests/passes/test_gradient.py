import numpy as np
import pytest

import graphc as g
from graphc import gradient
from graphc.errors import GradientError
from graphc.ir import builder
from graphc.ir.builder import trace
from graphc.ir.verify import verify
from graphc.ops.update import SgdAttributes, SgdUpdate


def run(outputs, **feeds):
    return list(g.compile(outputs=outputs, poison=True).step(feeds).values())


def test_second_derivative_of_a_polynomial():
    """d²/dx² of Σ x³ is 6x, and the third derivative is 6."""
    x = g.input("x", (3,), "float64")
    (first,) = g.gradient(g.sum(x**3), [x])
    (second,) = g.gradient(g.sum(first), [x])
    (third,) = g.gradient(g.sum(second), [x])
    at = np.array([-1.0, 0.5, 2.0])
    for found, wanted in zip(
        run([first, second, third], x=at), (3 * at**2, 6 * at, 0 * at + 6), strict=True
    ):
        np.testing.assert_allclose(found, wanted)


def test_a_value_with_several_readers_is_aggregated_as_contributions_appear():
    x = g.input("x", (4,))
    y = g.tanh(x)
    loss = g.sum(y * y + y + g.exp(y))
    (dx,) = g.gradient(loss, [x])
    graph = trace({"dx": dx})
    gradients = [node.op.name for node in graph.nodes if node.phase == "gradient"]
    assert gradients.count("add") == 3
    assert "add" in gradients[: gradients.index("tanh_gradient")]


def test_shared_weights_cost_one_running_sum():
    """T uses of one weight: in place, the sum needs one buffer and one summand, whatever T is."""
    sizes = []
    for length in (4, 16):
        h = g.input("h", (4, 256))
        w = g.parameter("w", (256, 256), initial=g.Initial("normal", 0.01))
        for _ in range(length):
            h = g.matmul(h, w)
        (dw,) = g.gradient(g.mean(h), [w])
        plan = g.plan(outputs={"dw": dw}, allocate="inplace")
        weights = [v for v in plan.graph.values if v.shape == (256, 256) and v.node is not None]
        sizes.append(len({plan.placements[value].buffer for value in weights}))
        assert len(weights) == 2 * length - 1
        packed = g.plan(outputs={"dw": dw}, kernels="numpy")
        assert (
            packed.live_bytes - packed.state_bytes < 2 * 256 * 256 * 4 + (length + 8) * 4 * 256 * 4
        )
    assert sizes == [4, 16]  # each summand is new, each sum lies over the one before


def test_gradient_by_an_intermediate_value_and_by_the_loss_itself():
    x = g.input("x", (3,), "float64")
    y = x * 2.0
    loss = g.sum(y * y)
    dy, dloss = g.gradient(loss, [y, loss])
    at = np.array([1.0, 2.0, 3.0])
    found = run([dy, dloss], x=at)
    np.testing.assert_allclose(found[0], 4 * at)
    assert found[1] == 1.0


def test_a_value_that_the_loss_does_not_depend_on_gets_zeros():
    x, z = g.input("x", (3,)), g.input("z", (2, 2))
    dx, dz = g.gradient(g.sum(x), [x, z])
    found = run([dx, dz])
    np.testing.assert_array_equal(found[1], np.zeros((2, 2), np.float32), strict=True)
    (through_comparison,) = g.gradient(g.sum(g.cast(g.less(x, 0.5), "float32")), [x])
    np.testing.assert_array_equal(run([through_comparison])[0], np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, i: g.gradient(g.relu(x), [x]), "float scalar.*graphc.sum"),
        (lambda x, i: g.gradient(g.sum(i), [x]), "float scalar"),
        (lambda x, i: g.gradient(g.sum(x), [i]), "not float"),
        (lambda x, i: g.gradient(3.0, [x]), "graphc value"),
    ],
)
def test_gradients_of_ops_without_one_are_refused(make, message):
    with pytest.raises(GradientError, match=message):
        make(g.input("x", (3,)), g.input("i", (3,), "int32"))


def test_an_op_without_gradient_is_named_with_its_scope():
    w = g.parameter("w", (3,))
    with g.scope("inner"):
        rate = g.input("rate", ())
        new = builder.apply(SgdUpdate, w, w * 2.0, rate, attributes=SgdAttributes(0.0)).output
    with pytest.raises(
        GradientError, match="inner/sgd_update has no gradient with respect to its input 'g'"
    ):
        g.gradient(g.sum(new), [w])


def test_an_op_without_gradient_may_read_what_no_gradient_flows_through():
    x, v = g.input("x", (3,)), g.parameter("v", (3,))
    rate = g.input("rate", ())
    for still in (g.stop_gradient(x), g.sign(x * 2.0)):
        new = builder.apply(SgdUpdate, v, still, rate, attributes=SgdAttributes(0.0)).output
        slopes = g.gradient(g.sum(new * x), [x])
        found = g.compile(outputs=[*slopes, new], training=True).step(
            x=np.arange(3, dtype=np.float32), rate=0.5
        )
        np.testing.assert_array_equal(*found.values())


def mirrored(graph):
    return {(node.copy_of.label, node.level) for node in graph.nodes if node.phase == "mirror"}


def test_mirror_zero_is_the_plain_gradient():
    x = g.input("x", (3,))
    loss = g.sum(g.tanh(g.exp(x)))
    plain = g.format_graph(trace({"d": gradient(loss, [x])[0]}))
    zero = g.format_graph(trace({"d": gradient(loss, [x], mirror=lambda node: 0)[0]}))
    assert plain == zero


def test_kept_values_and_what_they_view_are_never_copied():
    x = g.input("x", (3, 4))
    with g.mirror(1):
        a = g.tanh(x)
        b = g.keep(g.exp(a))
        c = g.sigmoid(g.keep(g.reshape(g.sigmoid(b), (12,))))
    loss = g.sum(g.tanh(c))
    graph = g.plan(
        loss=g.mean(loss + 0.0 * g.sum(g.linear(x, 1, name="w"))),
        optimizer=g.optim.SGD(),
        recompute="mirror",
    ).graph
    assert not mirrored(graph)  # nothing before the weights needs a gradient
    kept = frozenset({b})
    (dx,) = gradient(loss, [x], mirror=lambda node: node.mirror, kept=kept)
    assert mirrored(trace({"dx": dx})) == {("tanh", 1), ("sigmoid", 1), ("reshape", 1)}
    views = frozenset({b, c.node.inputs[0]})
    (dx,) = gradient(loss, [x], mirror=lambda node: node.mirror, kept=views)
    names = [key for key in mirrored(trace({"dx": dx})) if key[0] == "reshape"]
    assert names == []


def test_a_copy_is_made_once_and_as_late_as_it_can():
    x = g.input("x", (4,))
    with g.mirror(1):
        a = g.exp(x)
        b = a * a
    loss = g.sum(g.tanh(b))
    (dx,) = gradient(loss, [x], mirror=lambda node: node.mirror)
    nodes = trace({"dx": dx}).nodes
    copies = [node for node in nodes if node.phase == "mirror"]
    assert [node.op.name for node in copies] == ["exp"]
    assert nodes.index(copies[0]) > [n.op.name for n in nodes].index("tanh_gradient")
    verify(trace({"dx": dx}))


@pytest.mark.parametrize("level", [1, 2])
def test_a_value_with_two_consumers_is_copied_once(level):
    """The second branch finds the copies of the first, and makes only its own."""
    w = g.parameter("w", (4,))
    shared = g.tanh(g.tanh(w))
    left, right = g.tanh(shared * 2.0), g.sigmoid(shared * 3.0)
    recomputed = {"tanh", "sigmoid", "scale"}
    (dw,) = gradient(
        g.sum(left) + g.sum(right), [w], lambda n: level if n.op.name in recomputed else 0
    )
    copies = [(n.copy_of, n.level) for n in trace({"dw": dw}).nodes if n.copy_of is not None]
    assert len(copies) == len(set(copies))
    ops = sorted(node.op.name for node, count in copies if count == level)
    assert ops == ["scale", "scale", "sigmoid", "tanh", "tanh", "tanh"]
