"""Loops compiled and as they are written: both plan the same.

Without numba, all loops run as they are written (tests/test_jit.py).
"""

import pytest
from planner.problems import random_problem, random_steps

import graphc as g
from graphc import jit
from graphc.models import mlp
from graphc.planner.order import Precedence
from graphc.planner.order.listing import list_schedule
from graphc.planner.recompute.evict import evict
from graphc.planner.recompute.local_search import iterate


def decisions(seeds):
    """Return the sequences of eviction, local search and list scheduling, as text."""
    found = []
    for seed in seeds:
        steps = random_steps(25, seed)
        once = list(range(len(steps)))
        for part in (0.95, 0.8):
            limit = int(part * steps.peak(once))
            evicted = evict(steps, once, limit)
            improved = evicted and iterate(steps, evicted, limit, effort=60 * len(steps))
            found.append(f"evicted {evicted} {improved}")
        for problem in (random_problem(40, seed), steps):
            once = list(range(len(problem)))
            for part in (1.0, 0.95):
                limit = int(part * problem.peak(once))
                for backwards in (False, True):
                    order = list_schedule(Precedence(problem), once, limit, backwards)
                    found.append(f"listed {order if order != once else None}")
    return found


def test_sequences_do_not_depend_on_compilation(monkeypatch):
    pytest.importorskip("numba", reason="numba is not installed, so all loops are plain")
    found = {}
    for little in (-1, jit.LITTLE, 10**9):
        monkeypatch.setattr(jit, "LITTLE", little)
        found[little] = decisions(range(4))
    first, *others = found.values()
    assert all(other == first for other in others)
    for kind in ("evicted", "listed"):
        assert sum("None" not in line for line in first if line.startswith(kind)) >= 4


def test_the_loops_of_planning_are_not_compiled_for_a_small_network(monkeypatch):
    asked = []

    def noted(loop):
        package = loop.__module__.rpartition(".")[0]
        if package in ("graphc.memory", "graphc.planner.order", "graphc.planner.recompute"):
            asked.append(loop.__name__)
        return loop.written

    monkeypatch.setattr(jit.Loop, "compiled", property(noted))
    network = mlp(layers=4, hidden=128, inputs=64, classes=10, batch=64)
    found = []
    for little in (jit.LITTLE, -1):
        monkeypatch.setattr(jit, "LITTLE", little)
        g.plan(network, optimizer=g.optim.Adam(0.001), budget="900KiB")
        found.append(len(set(asked)))
    assert found[0] == 0
    assert found[1] > 3
