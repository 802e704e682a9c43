"""One program in several threads and processes: every step is whole, and in turn."""

import contextlib
import itertools
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice
from runtime.forked import in_child
from runtime.towers import bits, feeds, plan_of
from safetensors.numpy import load_file

import graphc as g
from graphc import Program
from graphc.errors import GpuUnavailable, ProgramBusy, TornError
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.turns import Turns

THREADS = 4


def made(device, plan=None):
    plan = plan or plan_of(device=device)
    backend = GpuBackend(plan, EmulatedDevice()) if device == "cuda" else None
    return Program(plan, backend=backend)


def together(*works):
    """All works in threads that start at once; what they give, or the first thing they raise."""
    start = threading.Barrier(len(works))

    def run(work):
        start.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(run, work) for work in works]]


def doubled(device):
    """What comes out is told by what went in; large enough for NumPy to let other threads run."""
    x = g.input("x", (200, 200))
    return g.plan(outputs={"y": g.tanh(g.exp(x) * 2.0) + x}, device=device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_thread_gets_the_outputs_of_its_own_feeds(device):
    plan, rounds = doubled(device), 15 if device == "cpu" else 3
    given = [np.full((200, 200), i / THREADS, np.float32) for i in range(THREADS)]
    alone = made(device, plan)
    expected = [alone.step(x=x)["y"].tobytes() for x in given]
    program = made(device, plan)

    def ask(x):
        one = [program.step(x=x)["y"].tobytes() for _ in range(rounds)]
        return one + [found["y"].tobytes() for found in program.steps([{"x": x}] * rounds)]

    found = together(*(lambda x=x: ask(x) for x in given))
    assert found == [[wanted] * 2 * rounds for wanted in expected]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_steps_of_several_threads_train_as_steps_in_a_row(device):
    """The same feeds everywhere: whoever comes first, the losses and the states are those."""
    rounds = 20 if device == "cpu" else 4
    plain, program = made(device), made(device)
    expected = [plain.step(feeds())["loss"].item() for _ in range(THREADS * rounds)]
    work = [lambda: [program.step(feeds())["loss"].item() for _ in range(rounds)]] * THREADS
    found = [loss for losses in together(*work) for loss in losses]
    assert len(set(expected)) == len(expected)
    assert sorted(found) == sorted(expected)
    assert bits(program) == bits(plain)


def test_a_file_saved_during_a_step_is_consistent(tmp_path):
    rounds = 60
    plain, program = made("cpu", None), made("cpu", None)
    moments = [bits(plain)]
    for _ in range(rounds):
        plain.step(feeds())
        moments.append(bits(plain))
    path, done = tmp_path / "run.safetensors", threading.Event()

    def train():
        for _ in range(rounds):
            program.step(feeds())
        done.set()

    def save():
        found = []
        while not (done.is_set() and found):
            program.save(path)
            found.append(moments.index({n: a.tobytes() for n, a in load_file(path).items()}))
        return found

    _, found = together(train, save)
    assert found == sorted(found)
    assert bits(program) == moments[-1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_program_that_is_called_from_its_own_step_says_that_it_is_busy(device):
    program = made(device)
    plain = made(device)
    path = "never.safetensors"
    for use in (
        lambda: program.step(feeds()),
        lambda: next(program.steps([feeds()])),
        lambda: dict(program.parameters),
        lambda: program.save(path),
        program.reset,
    ):
        stage, program._backend.stage = program._backend.stage, lambda _, use=use: use()
        with pytest.raises(ProgramBusy, match=r"already running a step.*call the program after"):
            program.step(feeds())
        program._backend.stage = stage
    assert not os.path.exists(path)
    assert program.step(feeds()) == plain.step(feeds())
    assert bits(program) == bits(plain)


def test_a_signals_handler_never_sees_the_middle_of_a_step():
    """It reads the states between two steps, or is told that the program is busy."""
    plain, program = made("cpu", None), made("cpu", None)
    moments = [bits(plain)]
    rounds = 300
    for _ in range(rounds):
        plain.step(feeds())
        moments.append(bits(plain))
    seen = []

    def handler(*_):
        try:
            seen.append(moments.index(bits(program)))
        except ProgramBusy:
            seen.append(None)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        for _ in range(rounds):
            program.step(feeds())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert None in seen
    assert bits(program) == moments[-1]


def test_threads_that_come_first_in_a_forked_child_take_turns_too(monkeypatch):
    """Both see that they are in another process, and look again, before either has its turn."""
    turns, child = Turns(on_gpu=False), os.getpid() + 1
    begun, both = threading.Event(), [threading.Barrier(2) for _ in range(3)]
    looks = itertools.count()

    def process():
        look = next(looks)
        if look < 4:
            both[look // 2].wait()
        if look == 3:
            begun.wait()
        return child

    def work():
        begun.set()
        with contextlib.suppress(threading.BrokenBarrierError):
            both[2].wait(0.2)
            return "both at once"
        return "alone"

    monkeypatch.setattr(os, "getpid", process)
    assert together(*[lambda: turns.take(work)] * 2) == ["alone"] * 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_may_use_the_program_they_are_for(device):
    """A step taken while a batch is made has outputs of its own, and so has the one before it."""
    plan = doubled(device)
    alone, program = made(device, plan), made(device, plan)
    given = [np.full((200, 200), i / 8, np.float32) for i in range(4)]
    expected = [alone.step(x=x)["y"].tobytes() for x in given]
    between = []

    def batches():
        for x in given:
            yield {"x": x}
            between.append(program.step(x=given[0])["y"].tobytes())

    assert [found["y"].tobytes() for found in program.steps(batches())] == expected
    assert between == [expected[0]] * len(given)


def test_a_forked_child_has_threads_of_its_own():
    """Those of the parent's pool are not in it: a step that waited for them would never end."""
    x = g.input("x", (512, 512))
    program = g.compile(outputs=[g.matmul(x, x), g.tanh(x)], threads=2)
    fed = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32) * 0.1
    expected = program.step(x=fed)
    for found in (in_child(lambda: program.step(x=fed)), program.step(x=fed)):
        assert all((found[name] == expected[name]).all() for name in expected)


def test_a_forked_child_has_a_copy_of_its_own():
    plain, program = made("cpu", None), made("cpu", None)
    program.step(feeds(0))
    moments = []
    for step in range(3):
        plain.step(feeds(step))
        moments.append(bits(plain))

    def go_on():
        for step in (1, 2):
            program.step(feeds(step))
        return bits(program)

    assert in_child(go_on) == moments[2]
    assert bits(program) == moments[0]
    assert go_on() == moments[2]


def forked_within(program, number):
    """A child that is forked while another thread has made so many calls of a step; what its
    states are, and those after a reset and a step."""
    reached, go = threading.Event(), threading.Event()

    def wait():
        reached.set()
        go.wait()

    backend = program._backend
    whole = backend._reading, backend._updating
    calls = [*backend._reading, *backend._updating]
    first = len(backend._reading)
    backend._reading = [*calls[:first], *([wait] if number == first else [])]
    backend._updating = calls[first:]
    if number > first:
        backend._updating.insert(number - first, wait)
    thread = threading.Thread(target=program.step, args=(feeds(),))
    thread.start()
    reached.wait()

    def child():
        backend._reading, backend._updating = whole
        try:
            found = bits(program)
        except TornError:
            found = "torn"
        program.reset()
        program.step(feeds())
        return found, bits(program)

    found = in_child(child)
    go.set()
    thread.join()
    backend._reading, backend._updating = whole
    return found


def test_a_child_that_is_forked_within_a_step_knows_whether_states_are_torn():
    plain, program = made("cpu", None), made("cpu", None)
    initial = bits(plain)
    plain.step(feeds())
    after = bits(plain)
    reading = len(program._backend._reading)
    assert forked_within(program, reading) == (initial, after)
    program.reset()
    assert forked_within(program, reading + 30) == ("torn", after)
    assert bits(program) == after


def test_a_gpus_program_in_a_forked_child_says_what_to_do():
    program, plain = made("cuda"), made("cuda")
    program.step(feeds())
    plain.step(feeds())
    name = next(iter(program.parameters))

    def use():
        found = []
        for call in (
            lambda: program.step(feeds()),
            lambda: next(program.steps([feeds()])),
            lambda: program.parameters[name],
            lambda: program.save("never.safetensors"),
            program.reset,
        ):
            try:
                call()
            except GpuUnavailable as error:
                found.append(str(error))
        return found

    found = in_child(use)
    assert len(found) == 5
    assert all("was forked" in text and "get_context('spawn')" in text for text in found)
    assert program.step(feeds(1)) == plain.step(feeds(1))
    assert bits(program) == bits(plain)
