"""Copies to host memory on two threads: overlap, failures, interruptions, forks, memory."""

import gc
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from plans.with_copies import copied, random_trips
from runtime import sized_networks as sized
from runtime.forked import in_child
from runtime.garbage import own_garbage

import graphc as g
from graphc.errors import FeedError, GraphcError
from graphc.ir import builder
from graphc.memory.allocate import Allocation
from graphc.models import mlp
from graphc.ops.host_copy import begin_copy_to_device, begin_copy_to_host, finish_copy
from graphc.plans.family import in_one_arena
from graphc.runtime.bind import bind_family
from graphc.runtime.cpu import copies
from graphc.runtime.feeds import random_feeds
from graphc.target import CPU_TARGET


@pytest.fixture(scope="module")
def plain():
    loss = mlp(layers=4, hidden=32, inputs=16, batch=8)
    return g.plan(loss, optimizer=g.optim.Momentum(0.1), kernels="numpy")


@pytest.fixture(scope="module")
def plan(plain):
    return copied(plain, random_trips(plain, random.Random(5), 12))


def fed(plan, step=0):
    return {source.name: array for source, array in random_feeds(plan.graph, step).items()}


def trained(plan, steps=3, **options):
    program = g.Program(plan, seed=1, **options)
    losses = [program.step(fed(plan, step))["loss"].tobytes() for step in range(steps)]
    return losses, {name: array.tobytes() for name, array in program.states.items()}


def tickets(program):
    return list(program.backend._beside._tickets.values())


def copying():
    return [t for t in threading.enumerate() if t.name.startswith("graphc copies")]


