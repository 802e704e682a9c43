"""A step that raises leaves every state as it was, or says that states are torn."""

import numpy as np
import pytest
from runtime.towers import CLASSES, assert_torn, bits, feeds, interleaved

import graphc as g
from graphc import Program
from graphc.devices.device import KERNELS
from graphc.errors import FeedError, NonFiniteError, TornError

FEWEST_CALLS = {"native": 0, "numpy": 20}
"""There are more calls before the first update, and from it on; native ones run many nodes."""


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("late", CLASSES)
def test_a_label_out_of_range_changes_no_state(late, kernels):
    """Of either tower, so that one of them is behind the other's updates."""
    plan = interleaved(kernels=kernels)
    program, plain = Program(plan), Program(plan)
    for refused in (-1, CLASSES[late]):
        before = bits(program)
        bad = feeds()[f"{late}_t"].copy()
        bad[2] = refused
        with pytest.raises(FeedError, match=f"{late}_t.*{refused}.*\\[0, {CLASSES[late]}\\)"):
            program.step(feeds(**{f"{late}_t": bad}))
        assert bits(program) == before
        assert program.step(feeds(1)) == plain.step(feeds(1))
        assert bits(program) == bits(plain)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("late", CLASSES)
def test_a_computed_label_out_of_range_changes_no_state(late, kernels):
    plan = interleaved(True, kernels)
    program, plain = Program(plan), Program(plan)
    program.step(feeds(0, True))
    plain.step(feeds(0, True))
    for refused in (-1.0, float(CLASSES[late])):
        before = bits(program)
        bad = feeds(0, True)[f"{late}_t"].copy()
        bad[2] = refused
        with pytest.raises(FeedError, match=rf"the computed value .*{late}/softmax_cross"):
            program.step(feeds(0, True, **{f"{late}_t": bad}))
        assert bits(program) == before
        assert program.step(feeds(1, True)) == plain.step(feeds(1, True))
        assert bits(program) == bits(plain)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("computed", [False, True])
def test_a_number_that_is_not_finite_changes_no_state(computed, kernels):
    """Parameters of the one tower are infinite, so its values are, when the other is updated."""
    for late in CLASSES:
        program = Program(interleaved(computed, kernels), check_finite=True)
        program.step(feeds(0, computed))
        name = f"{late}/hidden/weight"
        program.parameters[name] = np.full_like(program.parameters[name], np.inf)
        before = bits(program)
        with pytest.raises(NonFiniteError, match="computed by"):
            program.step(feeds(1, computed))
        assert bits(program) == before


def raises(error):
    def call():
        raise error

    return call


def broken(program, number, error):
    """The program, of whose calls one raises; and how many calls a step has."""
    backend = program._backend
    calls = [*backend._reading, *backend._updating]
    first = len(backend._reading)
    calls[number] = raises(error)
    backend._reading, backend._updating = calls[:first], calls[first:]
    return len(calls)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_whatever_call_fails_states_are_as_before_or_torn(error, kernels, tmp_path):
    """Every call of a step fails once; from the file that was saved before, the run goes on."""
    plan, path = interleaved(kernels=kernels), tmp_path / "run.safetensors"
    plain = Program(plan)
    plain.step(feeds(0))
    plain.save(path)
    before = bits(plain)
    plain.step(feeds(1))
    after = bits(plain)
    outcomes, number, count = [], 0, 1
    while number < count:
        program = Program(plan)
        program.load(path)
        whole = program._backend._reading, program._backend._updating
        count = broken(program, number, error)
        with pytest.raises(error):
            program.step(feeds(1))
        program._backend._reading, program._backend._updating = whole
        try:
            assert bits(program) == before, number
            outcomes.append("whole")
        except TornError:
            assert_torn(program, feeds(1), tmp_path / "torn.safetensors")
            program.load(path)
            outcomes.append("torn")
        program.step(feeds(1))
        assert bits(program) == after, number
        number += 1
    assert outcomes == sorted(outcomes, reverse=True)  # whole until the first update, then torn
    assert outcomes.count("whole") == len(plain._backend._reading)
    least = FEWEST_CALLS[kernels]
    assert least < outcomes.count("whole") < count - least


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_with_late_checks_every_failing_call_leaves_the_states(error, kernels):
    """Where labels are computed behind an update, states are kept, and brought back."""
    plan = interleaved(True, kernels)
    number, count = 0, 1
    program = Program(plan)
    while number < count:
        whole = program._backend._reading, program._backend._updating
        before = bits(program)
        count = broken(program, number, error)
        with pytest.raises(error):
            program.step(feeds(number, True))
        assert bits(program) == before, number
        program._backend._reading, program._backend._updating = whole
        number += 1
    assert len(program._backend._updating) > FEWEST_CALLS[kernels]


def test_reset_makes_torn_states_whole(tmp_path):
    plan = interleaved()
    program, fresh = Program(plan, 3), Program(plan, 3)
    whole = list(program._backend._updating)
    broken(program, -1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        program.step(feeds())
    assert_torn(program, feeds(), tmp_path / "torn.safetensors")
    program._backend._updating = whole
    program.reset()
    assert bits(program) == bits(fresh)
    assert program.step(feeds()) == fresh.step(feeds())


def test_a_load_that_is_stopped_leaves_torn_states(tmp_path, monkeypatch):
    program, path = Program(interleaved()), tmp_path / "run.safetensors"
    program.step(feeds())
    program.save(path)
    saved, write, written = bits(program), program._backend.write, []

    def stopped(state, array):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(state)
        write(state, array)

    for replace in (program.reset, lambda: program.load(path)):
        written.clear()
        monkeypatch.setattr(program._backend, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            replace()
        monkeypatch.undo()
        assert_torn(program, feeds(), tmp_path / "torn.safetensors")
    with pytest.raises(g.errors.CheckpointError):
        program.load(tmp_path / "absent.safetensors")
    assert_torn(program, feeds(), tmp_path / "torn.safetensors")
    program.load(path)
    assert bits(program) == saved


def test_inference_is_never_torn():
    x = g.input("x", (4,))
    weight = g.parameter("w", (4,), initial=g.Initial("normal", 1.0))
    program = g.compile(outputs={"y": g.exp(x * weight)})
    before = bits(program)
    broken(program, -1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        program.step(x=np.ones(4, np.float32))
    assert bits(program) == before


def test_kept_states_cost_memory_only_where_a_check_is_late():
    assert Program(interleaved())._backend._kept == []
    late = Program(interleaved(computed=True))
    kept = {array.__array_interface__["data"][0] for array, _ in late._backend._kept}
    assert len(kept) == len(late.states)


def test_kept_bytes_are_those_of_the_states_or_none():
    """The plan does not count them, so the program tells of them."""
    for computed, check_finite in [(False, False), (True, False), (False, True), (True, True)]:
        plan = interleaved(computed)
        program = Program(plan, check_finite=check_finite)
        states = sum(array.nbytes for array in program.states.values())
        assert program.kept_bytes == (states if computed or check_finite else 0)
        assert program.arena_bytes == plan.arena_bytes
