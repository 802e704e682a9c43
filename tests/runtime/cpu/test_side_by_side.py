"""Rows on several streams: each runs once, behind what it waits for, and beside what it may."""

import ctypes
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from runtime.cpu.test_step_table import scaled  # noqa: F401 - a fixture
from runtime.forked import in_child

import graphc as g
from graphc.errors import FeedError, GraphcError
from graphc.models import inception_v3, lstm, two_tower
from graphc.plans.streams import StreamSlot
from graphc.runtime.cpu.native import Rows
from graphc.runtime.cpu.onednn.primitive import Argument, Execution
from graphc.runtime.cpu.side_by_side import SideBySide, side_by_side
from graphc.runtime.cpu.step_table import WORK_A_THREAD, StepTable, openmp, pool_of
from graphc.runtime.feeds import random_feeds

pytestmark = pytest.mark.skipif(openmp() is None, reason="libgomp is missing")

PRIMITIVE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)


class Calls:
    """Calls of Python in a table, in the place of oneDNN's primitives: number n runs `run(n)`."""

    def __init__(self, threads, run):
        self.table = StepTable(pool_of(threads))
        self.function = PRIMITIVE(lambda number, *_: run(number - 1) or 0)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value
        self.count = 0

    def add(self, rows, threads=1):
        """So many calls more, as those of a node."""
        first = len(self.table)
        for _ in range(rows):
            self.count += 1
            call = Execution(
                self.address, self.count, 0, (Argument * 1)(), 1, threads, (self.function,)
            )
            self.table.add_primitive(call)
        return [Rows(self.table, first, len(self.table))]


def some_nodes(rng, count, streams):
    """Slots of nodes that wait for some of those before them on other streams."""
    slots = {}
    for node in range(count):
        stream = rng.randrange(streams)
        others = [n for n in range(node) if slots[n].stream != stream]
        waits = rng.sample(others, min(len(others), rng.choice((0, 0, 1, 1, 2))))
        slots[node] = StreamSlot(stream, tuple(sorted(waits)))
    return slots


def order_of(slots):
    return {node: number for number, node in enumerate(slots)}


def before(slots):
    """Of each node all that has to be over when it starts."""
    found, last = {}, {}
    for node, slot in slots.items():
        own = {*slot.waits, *([last[slot.stream]] if slot.stream in last else [])}
        found[node] = own.union(*(found[other] for other in own))
        last[slot.stream] = node
    return found


@pytest.mark.parametrize("seed", range(60))
def test_every_call_runs_once_and_behind_what_it_waits_for(seed):
    rng = random.Random(seed)
    slots = some_nodes(rng, rng.randrange(2, 40), rng.randrange(2, 6))
    events, node_of, lock = [], {}, threading.Lock()

    def run(call):
        with lock:
            events.append((node_of[call], call, "begin"))
        time.sleep(rng.choice((0, 0, 1e-4, 3e-4)))
        with lock:
            events.append((node_of[call], call, "end"))

    made, calls = Calls(rng.randrange(2, 5), run), {}
    for node in slots:
        kind, first = rng.random(), made.count
        if kind < 0.2:
            calls[node] = []  # a concatenation in place
        else:  # some want all threads, and run alone
            calls[node] = made.add(rng.randrange(1, 4), 2 if kind < 0.3 else 1)
        node_of |= dict.fromkeys(range(first, made.count), node)
    found = side_by_side(calls, order_of(slots), slots)
    for _ in range(3):
        events.clear()
        for call in found:
            call()
        assert sorted(call for _, call, what in events if what == "end") == list(node_of)
        ended, needs = set(), before(slots)
        of_node = {node: {c for c, n in node_of.items() if n == node} for node in slots}
        for node, call, what in events:
            if what == "end":
                ended.add(call)
                continue
            own = {other for other in of_node[node] if other < call}
            assert own.union(*(of_node[other] for other in needs[node])) <= ended


def test_calls_of_two_streams_run_at_the_same_time():
    """Each waits for the other in the middle; one after another they would wait until it ends."""
    meeting = threading.Barrier(2, timeout=20)
    calls = Calls(2, lambda call: meeting.wait() and None)
    slots = {node: StreamSlot(node % 2, ()) for node in range(6)}
    (call,) = side_by_side({node: calls.add(1) for node in slots}, order_of(slots), slots)
    call()
    assert not meeting.broken
    assert call.rows == 6


def test_one_thread_keeps_the_order_of_the_plan():
    seen = []
    calls, slots = Calls(1, seen.append), some_nodes(random.Random(3), 30, 4)
    found = side_by_side({node: calls.add(1) for node in slots}, order_of(slots), slots)
    assert all(isinstance(call, Rows) for call in found)
    for call in found:
        call()
    assert seen == list(range(30))