def until(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_bits_are_those_without_copies(plain, plan):
    program = g.Program(plan)
    assert program.host_bytes == plan.host_bytes > 0
    assert program.arena_bytes == plan.arena_bytes
    assert g.Program(plain).host_bytes == 0
    expected = trained(plain)
    for options in ({}, {"poison": True}, {"check_finite": True}):
        assert trained(plan, **options) == expected


def there_and_back():
    """A value that leaves and returns while others are computed."""
    x = g.input("x", (64, 64))
    h = g.tanh(x)
    out = begin_copy_to_host(h)
    y = g.exp(x)
    there = finish_copy(out)
    fetch = begin_copy_to_device(there)
    z = g.sin(y)
    back = finish_copy(fetch)
    graph = builder.trace({"y": back + z})
    return Allocation(graph, CPU_TARGET).plan("packed")


def test_nodes_run_while_a_value_is_copied():
    program = g.Program(there_and_back())
    events = []
    for ticket in tickets(program):

        def slow(ticket=ticket, copy=ticket.copy):
            time.sleep(0.05)
            copy()
            events.append(ticket.what)

        ticket.copy = slow
    backend = program.backend
    for number, call in enumerate(backend._reading):
        backend._reading[number] = lambda number=number, call=call: (call(), events.append(number))
    x = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    found = program.step(x=x)["y"]
    np.testing.assert_allclose(found, np.tanh(x) + np.sin(np.exp(x)), rtol=1e-5)
    out, back = events.index("copy_to_host"), events.index("copy_to_device")
    assert [e for e in events[:out] if isinstance(e, int)] == [0, 1, 2]  # tanh, start, exp
    assert events[out + 1 : back] == [3, 4, 5]  # wait, start, sin
    assert events[back + 1 :] == [6, 7]


def test_a_missing_wait_would_be_found(plain, monkeypatch):
    """Copies that take longer than a step show which nodes do not wait for them."""
    expected, wrong = trained(plain, 2), 0
    monkeypatch.setattr(copies.Concurrent, "ends", lambda self, node: lambda: None)
    for seed in range(6):
        program = g.Program(copied(plain, random_trips(plain, random.Random(seed), 8)), seed=1)
        for ticket in tickets(program):
            ticket.copy = lambda copy=ticket.copy: (time.sleep(5e-3), copy())
        losses = [program.step(fed(plain, step))["loss"].tobytes() for step in range(2)]
        wrong += losses != expected[0]
    assert wrong


def test_an_error_of_a_copy_reaches_the_step(plain, plan):
    program = g.Program(plan, seed=1)
    ticket = tickets(program)[3]
    copy = ticket.copy

    def fails():
        raise MemoryError("no memory")

    ticket.copy = fails
    with pytest.raises(GraphcError, match=r"copy_to_\w+ failed: no memory") as error:
        program.step(fed(plan))
    assert isinstance(error.value.__cause__, MemoryError)
    ticket.copy = copy
    program.reset()
    losses = [program.step(fed(plan, step))["loss"].tobytes() for step in range(3)]
    assert losses == trained(plain)[0]


@pytest.mark.parametrize("at", range(0, 40, 6))
def test_copies_of_an_interrupted_step_end_before_the_next(plain, plan, at):
    program = g.Program(plan, seed=1)
    for ticket in tickets(program):
        ticket.copy = lambda copy=ticket.copy: (time.sleep(2e-3), copy())
    calls = program.backend._reading
    call = calls[at]

    def interrupt():
        raise KeyboardInterrupt

    calls[at] = interrupt
    with pytest.raises(KeyboardInterrupt):
        program.step(fed(plan, 7))
    # A program of another size in the same arena could run next.
    assert not any(each._signal.locked() and not each.is_done for each in tickets(program))
    calls[at] = call
    program.reset()
    losses = [program.step(fed(plan, step))["loss"].tobytes() for step in range(2)]
    assert losses == trained(plain, 2)[0]


def test_threads_end_with_the_program(plan):
    earlier = set(copying())  # of programs that other tests still hold
    with own_garbage():
        program = g.Program(plan)
        assert set(copying()) <= earlier  # they start with the first copy
        program.step(fed(plan))
        started = set(copying()) - earlier
        assert len(started) == 2
        del program
        gc.collect()
    assert until(lambda: not any(thread.is_alive() for thread in started))


def test_a_forked_child_has_threads_of_its_own(plain, plan):
    program = g.Program(plan, seed=1)
    first = program.step(fed(plan, 0))["loss"].tobytes()

    def work():
        return [program.step(fed(plan, step))["loss"].tobytes() for step in (1, 2)]

    expected = trained(plain)[0]
    assert [first, *in_child(work)] == expected
    assert [first, *work()] == expected


def test_free_bytes_of_the_host_are_poisoned(plan):
    program = g.Program(plan, poison=True)
    host = program.backend._arena.host
    program.step(fed(plan))
    alive = np.zeros(host.size, bool)
    for buffer in plan.buffers:
        if buffer.kind == "host" and buffer.lifetime.last > len(plan.graph.nodes):
            start = buffer.offset - plan.host_start
            alive[start : start + buffer.bytes] = True
    assert (host[~alive] == 0xFF).all()


def test_fed_indices_are_checked_through_copies():
    ids = g.input("ids", (6,), "int32")
    table = g.parameter("table", (4, 3))
    back = finish_copy(begin_copy_to_device(finish_copy(begin_copy_to_host(ids))))
    graph = builder.trace({"y": g.embedding(back, 4, 3) + g.sum(table)})
    program = g.Program(Allocation(graph, CPU_TARGET).plan("packed"))
    program.step(ids=np.arange(6, dtype=np.int32) % 4)
    with pytest.raises(FeedError, match="input 'ids' contains numbers from"):
        program.step(ids=np.arange(6, dtype=np.int32))


def test_nodes_with_copies_are_timed(plan):
    measured = g.profile(plan, repeat=1)
    assert {"copy_to_host", "copy_to_device"} <= {entry.op for entry in measured.measured}


def test_programs_in_one_arena_have_their_own_host_memory():
    sizes, optimizer = sized.SIZES["gpt2"], g.optim.SGD(0.1)
    family = g.plan_family(sized.gpt2, sizes, optimizer=optimizer)
    plans = [copied(p, random_trips(p, random.Random(1), 6)) for p in family.plans]
    found = in_one_arena(family.sizes, plans)
    programs = [bind_family(each, sized.PAD["gpt2"]) for each in (found, family)]
    assert {each.host_bytes for each in found.plans} != {0}
    for step, size in enumerate(2 * sizes["seq_len"]):
        given = sized.feeds("gpt2", size, step)
        losses = [program.step(given)["loss"].tobytes() for program in programs]
        assert losses[0] == losses[1]


ROOT = Path(__file__).parents[3]

STEPS = """
import gc
import random
import tracemalloc
import graphc as g
from graphc.models import mlp
from graphc.runtime.feeds import random_feeds
from plans.with_copies import copied, random_trips

loss = mlp(layers=2, hidden=200, inputs=200, batch=128)
plain = g.plan(loss, optimizer=g.optim.Momentum(), kernels="numpy", reorder=False)
plan = copied(plain, random_trips(plain, random.Random(5), 12))
program = g.Program(plan)
feeds = {source.name: array for source, array in random_feeds(plan.graph, 0).items()}
program.step(feeds)
gc.collect()
tracemalloc.start()
for _ in range(2):
    program.step(feeds)  # what Python keeps for its next objects is counted before
tracemalloc.reset_peak()
before, _ = tracemalloc.get_traced_memory()
for _ in range(10):
    program.step(feeds)
print(tracemalloc.get_traced_memory()[1] - before)
"""


def test_nothing_is_allocated_in_a_step():
    """In a process of its own, as in tests/runtime/test_program.py; an array has 100 KiB."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 16 * 2**10
