"""Processes under MPI: a run as a user starts it, and what happens when one of them dies."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")

SECONDS = 60

PHASES = {
    "connecting": "later(0.01 * time); program = bound()",
    "a step": "program = bound(); program._backend._reading.insert(time % 5, at_call(time))",
    "a collective": """
program = bound(); wire = world_lane().wire; finish, dies = wire._finish, at_call(1 + time)
def die_or_finish(request): dies(); finish(request)
wire._finish = die_or_finish""",
    "saving": """
program = bound(); program.save(path); later(0.005 * time)
while True: program.save(path)""",
}
"""What the ranks do as one of them is killed, sooner or later by `time`: where it is not in the
phase itself, in steps behind it."""

SCRIPT = """
import itertools, os, signal, sys, threading
import numpy as np
import graphc as g
from graphc.runtime.ranks.world import find_world, world_lane

path, victim, time, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

def die():
    if find_world().rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)

def later(seconds):
    threading.Timer(seconds, die).start()

def at_call(number):
    calls = itertools.count()
    return lambda: die() if next(calls) == number else None

def bound():
    x = g.input("x", (4, 8))
    loss = g.mean(g.linear(x, 1000))
    return g.compile(
        loss, optimizer=g.optim.SGD(), ranks=find_world().size, threads=1, rank_timeout=limit
    )

def feeds():
    return {"x": np.ones((4, 8), np.float32)}

"""


def run(ranks, *arguments, seconds=SECONDS):
    """What so many processes of a command of Python come to."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "MPI"))}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    return subprocess.run(
        [MPIEXEC, "-n", str(ranks), sys.executable, *arguments],
        capture_output=True, text=True, timeout=seconds, env=environment, check=False,
    )  # fmt: skip


