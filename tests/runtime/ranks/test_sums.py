"""Collectives of several ranks, which are threads here, against sums that NumPy makes in order."""

import gc
import re
import threading
import time
import weakref

import ml_dtypes
import numpy as np
import pytest
from runtime.garbage import own_garbage
from runtime.ranks.threads import on_ranks

import graphc as g
from graphc import Program
from graphc.errors import GraphError, NonFiniteError, RanksError
from graphc.ir import builder
from graphc.ops.collective import AllReduce, Arrival, RanksAttributes
from graphc.passes.data_parallel import DataParallel
from graphc.plans.exchange_bytes import room_bytes
from graphc.runtime.ranks import sums
from graphc.runtime.ranks.lane import Lane
from graphc.runtime.ranks.together import by_rank_0
from graphc.runtime.ranks.wire import Alone

DTYPES = {"float64": np.float64, "float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def drawn(ranks, count, dtype):
    return np.random.default_rng(count).normal(size=(ranks, count)).astype(DTYPES[dtype])


def in_order(values):
    """((x0 + x1) + x2) + ..., 16-bit numbers in float32."""
    wide = values.astype(np.float32) if values.itemsize == 2 else values
    total = wide[0].copy()
    for each in wide[1:]:
        total = total + each
    return total.astype(values.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 4, 30, 200_010])
def test_all_have_the_sum_in_the_order_of_ranks(ranks, count, dtype):
    values = drawn(ranks, count, dtype)

    def work(wire):
        y = values[wire.rank].copy()
        sums.all_reduce(wire, sums.Scratch(ranks), y)()
        return y

    for found in on_ranks(ranks, work):
        assert found.tobytes() == in_order(values).tobytes()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_parts_are_scattered_and_gathered(ranks):
    values = drawn(ranks, 60_000 * ranks, "float32")

    def work(wire):
        part = np.empty(60_000, np.float32)
        sums.reduce_scatter(wire, sums.Scratch(ranks), values[wire.rank], part)()
        whole = np.empty(60_000 * ranks, np.float32)
        sums.all_gather(wire, part, whole)()
        root = values[wire.rank].copy()
        sums.broadcast(wire, root, ranks - 1)()
        return whole, root

    for whole, root in on_ranks(ranks, work):
        assert whole.tobytes() == in_order(values).tobytes()
        assert root.tobytes() == values[-1].tobytes()


def test_scratch_has_the_stated_size():
    for ranks in (2, 3, 7, 64, 1000):
        scratch = sums.Scratch(ranks)
        assert scratch.arrived.nbytes + scratch.wide.nbytes == scratch.bytes == room_bytes(ranks)


@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_a_plan_prints_bytes_outside_the_arena(device):
    build = lambda: g.mean(g.linear(g.input("x", (4, 8)), 2))  # noqa: E731
    plans = [
        g.plan(build(), optimizer=g.optim.SGD(), ranks=ranks, device=device) for ranks in (1, 3)
    ]
    assert "outside the arena" not in plans[0].text()
    told = re.search(r"outside the arena +([\d,]+) bytes = ", plans[1].text())
    if device != "cpu":
        assert told is None  # NCCL's bytes show once it is connected
        return
    found = on_ranks(3, lambda wire: Program(plans[1], lane=Lane(wire)).communication_bytes)
    assert found == [int(told[1].replace(",", ""))] * 3


def test_a_graph_of_collectives_computes_what_numpy_does():
    ranks = 3
    x = g.input("x", (6, 5), "float64")
    outputs = {
        "sum": g.all_reduce(x, ranks),
        "part": g.reduce_scatter(x, ranks),
        "all": g.all_gather(x * 2.0, ranks),
        "root": g.broadcast(x, ranks, root=2),
        "x": x + 0.0,
    }
    values = np.random.default_rng(0).normal(size=(ranks, 6, 5))
    for allocate in ("none", "packed"):
        plan = g.plan(outputs=outputs, allocate=allocate)

        def work(wire, plan=plan):
            return Program(plan, poison=True, lane=Lane(wire)).step(x=values[wire.rank])

        for rank, found in enumerate(on_ranks(ranks, work)):
            total = (values[0] + values[1]) + values[2]
            np.testing.assert_array_equal(found["sum"], total)
            np.testing.assert_array_equal(found["part"], total[2 * rank : 2 * rank + 2])
            np.testing.assert_array_equal(found["all"], (2 * values).reshape(18, 5))
            np.testing.assert_array_equal(found["root"], values[2])
            np.testing.assert_array_equal(found["x"], values[rank])


