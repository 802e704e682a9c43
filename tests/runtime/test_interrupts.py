"""Real Ctrl-C in real processes, at random moments of a loop of steps, saves and loads."""

import os
import random
import signal
import time
from collections import Counter

import pytest
from runtime.forked import Child
from runtime.towers import assert_torn, bits, feeds, plan_of

from graphc import Program
from graphc.errors import TornError

CYCLE = 60
"""Steps behind the saved start; then the program is loaded, and takes them again."""
SAVE_EVERY = 10
LONGEST_SECONDS = 0.02


class Run:
    """A program, the states that it has after each step of a cycle, and its saved start."""

    def __init__(self, folder, computed):
        self.folder, self.computed = folder, computed
        self.start = folder / "start.safetensors"
        self.program = Program(plan_of(computed))
        self.program.save(self.start)
        self.moments = [bits(self.program)]
        for step in range(CYCLE + 3):
            self.program.step(self.feeds(step))
            self.moments.append(bits(self.program))
        assert len({tuple(sorted(moment.items())) for moment in self.moments}) == CYCLE + 4
        self.program.load(self.start)

    def feeds(self, step):
        return feeds(step, self.computed)

    def use(self, path):
        """Operations without end, each with the steps done before it and after it."""
        while True:
            for step in range(CYCLE):
                yield step, step + 1, lambda step=step: self.program.step(self.feeds(step))
                if step % SAVE_EVERY == 0:
                    yield step + 1, step + 1, lambda: self.program.save(path)
            yield CYCLE, 0, lambda: self.program.load(self.start)

    def interrupted(self, say):
        """In a child: use the program until Ctrl-C comes, and say how it was found."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        path = self.folder / f"{os.getpid()}.safetensors"
        before = after = 0
        try:
            say("ready")
            for before, after, operation in self.use(path):  # noqa: B007 - read when stopped
                operation()
        except KeyboardInterrupt:
            return self.found(before, after, path)

    def found(self, before, after, path):
        try:
            states = bits(self.program)
        except TornError:
            torn = path.with_suffix(".torn")
            assert_torn(self.program, self.feeds(before), torn)
            self.program.load(self.start)
            assert bits(self.program) == self.moments[0]
            kind, done = "torn", 0
        else:
            done = next(n for n in (before, after) if self.moments[n] == states)
            kind = "as before" if done == before else "as after"
        for step in range(done, done + 3):
            self.program.step(self.feeds(step))
            assert bits(self.program) == self.moments[step + 1]
        self.require_whole_file(path)
        return kind

    def require_whole_file(self, path):
        if path.exists():
            self.program.load(path)
            assert bits(self.program) in self.moments


@pytest.mark.parametrize(
    ("count", "computed"),
    [
        (8, False),
        (8, True),
        pytest.param(200, False, marks=pytest.mark.slow),
        pytest.param(100, True, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_leaves_no_torn_state_unnoticed(count, computed, tmp_path):
    """After each, states are those before or after a step to the last bit, or the program says that
    they are torn until it is loaded; then the run goes on to the last bit.

    With a check behind an update no step leaves torn states, and only a stopped load does.
    """
    run, drawn = Run(tmp_path, computed), random.Random(17)
    kinds = Counter()
    for _ in range(count):
        child = Child(run.interrupted)
        assert child.hear() == "ready"
        time.sleep(drawn.uniform(0, LONGEST_SECONDS))
        os.kill(child.pid, signal.SIGINT)
        kinds[child.hear()] += 1
        child.end()
    assert kinds.total() == count
    assert kinds["as before"] + kinds["as after"] > 0
    if count >= 200:  # a step is torn in about a third of its time
        assert kinds["torn"] > 0
    assert bits(run.program) == run.moments[0]
