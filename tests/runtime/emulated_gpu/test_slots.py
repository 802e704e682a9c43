"""Programs whose copies overlap with steps, on an emulated GPU."""

import numpy as np
import pytest
from runtime.emulated_gpu.networks import bits, branches, fed, on_gpu

import graphc as g
from graphc.errors import FeedError


def plan_of(**options):
    return g.plan(branches(), optimizer=g.optim.Adam(1e-2), device="cuda", **options)


def trained(plan, **options):
    """Losses and states after some steps."""
    program, _ = on_gpu(plan, **options)
    losses = [program.step(fed(plan, step))["loss"] for step in range(3)]
    return losses, bits(program)


def test_steps_with_slots():
    """Copies beside steps change no bit, and nothing is captured or allocated more often."""
    for options in ({}, {"recompute": "sublinear"}, {"allocate": "sharing"}):
        plans = [plan_of(**options), plan_of(**options, overlap_copies=True)]
        batches = [fed(plans[0], step) for step in range(5)]
        for seed in range(3):
            (plain, _), (program, device) = (on_gpu(plan, seed) for plan in plans)
            expected = [outputs["loss"] for outputs in plain.steps(batches)]
            assert [outputs["loss"] for outputs in program.steps(batches)] == expected
            assert bits(program) == bits(plain)
            assert device.counts["copies"] == 5 * len(plans[0].graph.inputs)
            assert device.counts["captures"] == 1
            assert device.allocations == [plans[1].arena_bytes]


@pytest.mark.parametrize("options", [{"poison": True}, {"check_finite": True}, {"streams": 3}])
def test_slots_under_every_way_to_run(options):
    plain, with_slots = plan_of(), plan_of(overlap_copies=True)
    assert trained(with_slots, **options) == trained(plain)


def doubled(**options):
    """A program that changes no state."""
    x = g.input("x", (3,))
    plan = g.plan(outputs={"x": x * 2.0}, device="cuda", **options)
    return on_gpu(plan)


def test_outputs_leave_while_the_next_step_runs():
    """The next step is submitted before the outputs of one are taken; each gets its own."""
    batches = [{"x": np.full(3, i, np.float32)} for i in range(6)]
    for overlaps in (False, True):
        program, device = doubled(overlap_copies=overlaps)
        steps, found = program.steps(batches), []
        for outputs in steps:
            found.append(float(outputs["x"][0]))
            submitted = 1 + device.counts["replays"]  # the first one is run call by call
            assert submitted == min(6, len(found) + overlaps), len(found)
        assert found == [2.0 * i for i in range(6)]


def test_a_loop_that_runs_ahead_mixes_with_others():
    program, _ = doubled(overlap_copies=True)

    def batches(start):
        return ({"x": np.full(3, start + i, np.float32)} for i in range(4))

    found = []
    for one, other in zip(program.steps(batches(1)), program.steps(batches(10)), strict=True):
        between = program.step(x=np.full(3, 100.0, np.float32))
        found.append((one["x"][0], other["x"][0], between["x"][0]))
    assert found == [(2 * (1 + i), 2 * (10 + i), 200) for i in range(4)]
    next(left := program.steps(batches(50)))
    left.close()
    assert program.step(x=np.ones(3, np.float32))["x"][0] == 2


def test_a_fault_shows_behind_the_outputs_of_the_steps_before():
    good, bad = {"x": np.ones(3, np.float32)}, {"x": np.ones(2, np.float32)}
    for number in range(4):
        steps = doubled(overlap_copies=True)[0].steps([*[good] * number, bad])
        seen = [next(steps)["x"][0] for _ in range(number)]
        with pytest.raises(FeedError, match="shape"):
            next(steps)
        assert seen == [2.0] * number


def drained(program, device):
    """The program on a GPU that is done with all copies before anything else is asked for."""
    submit, departures = program._backend.submit, program._backend._departures

    def at_once(staged):
        outputs = submit(staged)
        device.synchronize(device.record(departures.stream))
        return outputs

    program._backend.submit = at_once
    return program


@pytest.mark.parametrize("fast", [False, True])
def test_a_step_inside_a_loop_that_runs_ahead(fast):
    """Each gets its own outputs, however early copies arrive."""
    program, device = doubled(overlap_copies=True)
    if fast:
        drained(program, device)
    found = []
    for outputs in program.steps({"x": np.full(3, i, np.float32)} for i in range(5)):
        between = program.step(x=np.full(3, 100.0, np.float32))
        found.append((float(outputs["x"][0]), float(between["x"][0])))
    assert found == [(2.0 * i, 200.0) for i in range(5)]


def test_loops_of_different_lengths_that_run_ahead():
    program = drained(*doubled(overlap_copies=True))

    def batches(n, length):
        return ({"x": np.full(3, 100 * n + i, np.float32)} for i in range(length))

    loops = [program.steps(batches(n, length)) for n, length in enumerate((7, 3, 5))]
    found = {n: [] for n in range(len(loops))}
    order = [0, 0, 1, 2, 0, 2, 1, 0, 0, 2, 2, 1, 0, 2, 0]
    for n in order:
        found[n].append(float(next(loops[n])["x"][0]))
    assert found == {
        n: [2.0 * (100 * n + i) for i in range(length)] for n, length in enumerate((7, 3, 5))
    }