def digits(ranks, batch, *more, epochs=2):
    found = run(
        ranks, "-m", "graphc", "train", "digits", f"batch={batch}", "layers=2", "hidden=32",
        "--epochs", str(epochs), "--threads", "1", "--json", *more,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_go_on_from_one_file(tmp_path):
    path = str(tmp_path / "run.safetensors")
    alone, both = digits(1, 32), digits(2, 16, "--save", path)
    for one, two in zip(alone["epochs"], both["epochs"], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert both["epochs"] == digits(2, 16)["epochs"]
    more = run(
        1, "-m", "graphc", "train", "digits", "batch=32", "layers=2", "hidden=32", "--epochs", "3",
        "--threads", "1", "--resume", path,
    )  # fmt: skip
    assert more.returncode == 0, more.stderr
    assert "epoch   3" in more.stdout


@pytest.mark.slow
def test_shards_train_alike_and_are_saved_as_one_file(tmp_path):
    paths = [tmp_path / name for name in ("whole.safetensors", "sharded.safetensors")]
    options = ["--optimizer", "adam"]
    whole = digits(2, 16, *options, "--save", str(paths[0]))
    sharded = digits(2, 16, *options, "--shard", "states", "--save", str(paths[1]))
    assert sharded["epochs"] == whole["epochs"]
    states, others = map(load_file, paths)
    assert sorted(states) == sorted(others)
    for name, state in states.items():
        assert state.tobytes() == others[name].tobytes()
    (last,) = digits(1, 32, *options, "--resume", str(paths[1]), epochs=3)["epochs"]
    assert last["loss"] < sharded["epochs"][-1]["loss"]


def microseconds_beside(path):
    """The time in which exchanges and ops of the backward pass overlap in a measured step."""
    found = run(
        2, "-m", "graphc", "view", "mlp", "layers=8", "hidden=512", "batch=64", "--optimizer",
        "sgd", "--ranks", "2", "--measure", "5", "-o", str(path),
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    exchanges = [event for event in spans if event["cat"] == "exchange"]
    backward = [event for event in spans if event["cat"] == "gradient" and event["tid"] == 1]
    assert len(exchanges) > 2
    return sum(
        max(0, min(e["ts"] + e["dur"], b["ts"] + b["dur"]) - max(e["ts"], b["ts"]))
        for e in exchanges
        for b in backward
        if not b["name"].endswith("arrival")
    )


def test_exchanges_of_two_processes_run_beside_the_backward_pass(tmp_path):
    """In one of several runs: on a loaded machine, one process may wait for the other's core."""
    assert any(microseconds_beside(tmp_path / f"{n}.trace.json") > 0 for n in range(4))


STEPS = "\nwhile True: program.step(feeds())"


def killed(phase, victim, time, path):
    """Kill one of two processes in a phase, and see how the other ends and what file is left."""
    found = run(2, "-c", SCRIPT + PHASES[phase] + STEPS, str(path), str(victim), str(time), "60")
    assert found.returncode != 0
    assert re.search("KILLED BY SIGNAL: 9|signal 9", found.stdout + found.stderr)
    assert path.exists() == (phase == "saving")
    if phase == "saving":
        assert sorted(load_file(path)) == ["bias", "weight"]


@pytest.mark.parametrize("phase", ["a collective", "saving"])
def test_a_process_that_is_killed_ends_the_others_and_tears_no_file(phase, tmp_path):
    killed(phase, 1, 7, tmp_path / "states.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("time", range(8))
@pytest.mark.parametrize("phase", PHASES)
def test_either_process_may_be_killed_at_any_time(phase, time, tmp_path):
    killed(phase, time % 2, time, tmp_path / "states.safetensors")


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_process_that_hangs_is_waited_for_so_long(victim, tmp_path):
    script = SCRIPT.replace("SIGKILL", "SIGSTOP") + PHASES["a collective"] + STEPS
    found = run(2, "-c", script, str(tmp_path / "none"), str(victim), "7", "2")
    assert found.returncode != 0
    told = (
        f"RanksError: rank {1 - victim} of 2 waited 2 s for the others in all_reduce; another rank"
    )
    assert told in found.stderr


def test_an_error_of_one_process_ends_the_others():
    failing = "\nprogram = bound()\nif find_world().rank == 1: raise ValueError('this one')"
    found = run(2, "-c", SCRIPT + failing + "\nprogram.step(feeds())", "none", "-1", "0", "60")
    assert found.returncode != 0
    assert "ValueError: this one" in found.stderr


@pytest.mark.slow
def test_four_processes_train_as_one_does():
    alone, four = digits(1, 32), digits(4, 8)
    for one, other in zip(alone["epochs"], four["epochs"], strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5)


def test_shards_are_gathered_for_samples_by_all_ranks(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("to be or not to be, " * 60)
    found = run(
        2, "-m", "graphc", "train", "text", "layers=1", "width=16", "heads=2", "seq_len=16",
        "batch=2", "--file", str(path), "--steps", "4", "--shard", "states", "--threads", "1",
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("-" * 40) == 3


RESIDENT = """
import gc, json, sys, tracemalloc
import numpy as np
import graphc as g
from pathlib import Path
from graphc.models import mlp
from graphc.runtime.ranks.world import find_world

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def trained(hidden):
    program = g.compile(
        mlp(layers=4, hidden=hidden, inputs=64, batch=64), optimizer=g.optim.Adam(),
        ranks=2, shard=sys.argv[1], threads=1, seed=1,
    )
    feeds = {v.name: np.zeros(v.type.shape, v.type.dtype.numpy) for v in program.graph.inputs}
    grown = [resident()]
    for _ in range(6):
        program.step(feeds)
        grown.append(resident())
    return program, grown

trained(32)  # what code, threads and MPI take once
before = resident()
program, after = trained(2048)
feeds = {v.name: np.zeros(v.type.shape, v.type.dtype.numpy) for v in program.graph.inputs}
tracemalloc.start()
program.step(feeds)  # tracing itself takes some at first
tracemalloc.reset_peak()
held, _ = tracemalloc.get_traced_memory()
program.step(feeds)
allocated = tracemalloc.get_traced_memory()[1] - held
found = {
    "allocated": allocated,
    "rank": find_world().rank, "grown": after[-1] - before, "by_steps": after[-1] - after[2],
    "arena": program.plan.arena_bytes, "communication": program.communication_bytes,
}
Path(sys.argv[2], f"{find_world().rank}.json").write_text(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "states"])
def test_the_resident_bytes_of_a_process_are_those_of_its_plan(shard, tmp_path):
    """Besides the arena there are the bytes of messages, which the plan states.

    The first run compiles kernels, which takes some MiB, and fills the cache of machine code.
    """
    for _ in range(2):
        found = run(2, "-c", RESIDENT, shard, str(tmp_path))
        assert found.returncode == 0, found.stderr
    for rank in range(2):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told["rank"] == rank
        planned = told["arena"] + told["communication"]
        assert planned > 50 * 2**20
        assert told["grown"] == pytest.approx(planned, abs=6 * 2**20), told
        assert told["by_steps"] < 2**20, told
        assert told["allocated"] < 64 * 2**10, told  # Python's objects; a gradient takes 16 MiB
