"""Ranks that torchrun starts train as one process does."""

import functools
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

TRAIN = (
    "-m", "graphc", "train", "digits", "layers=2", "hidden=32", "--optimizer", "adam",
    "--epochs", "1", "--threads", "1", "--json",
)  # fmt: skip


@functools.cache
def trained(ranks, *more):
    """Return the epochs that a run reports."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    found = subprocess.run(
        [sys.executable, *(start if ranks > 1 else ()), *TRAIN, f"batch={48 // ranks}", *more],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout.splitlines()[-1])["epochs"]


@pytest.mark.parametrize(
    ("ranks", "shard"),
    [
        (2, "states"),
        pytest.param(3, "states", marks=pytest.mark.slow),
        pytest.param(2, "none", marks=pytest.mark.slow),
        pytest.param(3, "none", marks=pytest.mark.slow),
    ],
)
def test_ranks_of_torchrun_train_as_one_process_does(ranks, shard):
    for one, other in zip(trained(1), trained(ranks, "--shard", shard), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others():
    failing = (
        "import graphc as g\n"
        "from graphc.runtime.ranks.world import find_world, end_all\n"
        "x = g.input('x', (4,))\n"
        "program = g.compile(g.mean(g.linear(g.reshape(x, (1, 4)), 2)), optimizer=g.optim.SGD(),"
        " ranks=2)\n"
        "if find_world().rank == 1: raise ValueError('this one')\n"
        "program.step(x=[0, 0, 0, 0])\n"
    )
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    found = subprocess.run(
        [sys.executable, *start, sys.executable, "-c", failing],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert found.returncode != 0
    assert "ValueError: this one" in found.stderr
