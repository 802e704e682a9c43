"""Two towers with a loss each: updates of the one run before the other begins."""

import numpy as np
import pytest

import graphc as g
from graphc.devices.device import planned_device
from graphc.errors import TornError
from graphc.memory.allocate import Allocation
from graphc.target import target_of

CLASSES = {"first": 5, "second": 3}


def towers(computed=False):
    """The sum of two losses that have nothing else in common.

    Labels are fed, or computed from numbers that are fed.
    """
    losses = []
    for name, classes in CLASSES.items():
        with g.scope(name):
            x = g.input(f"{name}_x", (4, 6))
            if computed:
                labels = g.cast(g.input(f"{name}_t", (4,)) * 1.0, "int32")
            else:
                labels = g.input(f"{name}_t", (4,), "int32")
            h = g.tanh(g.linear(x, 7, name="hidden"))
            losses.append(g.softmax_cross_entropy(g.linear(h, classes, name="out"), labels))
    return losses[0] + losses[1]


def plan_of(computed=False, **options):
    """A plan of a training step."""
    return g.plan(towers(computed), optimizer=g.optim.Adam(0.01), **options)


def interleaved(computed=False, kernels="native"):
    """A plan in which a loss stands behind updates of the other tower.

    The order is that for NumPy's kernels: a native product's workspace is larger than all values,
    so no order would take fewer bytes than another.
    """
    graph = plan_of(computed, kernels="numpy").graph
    plan = Allocation(graph, target_of(planned_device("cpu", None, kernels))).plan("packed")
    losses = [n for n in graph.nodes if n.op.name == "softmax_cross_entropy"]
    updates = [n for n in graph.effects if n.op.name == "adam_update"]
    assert graph.position[updates[0]] < graph.position[losses[-1]]
    return plan


def feeds(step=0, computed=False, **changed):
    """Random feeds of a step; `changed` ones stand in place of some."""
    drawn = np.random.default_rng(step)
    found = {}
    for name, classes in CLASSES.items():
        found[f"{name}_x"] = drawn.standard_normal((4, 6)).astype(np.float32)
        labels = drawn.integers(0, classes, 4)
        found[f"{name}_t"] = labels.astype(np.float32 if computed else np.int32)
    return {**found, **changed}


def bits(program):
    """All states as bytes, counters included."""
    return {name: np.ascontiguousarray(array).tobytes() for name, array in program.states.items()}


def assert_torn(program, given, path):
    """Whatever shows states, or goes on from them, says that they are torn."""
    state = program.graph.states[0]
    zeros = np.zeros(state.shape, state.type.dtype.numpy)
    for use in (
        lambda: program.step(given),
        lambda: next(program.steps([given])),
        lambda: program.save(path),
        lambda: program.states[state.name],
        lambda: dict(program.parameters),
        lambda: program.states.update({state.name: zeros}),
    ):
        with pytest.raises(TornError, match=r"load\(path\) or program.reset\(\)"):
            use()
    assert not path.exists()
