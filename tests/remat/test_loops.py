"""Loops compiled, as they are written, and without Numba: all plan the same."""

import os
import subprocess
import sys

import pytest

PURE = """
import sys
if sys.argv[1] == "pure":
    sys.modules["numba"] = None
from graphc import jit
if sys.argv[1] == "compiled":
    jit.LITTLE = -1
from remat.problems import random_problem, random_steps
from graphc.remat.local_search import iterate
from graphc.scheduling.listing import list_schedule
from graphc.scheduling.precedence import Precedence
from graphc.remat.evict import evict
for seed in range(6):
    steps = random_steps(25, seed)
    once = list(range(len(steps)))
    for part in (0.95, 0.8):
        limit = int(part * steps.peak(once))
        found = evict(steps, once, limit)
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
import sys
import graphc
from graphc.models import mlp
network = mlp(layers=4, hidden=128, inputs=64, classes=10, batch=64)
graphc.plan(network, optimizer=graphc.optim.Adam(0.001), budget="900KiB")
loops = {
    each
    for name, module in sys.modules.items()
    if name.startswith(("graphc.remat", "graphc.scheduling"))
    for each in vars(module).values() if hasattr(each, "py_func")
}
print(len(loops) > 20, [each.__name__ for each in loops if each.is_compiled])
"""


def test_the_loops_of_planning_are_not_compiled_for_a_small_network():
    pytest.importorskip("numba")
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True []\n"
