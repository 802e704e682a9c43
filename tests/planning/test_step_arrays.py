"""Compiled loops over sequences: against the plain walk, and against themselves without Numba."""

import os
import subprocess
import sys

import numpy as np
import pytest
from planning.problems import random_problem, random_steps

import graphc as g
from graphc import jit
from graphc.allocation.allocate import Allocation
from graphc.models import lstm, unet
from graphc.passes.recompute.graph_steps import GraphSteps
from graphc.planning.steps import Steps


def with_repeats(steps, rng):
    """Every step once, in order, with repeats of earlier ones in between."""
    sequence = []
    for step in range(len(steps)):
        sequence += [int(s) for s in rng.integers(0, step + 1, rng.integers(0, 2)) if s < step]
        sequence.append(step)
    return sequence


@pytest.fixture(params=[-1, jit.LITTLE], ids=["compiled", "as written"])
def little(request, monkeypatch):
    """Compiled loops, however few steps there are, and loops as they are written."""
    monkeypatch.setattr(jit, "LITTLE", request.param)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("seed", range(30))
def test_levels_are_the_profile_with_what_is_held(seed):
    steps, rng = random_problem(40, seed).steps, np.random.default_rng(seed)
    for _ in range(5):
        sequence = with_repeats(steps, rng)
        assert steps.levels(sequence).tolist() == steps.profile(sequence, steps.held)


@pytest.mark.usefixtures("little")
def test_levels_of_steps_that_overwrite_and_make_several_values():
    """By hand: 1 takes over 0's bytes, 2 makes two values of which nobody reads one."""
    steps = Steps(
        cost=(1.0,) * 4,
        workspace=(0, 0, 5, 0),
        inputs=((), (0,), (1,), (2, 1)),
        outputs=((0,), (1,), (2, 3), (4,)),
        overwrites=((), ((1, 0),), ((2, 1), (3, 1)), ((4, 2), (4, 1))),
        bytes=(8, 8, 4, 2, 1),
        once=frozenset(),
        held=frozenset([4]),
        runs=(),
    )
    # 2 overwrites nothing, for 3 still reads 1; 3 takes over the bytes of one operand alone.
    assert steps.levels(range(4)).tolist() == [8, 8, 8 + 4 + 2 + 5, 8 + 4]
    assert steps.levels([0, 1, 2, 0, 1, 3]).tolist() == [8, 8, 8 + 4 + 2 + 5 - 4, 12, 12, 12]


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("seed", range(30))
def test_levels_of_steps_of_all_kinds(seed):
    steps, rng = random_steps(25, seed, runs=1 + seed % 2), np.random.default_rng(seed)
    for _ in range(5):
        sequence = with_repeats(steps, rng)
        assert steps.levels(sequence).tolist() == steps.profile(sequence, steps.held)


@pytest.mark.parametrize("network", [lstm(seq_len=3, layers=2), unet()], ids=["lstm", "unet"])
def test_levels_of_networks(network):
    plan = g.plan(network, optimizer=g.optim.SGD())
    steps = GraphSteps(Allocation(plan.graph), lambda node: 0.0, feature_maps_only=False).steps
    assert any(steps.overwrites)
    sequence = list(range(len(steps)))
    assert steps.levels(sequence).tolist() == steps.profile(sequence, steps.held)


PURE = """
import sys
if sys.argv[1] == "pure":
    sys.modules["numba"] = None
from graphc import jit
if sys.argv[1] == "compiled":
    jit.LITTLE = -1
from planning.problems import random_problem, random_steps
from graphc.planning.iterate import iterate
from graphc.planning.order.listing import list_schedule
from graphc.planning.order.precedence import Precedence
from graphc.planning.shrink import shrink
for seed in range(6):
    steps = random_steps(25, seed)
    once = list(range(len(steps)))
    for part in (0.95, 0.8):
        limit = int(part * steps.peak(once))
        found = shrink(steps, once, limit)
        print("shrunk", found, found and iterate(steps, found, limit, effort=60 * len(steps)))
    for steps in (random_problem(40, seed).steps, steps):
        once = list(range(len(steps)))
        for part in (1.0, 0.95):
            limit = int(part * steps.peak(once))
            for backwards in (False, True):
                order = list_schedule(Precedence(steps), once, limit, backwards)
                print("listed", order if order != once else None)
print(sys.modules["numba"] is None)
"""


def test_sequences_do_not_depend_on_numba():
    pytest.importorskip("numba")
    found = {}
    for kind in ("pure", "written", "compiled"):
        done = subprocess.run(
            [sys.executable, "-c", PURE, kind],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "tests"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        *found[kind], is_pure = done.stdout.splitlines()
        assert is_pure == str(kind == "pure")
    assert found["pure"] == found["written"] == found["compiled"]
    for what in ("shrunk", "listed"):
        lines = [line for line in found["pure"] if line.startswith(what)]
        assert sum("None" not in line for line in lines) >= 4


SMALL = """
import graphc
from graphc.models import mlp
from graphc.planning.order.listing import _schedule
from graphc.planning.shrink import _events
network = mlp(layers=4, hidden=128, inputs=64, classes=10, batch=64)
graphc.plan(network, optimizer=graphc.optim.Adam(0.001), budget="900KiB")
print(len(_schedule.signatures), len(_events.signatures))
"""


def test_a_small_network_is_planned_without_compiling():
    pytest.importorskip("numba")
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 0\n"
