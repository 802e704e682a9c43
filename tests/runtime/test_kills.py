"""Training that is killed at any moment: its checkpoint is that of some step, and nothing stays.

Every run is a process of its own, forked from one that has imported what is needed.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import graphc as g
from graphc.files import PREFIX
from graphc.models import mlp

ORIGIN = """
import os, signal, sys, traceback
import runtime.test_kills as kills

kills.program()  # imports the rest; a run compiles its own
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until a run can tell of it
for line in sys.stdin:
    command, argument = line.rstrip("\\n").split(" ", 1)
    if command == "wait":
        print(os.waitstatus_to_exitcode(os.waitpid(int(argument), 0)[1]), flush=True)
        continue
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            kills.train(argument, lambda: os.write(writer, b"."))
        except KeyboardInterrupt:
            os._exit(130)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)  # it trains for longer than the test waits, so this end is a fault
    os.close(writer)
    if command == "train":
        os.read(reader, 1)
    os.close(reader)
    print(pid, flush=True)
"""
RNG = np.random.default_rng(0)
FEEDS = {
    "x": RNG.standard_normal((8, 64), np.float32),
    "labels": RNG.integers(0, 10, 8).astype(np.int32),
}


def program():
    return g.compile(mlp(layers=2, hidden=192, inputs=64, batch=8), optimizer=g.optim.Adam(1e-3))


def train(path, begins):
    """Go on from the checkpoint, if there is one, and save after every step."""
    running = program()
    if os.path.exists(path):
        running.load(path)
    begins()
    for _ in range(10_000):
        running.step(FEEDS)
        running.save(path, {"step": str(int(running.states["counter/step"]))})


class Runs:
    """Processes that train, told by their numbers."""

    def __init__(self):
        self._origin = subprocess.Popen(
            [sys.executable, "-c", ORIGIN],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    def ask(self, command, argument):
        self._origin.stdin.write(f"{command} {argument}\n")
        self._origin.stdin.flush()
        return int(self._origin.stdout.readline())

    def start(self, path, rng):
        """Start one; one in five is not even waited for until it trains."""
        return self.ask("start" if rng.random() < 0.2 else "train", path)

    def end(self, pid, number):
        """Send a signal; returns how the process ended.

        It is sent again after five seconds: Python drops an interrupt that falls into a `__del__`,
        such as llvmlite's.
        """
        os.kill(pid, number)
        again = threading.Timer(5.0, os.kill, (pid, number))
        again.start()
        try:
            return self.ask("wait", pid)
        finally:
            again.cancel()

    def close(self):
        self._origin.communicate()
        assert self._origin.returncode == 0


@pytest.fixture
def runs():
    runs = Runs()
    yield runs
    runs.close()


class Reference:
    """The run that nobody disturbs, and how far the checkpoint of the others has come."""

    def __init__(self, path):
        self.path, self.step = path, 0
        self._whole, self._loaded = program(), program()

    def check(self):
        """Load what a run has left: a step no earlier than before, bit for bit."""
        if not self.path.exists():
            assert self.step == 0
            return
        self._loaded.load(self.path)
        step = int(self._loaded.states["counter/step"])
        assert g.read_notes(self.path) == {"step": str(step)}
        assert step >= self.step
        while self.step < step:
            self._whole.step(FEEDS)
            self.step += 1
        for name, array in self._whole.states.items():
            assert self._loaded.states[name].tobytes() == array.tobytes(), (step, name)

    def save_beside(self):
        self._loaded.save(self.path.with_name("beside"))


def unfinished(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(PREFIX)]


@pytest.mark.slow
def test_500_kills_leave_whole_checkpoints_and_the_next_save_removes_the_rest(tmp_path, runs):
    """Two runs at a time share a folder; one of them is killed while the other goes on."""
    rng = random.Random(0)
    references = [Reference(tmp_path / name) for name in ("first", "second")]
    pids = [runs.start(reference.path, rng) for reference in references]
    left = 0
    for _ in range(500):
        time.sleep(rng.uniform(0, 0.05))
        struck = rng.randrange(2)
        assert runs.end(pids[struck], signal.SIGKILL) == -signal.SIGKILL
        references[struck].check()
        # What is there now was left by the one that was killed, or is being written by the other.
        left += len(unfinished(tmp_path)) > 1
        pids[struck] = runs.start(references[struck].path, rng)
    for pid, reference in zip(pids, references, strict=True):
        assert runs.end(pid, signal.SIGKILL) == -signal.SIGKILL
        reference.check()
        assert reference.step > 0
    assert left > 0
    reference.save_beside()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside", "first", "second"]


@pytest.mark.slow
def test_200_interrupts_leave_whole_checkpoints_and_nothing_else_at_once(tmp_path, runs):
    rng = random.Random(1)
    reference = Reference(tmp_path / "run")
    for _ in range(200):
        pid = runs.start(reference.path, rng)
        time.sleep(rng.uniform(0, 0.05))
        assert runs.end(pid, signal.SIGINT) == 130
        assert unfinished(tmp_path) == []
        reference.check()
    assert reference.step > 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
