"""Steps on an emulated GPU that are refused or stopped: states as before, or torn."""

import numpy as np
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice
from runtime.towers import CLASSES, assert_torn, bits, feeds, plan_of

from graphc import Program
from graphc.errors import FeedError, NonFiniteError, TornError
from graphc.runtime.gpu.backend import GpuBackend


@pytest.fixture(autouse=True)
def updates_apart(monkeypatch):
    """Updates run where their gradients are: there are more places at which a step can stop."""
    monkeypatch.setattr("graphc.compiler.pipeline.updates_together", lambda graph, *_: graph)


def on_gpu(seed=0, streams=1, **options):
    plan = plan_of(device="cuda", streams=streams)
    device = EmulatedDevice(seed)
    return Program(plan, backend=GpuBackend(plan, device, **options)), device


def test_a_label_out_of_range_changes_no_state():
    program, device = on_gpu()
    plain, _ = on_gpu()
    for step in range(3):  # call by call, captured, replayed
        for late, limit in CLASSES.items():
            before, calls = bits(program), device.counts["calls"]
            bad = feeds()[f"{late}_t"].copy()
            bad[1] = limit
            with pytest.raises(FeedError, match=rf"{late}_t.*\[0, {limit}\)"):
                program.step(feeds(**{f"{late}_t": bad}))
            assert bits(program) == before
            assert device.counts["calls"] == calls
        assert program.step(feeds(step)) == plain.step(feeds(step))
        assert bits(program) == bits(plain)


def test_a_number_that_is_not_finite_changes_no_state():
    for late in CLASSES:
        program, _ = on_gpu(check_finite=True)
        name = f"{late}/hidden/weight"
        program.parameters[name] = np.full_like(program.parameters[name], np.inf)
        before = bits(program)
        with pytest.raises(NonFiniteError, match="computed by"):
            program.step(feeds(1))
        assert bits(program) == before


def failing(device, method, number, error):
    """The device's method, which raises the next time but `number`."""
    own, done = getattr(device, method), []

    def call(*given):
        done.append(given)
        if len(done) == number + 1:
            raise error
        return own(*given)

    setattr(device, method, call)
    return done


def outcome(program, path):
    """Whether states are whole; where they are torn, they are brought back from the file."""
    try:
        return bits(program)
    except TornError:
        assert_torn(program, feeds(1), path.with_name("torn.safetensors"))
        program.load(path)
        return None


@pytest.mark.parametrize("options", [{}, {"streams": 3}, {"poison": True}], ids=str)
def test_whatever_launch_fails_states_are_as_before_or_torn(options, tmp_path):
    """Every launch of the first step fails once; the run then goes on, where it has to from a file.

    What was launched before may run late, on streams that nothing has joined.
    """
    plain, device = on_gpu(**options)
    path = tmp_path / "run.safetensors"
    plain.save(path)
    before = bits(plain)
    plain.step(feeds(1))
    after, launches = bits(plain), device.counts["calls"]
    outcomes = []
    for number in range(launches):
        program, device = on_gpu(seed=number, **options)
        failing(device, "run", number, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            program.step(feeds(2))
        found = outcome(program, path)
        assert found in (None, before), number
        outcomes.append("torn" if found is None else "whole")
        program.step(feeds(1))
        assert bits(program) == after, number
    assert outcomes == sorted(outcomes, reverse=True)
    assert min(outcomes.count("torn"), outcomes.count("whole")) > 5


def test_kept_bytes_are_those_of_the_states_or_none():
    for check_finite in (False, True):
        program, _ = on_gpu(check_finite=check_finite)
        states = sum(array.nbytes for array in program.states.values())
        assert program.kept_bytes == (states if check_finite else 0)


def test_with_finite_numbers_checked_every_failing_launch_leaves_the_states():
    program, device = on_gpu(check_finite=True)
    program.step(feeds())
    run, before = device.run, bits(program)
    for number in range(device.counts["calls"]):
        failing(device, "run", number, RuntimeError)
        with pytest.raises(RuntimeError):
            program.step(feeds(1))
        device.run = run
        assert bits(program) == before, number


def test_a_capture_that_is_stopped_changes_no_state():
    program, device = on_gpu()
    plain, _ = on_gpu()
    program.step(feeds())
    plain.step(feeds())
    for number in range(device.counts["calls"]):
        before, run = bits(program), device.run
        failing(device, "run", number, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            program.step(feeds(1))
        device.run = run
        assert bits(program) == before, number
    assert program.step(feeds(1)) == plain.step(feeds(1))
    assert bits(program) == bits(plain)


def test_a_replay_that_fails_is_torn(tmp_path):
    program, _ = on_gpu()
    path = tmp_path / "run.safetensors"
    program.save(path)
    for step in range(2):
        program.step(feeds(step))
    whole = program._backend._replay

    def fails():
        raise RuntimeError("launch failed")

    program._backend._replay = fails
    with pytest.raises(RuntimeError, match="launch failed"):
        program.step(feeds(2))
    program._backend._replay = whole
    assert outcome(program, path) is None
    fresh, _ = on_gpu()
    assert program.step(feeds()) == fresh.step(feeds())
    assert bits(program) == bits(fresh)


def test_a_fault_that_shows_when_outputs_are_taken_is_torn(tmp_path):
    """CUDA tells of a fault to who waits for it; a wait that is interrupted is no fault."""
    program, device = on_gpu()
    plain, _ = on_gpu()
    path = tmp_path / "run.safetensors"
    program.save(path)
    program.step(feeds())
    plain.step(feeds())
    synchronize = device.synchronize
    failing(device, "synchronize", 0, RuntimeError)
    with pytest.raises(RuntimeError):
        program.step(feeds(1))
    device.synchronize = synchronize
    assert outcome(program, path) is None
    program.step(feeds())
    failing(device, "synchronize", 1, KeyboardInterrupt)  # behind the one of pinned memory
    with pytest.raises(KeyboardInterrupt):
        program.step(feeds(1))
    device.synchronize = synchronize
    plain.step(feeds(1))
    assert bits(program) == bits(plain)