@pytest.mark.parametrize("work", [1, 1000 * WORK_A_THREAD])
def test_pieces_of_kernels_are_shared_and_done_once(scaled, work):  # noqa: F811
    arrays = [np.arange(1000.0) / (3 + n) for n in range(3)]
    wanted = [array.copy() for array in arrays]
    table, calls, slots = StepTable(pool_of(3)), {}, {}
    for row in range(30):
        table.add_kernel(scaled, [arrays[row % 3].ctypes.data], [3 + row], 1000, work)
        calls[row], slots[row] = [Rows(table, row, row + 1)], StreamSlot(row % 3, ())
        wanted[row % 3][:] = wanted[row % 3] * (3 + row) + np.arange(1000)
    (call,) = side_by_side(calls, order_of(slots), slots)
    assert isinstance(call, SideBySide)
    call()
    for array, expected in zip(arrays, wanted, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_a_primitive_that_fails_is_told_and_ends_the_call():
    """What waits for it does not run; nobody waits without an end."""
    seen = []

    def run(call):
        seen.append(call)
        return int(call == 2)

    calls = Calls(3, run)
    slots = {
        0: StreamSlot(0, ()), 1: StreamSlot(1, ()), 2: StreamSlot(0, ()), 3: StreamSlot(0, ()),
        4: StreamSlot(1, (3,)),
    }  # fmt: skip
    (call,) = side_by_side({node: calls.add(1) for node in slots}, order_of(slots), slots)
    for _ in range(2):
        seen.clear()
        with pytest.raises(GraphcError, match="failed to execute call 2 of the step"):
            call()
        assert {0, 2} <= {*seen} <= {0, 1, 2}


NETWORKS = {
    "two_tower": lambda: two_tower(batch=4, layers=2, width=6, rows=9, words=3),
    "inception_v3": lambda: inception_v3(batch=1, image=75, width=2, classes=3),
    "lstm": lambda: lstm(layers=2, seq_len=3, hidden=4, inputs=3, classes=5, batch=2),
}


@pytest.mark.parametrize("streams", [2, 4])
@pytest.mark.parametrize(
    "name", ["two_tower", "lstm", pytest.param("inception_v3", marks=pytest.mark.slow)]
)
def test_steps_have_the_bits_of_one_stream(name, streams):
    plans = [
        g.plan(NETWORKS[name](), optimizer=g.optim.Momentum(0.1), streams=count, budget=budget)
        for count, budget in ((1, None), (streams, 2**30))
    ]
    feeds = {source.name: array for source, array in random_feeds(plans[0].graph, 5).items()}
    plain, spread = (g.bind(plan, threads=3) for plan in plans)
    calls = [*spread._backend._reading, *spread._backend._updating]
    assert sum(call.rows for call in calls if isinstance(call, SideBySide)) > 20
    for _ in range(10):
        losses = {program.step(feeds)["loss"].tobytes() for program in (plain, spread)}
        assert len(losses) == 1
        for state, array in plain.states.items():
            assert array.tobytes() == spread.states[state].tobytes()


def two_chains():
    """A plan of two chains that have nothing in common, all of small kernels."""
    outputs = {}
    for name in ("first", "second"):
        value = g.input(name, (5, 7))
        for _ in range(4):
            value = g.cumsum(g.tanh(value), axis=1)
        outputs[name] = value
    return g.plan(outputs=outputs, streams=2, budget=2**20, device="cpu")


def step_in_a_child():
    """Whether a forked child takes the same step as its parent, which has called nothing else."""
    plan = two_chains()
    feeds = {source.name: array for source, array in random_feeds(plan.graph, 5).items()}
    program = g.bind(plan, threads=2)
    assert all(isinstance(call, SideBySide) for call in program._backend._reading)
    wanted = bits_of(program, feeds)
    return in_child(lambda: bits_of(program, feeds)) == wanted


def bits_of(program, feeds):
    return {name: array.tobytes() for name, array in program.step(feeds).items()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_threads_of_its_own():
    """In a process that has run no other table."""
    command = "from runtime.cpu.test_side_by_side import step_in_a_child as s; print(s())"
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", command], env=os.environ | {"PYTHONPATH": paths},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "True\n"


def test_where_integers_are_checked_nodes_keep_their_order():
    """A check stands before the first reader of the plan's order alone."""
    rows = g.cast(g.input("rows", (3,)) * 2.0, "int32")
    table = g.input("table", (8, 4))
    outputs = {f"y{n}": g.tanh(g.gather(table, rows)) * float(n) for n in range(1, 4)}
    program = g.bind(g.plan(outputs=outputs, streams=3, budget=2**20, device="cpu"), threads=2)
    assert not any(isinstance(call, SideBySide) for call in program._backend._reading)
    with pytest.raises(FeedError):
        program.step(rows=np.full(3, 9.0, np.float32), table=np.zeros((8, 4), np.float32))
