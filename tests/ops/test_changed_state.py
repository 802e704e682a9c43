"""States that a network changes by other means than norms: a moving average, a count."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import OptionError, ShapeError
from graphc.ir.builder import apply
from graphc.ops.changed_state import WithChange, with_changes

X = np.arange(12.0).reshape(3, 4)


def network():
    """loss and logits, which both change a moving average of the logits and a count."""
    x = g.input("x", (3, 4), "float64")
    logits = g.linear(x, 2)
    average = g.parameter("average", (2,), "float64", trainable=False)
    count = g.parameter("count", (), "int64", trainable=False)
    changes = [(average, average * 0.5 + g.mean(logits, 0) * 0.5), (count, count + 1)]
    scaled = logits * (average + 1.0)
    return [with_changes(y, changes) for y in (g.mean(scaled * scaled), logits)]


def by_hand(program, steps, rate):
    """Losses, the average and the count, by NumPy."""
    weight, bias = (program.parameters[name] for name in ("weight", "bias"))
    average, losses = np.zeros(2), []
    for _ in range(steps):
        logits = X @ weight.T + bias
        scaled = logits * (average + 1)
        losses.append((scaled**2).mean())
        dlogits = 2 * scaled * (average + 1) / scaled.size
        weight, bias = weight - rate * dlogits.T @ X, bias - rate * dlogits.sum(0)
        average = average * 0.5 + logits.mean(0) * 0.5
    return losses, average


@pytest.mark.parametrize("options", [{}, {"recompute": "sublinear"}, {"allocate": "none"}])
def test_a_step_changes_them_once(options):
    loss, logits = network()
    program = g.compile(
        loss, outputs={"logits": logits}, optimizer=g.optim.SGD(1e-3), poison=True, **options
    )
    wanted, average = by_hand(program, 4, 1e-3)
    losses = [program.step(x=X)["loss"] for _ in range(4)]
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
    np.testing.assert_allclose(program.states["average"], average, rtol=1e-12)
    assert program.states["count"] == 4
    text = g.format_graph(program.graph)
    assert g.format_graph(g.parse_graph(text)) == text


def test_the_last_micro_batch_decides():
    loss, _ = network()
    program = g.compile(loss, optimizer=g.optim.SGD(0.0), accumulate=2)
    program.step(x=np.stack([X, 2 * X]))
    weight, bias = (program.parameters[name] for name in ("weight", "bias"))
    np.testing.assert_allclose(
        program.states["average"], 0.5 * (2 * X @ weight.T + bias).mean(0), rtol=1e-12
    )
    assert program.states["count"] == 1


def test_outside_of_training_nothing_changes():
    loss, logits = network()
    for program in (
        g.compile(outputs={"logits": logits}),
        g.compile(outputs={"loss": loss}, training=True),
    ):
        program.step(x=X)
        assert not program.graph.effects
        assert "count" not in program.states


def test_impossible_changes_of_states_are_refused():
    x = g.input("x", (3,))
    with pytest.raises(OptionError, match="w is trainable"):
        with_changes(x, [(g.parameter("w", (3,)), x)])
    with pytest.raises(ShapeError, match="must have its type"):
        apply(WithChange, x, g.parameter("s", (4,), trainable=False), x)