def test_gradients_are_those_of_the_sum_of_losses():
    """By finite differences of one rank's operand."""
    ranks, step = 2, 1e-6
    x = g.input("x", (4,), "float64")
    weights = g.constant(np.array([1.0, -2.0, 0.5, 3.0]))
    y = g.all_gather(g.sin(g.reduce_scatter(g.all_reduce(x * x, ranks) * x, ranks)), ranks)
    loss = g.sum(y * weights)
    plan = g.plan(outputs={"loss": loss, "dx": g.gradient(loss, [x])[0]})
    values = np.random.default_rng(1).normal(size=(ranks, 4))

    def losses(given):
        found = on_ranks(
            ranks, lambda wire: Program(plan, lane=Lane(wire)).step(x=given[wire.rank])
        )
        return sum(float(each["loss"]) for each in found), found

    _, found = losses(values)
    for rank in range(ranks):
        for place in range(4):
            moved = np.zeros_like(values)
            moved[rank, place] = step
            slope = (losses(values + moved)[0] - losses(values - moved)[0]) / (2 * step)
            assert found[rank]["dx"][place] == pytest.approx(slope, rel=1e-6, abs=1e-7)


class Silent(Alone):
    """A wire whose other rank never answers."""

    size = 2

    def __init__(self):
        self.never = threading.Event()

    def exchange(self, sent, starts, lengths, received):
        self.never.wait()


def test_a_rank_whose_others_are_gone_says_so_within_the_limit():
    plan = g.plan(outputs=[g.all_reduce(g.input("x", (4,)), 2)])
    program = Program(plan, lane=Lane(Silent(), time_limit=0.1))
    for _ in range(2):
        with pytest.raises(RanksError, match=r"rank 0 of 2 waited 0\.1 s for the others in all_r"):
            program.step(x=np.zeros(4, np.float32))


def test_a_file_may_take_longer_to_write_than_ranks_wait_for_each_other():
    def work(wire):
        wrote = threading.Event()
        lane = Lane(wire, 1.0)
        by_rank_0(lane, lambda: (time.sleep(2.0), wrote.set()))
        assert wrote.is_set() == (wire.rank == 0)
        with pytest.raises(ZeroDivisionError if wire.rank == 0 else RanksError, match="division"):
            by_rank_0(lane, lambda: 1 / 0)
        return lane.run("what comes next", lambda: wire.tell(b"%d" % wire.rank))

    assert on_ranks(2, work) == [[b"0", b"1"]] * 2


def test_an_interrupt_amid_a_file_is_told_to_all():
    def interrupted():
        raise KeyboardInterrupt

    def work(wire):
        lane = Lane(wire)
        with pytest.raises(KeyboardInterrupt if wire.rank == 0 else RanksError) as error:
            by_rank_0(lane, interrupted)
        assert wire.rank == 0 or "rank 0 failed: KeyboardInterrupt" in str(error.value)
        return lane.run("what comes next", lambda: wire.tell(b"%d" % wire.rank))

    assert on_ranks(2, work) == [[b"0", b"1"]] * 2


def test_resources_are_released_with_their_program():
    """Its lane is that of all programs of a process, and goes on."""
    plan = g.plan(outputs=[g.all_reduce(g.input("x", (4,)), 2)])

    def work(wire):
        lane = Lane(wire)
        program = Program(plan, lane=lane)
        program.step(x=np.ones(4, np.float32))
        backend = weakref.ref(program._backend)
        del program
        gc.collect()
        return backend() is None, lane._tickets.data

    with own_garbage():
        assert on_ranks(2, work) == [(True, {})] * 2


def test_errors_of_collectives_are_reported():
    plan = g.plan(outputs=[g.all_reduce(g.input("x", (4,)), 2)])
    both_compared = threading.Barrier(2)

    def work(wire):
        program = Program(plan, lane=Lane(wire))
        both_compared.wait()
        if wire.rank == 1:
            wire.abort()
            return
        with pytest.raises(
            RanksError, match="rank 0 of 2 lost its connection to the others in all_reduce: a rank"
        ):
            program.step(x=np.zeros(4, np.float32))

    on_ranks(2, work)


@pytest.mark.parametrize("bad", [(0, 1), (1,)], ids=["all", "one"])
def test_a_step_interrupted_during_collectives_is_the_last(bad, monkeypatch):
    """Else the next one would take the results of exchanges that it has not begun."""
    monkeypatch.setattr(DataParallel, "_bucket_bytes", lambda *_: 1.0)
    h = g.input("x", (4, 8), "float64")
    for layer in range(4):
        with g.scope(f"layer{layer}"):
            h = g.linear(h, 8)
            h = g.tanh(h) if layer else g.sqrt(h * h)  # whose gradient at 0 is no number
    plan = g.plan(g.mean(h * h), optimizer=g.optim.SGD(0.1), ranks=2)
    batch = {"x": np.random.default_rng(0).normal(size=(4, 8))}

    def work(wire):
        program = Program(plan, lane=Lane(wire, 2.0), check_finite=True)
        with pytest.raises(NonFiniteError if wire.rank in bad else RanksError):
            program.step({"x": np.zeros((4, 8))} if wire.rank in bad else batch)
        with pytest.raises(RanksError, match="Restart all ranks") as error:
            program.step(batch)
        return str(error.value)

    for rank, told in enumerate(on_ranks(2, work)):
        assert ("was interrupted during its collectives" in told) == (rank in bad)


def test_a_program_has_as_many_ranks_as_its_plan():
    plan = g.plan(outputs=[g.all_reduce(g.input("x", (4,)), 2)])
    with pytest.raises(
        RanksError, match="the plan is for 2 ranks, but this is rank 0 of 1; start 2"
    ):
        Program(plan)


def test_all_collectives_of_a_plan_are_between_as_many_ranks():
    x = g.input("x", (4,))
    plan = g.plan(outputs=[g.all_reduce(x, 2), g.all_gather(x, 3)])
    with pytest.raises(
        RanksError, match=r"all_reduce has 2 ranks, but all_gather has 3; .* same number"
    ):
        Program(plan)


def test_only_an_arrival_reads_bytes_in_flight():
    text = g.format_graph(g.plan(outputs={"y": g.all_reduce(g.input("x", (4,)), 2)}).graph)
    assert "arrival" in text
    with pytest.raises(
        GraphError, match=r"relu reads .* while all_reduce is still running; read the"
    ):
        g.parse_graph(text.replace("arrival", "relu"))
    begun = re.search(r"(%\S+)\b[^\n]* all_reduce", text)[1]
    line = re.search(r"[^\n]*arrival[^\n]*\n", text)[0]
    arrived = re.search(r"%\w+", line)[0]
    with pytest.raises(
        GraphError, match="output 'y' is the unfinished result of all_reduce; return"
    ):
        g.parse_graph(text.replace(line, "").replace(arrived, begun))


def test_a_collective_may_be_awaited_twice():
    x = g.input("x", (4,))
    begun = builder.apply(AllReduce, x, attributes=RanksAttributes(2)).output
    plan = g.plan(outputs=[builder.apply(Arrival, begun).output + i for i in range(2)])

    def work(wire):
        program = Program(plan, lane=Lane(wire))
        return [program.step(x=np.full(4, k, np.float32)) for k in range(2)]

    for steps in on_ranks(2, work):
        for k, found in enumerate(steps):
            assert [*found["output0"], *found["output1"]] == [2 * k] * 4 + [2 * k + 1] * 4
