"""Programs that use the states of another program, without a copy."""

import numpy as np
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice

import graphc as g
from graphc import Program
from graphc.errors import OptionError, TornError
from graphc.ir.graph import State
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.ranks.held import held_by_name
from graphc.runtime.sharing import lent_buffers

BATCH = 8


def logits(batch, wide=6, constant=True):
    """A network with batch norm, whose statistics are states, and with a constant."""
    x = g.input("x", (batch, 5))
    h = g.tanh(g.batch_norm(g.linear(x, wide, name="first"), name="norm"))
    h = g.linear(h, 3, name="last")
    return h + g.constant(np.arange(3.0, dtype=np.float32)) if constant else h


def trained(device="cpu", accelerator=None, **options):
    loss = g.softmax_cross_entropy(logits(BATCH), g.input("t", (BATCH,), "int32"))
    plan = g.plan(loss, optimizer=g.optim.Adam(0.1), device=device, **options)
    return Program(plan, backend=backend(plan, accelerator))


def backend(plan, accelerator, lent=None, **options):
    return None if accelerator is None else GpuBackend(plan, accelerator, lent=lent, **options)


def evaluated(owner, batch=4, accelerator=None, poison=False, **options):
    device = "cpu" if accelerator is None else "cuda"
    plan = g.plan(outputs={"y": logits(batch)}, device=device, **options)
    lent = None if owner is None or accelerator is None else owner.lend(plan)
    gpu = backend(plan, accelerator, lent, poison=poison)
    return Program(plan, poison=poison, backend=gpu, owner=owner)


def feeds(seed, batch=BATCH):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, 5)).astype(np.float32)
    return {"x": x, "t": rng.integers(0, 3, batch).astype(np.int32)}


@pytest.fixture(params=["cpu", "cuda"])
def accelerator(request):
    return None if request.param == "cpu" else EmulatedDevice()


@pytest.mark.parametrize("poison", [False, True])
def test_an_evaluation_follows_the_training(accelerator, poison):
    """Each output has the bits of a program with copies of the states."""
    owner = trained("cpu" if accelerator is None else "cuda", accelerator)
    shared = evaluated(owner, accelerator=accelerator, poison=poison)
    copied = evaluated(None, accelerator=accelerator)
    x = feeds(99, 4)["x"]
    seen = set()
    for seed in range(4):
        owner.step(feeds(seed))
        copied.states.update({name: owner.states[name] for name in copied.states})
        found = shared.step(x=x)["y"]
        assert found.tobytes() == copied.step(x=x)["y"].tobytes()
        seen.add(found.tobytes())
    assert len(seen) == 4


@pytest.mark.parametrize("kernels", ["native", "numpy"])
def test_shared_states_take_no_bytes(kernels):
    owner = trained(kernels=kernels)
    shared, copied = (evaluated(each, kernels=kernels) for each in (owner, None))
    states = [state for state in copied.graph.states if state.role != "constant"]
    saved = sum(g.ir.types.align(state.type.bytes, copied.plan.alignment) for state in states)
    assert shared.arena_bytes == copied.arena_bytes - saved
    assert shared.plan.arena_bytes == copied.arena_bytes
    arena = owner._backend._arena.bytes
    for value, array in shared._backend._arrays.items():
        is_shared = isinstance(value.root, State) and value.root.role != "constant"
        assert np.shares_memory(array, arena) == is_shared


def test_constants_of_a_sharing_program_are_its_own():
    with_two = g.plan(outputs={"y": logits(4) * g.constant(np.float32([2.0, 3.0, 4.0]))})
    owner = trained()
    shared, copied = Program(with_two, owner=owner, poison=True), Program(with_two)
    copied.states.update({name: owner.states[name] for name in copied.states})
    x = feeds(0, 4)["x"]
    assert shared.step(x=x)["y"].tobytes() == copied.step(x=x)["y"].tobytes()


def test_states_are_read_and_written_through(accelerator, tmp_path):
    owner = trained("cpu" if accelerator is None else "cuda", accelerator)
    shared = evaluated(owner, accelerator=accelerator)
    assert set(shared.parameters) == set(owner.parameters)
    assert set(shared.states) < set(owner.states)
    weight = np.full_like(owner.parameters["last/weight"], 0.25)
    shared.parameters["last/weight"] = weight
    np.testing.assert_array_equal(owner.parameters["last/weight"], weight)
    shared.save(tmp_path / "part")
    owner.reset()
    assert not np.array_equal(shared.parameters["last/weight"], weight)
    shared.load(tmp_path / "part")
    np.testing.assert_array_equal(owner.parameters["last/weight"], weight)
    with pytest.raises(OptionError, match="belong to another program; reset that program"):
        shared.reset()


def test_a_step_of_a_sharing_program_waits_for_the_batch_before(accelerator):
    """In a loop over `steps`, the training has no step under way when the evaluation begins."""
    owner = trained("cpu" if accelerator is None else "cuda", accelerator)
    shared = evaluated(owner, accelerator=accelerator)
    copied = evaluated(None, accelerator=accelerator)
    x = feeds(7, 4)["x"]
    for _ in owner.steps(feeds(seed) for seed in range(3)):
        copied.states.update({name: owner.states[name] for name in copied.states})
        assert shared.step(x=x)["y"].tobytes() == copied.step(x=x)["y"].tobytes()
    assert not owner._store.pending


def test_torn_states_are_torn_for_all():
    owner = trained()
    shared = evaluated(owner)
    owner._backend.is_torn = True
    with pytest.raises(TornError):
        shared.step(x=feeds(0, 4)["x"])
    with pytest.raises(TornError):
        _ = shared.parameters["last/weight"]


def test_compile_and_bind_take_the_program():
    loss = g.softmax_cross_entropy(logits(BATCH), g.input("t", (BATCH,), "int32"))
    owner = g.compile(loss, optimizer="sgd", seed=3)
    compiled = g.compile(outputs={"y": logits(4)}, states=owner)
    bound = g.bind(g.plan(outputs={"y": logits(4)}), states=compiled)
    x = feeds(1, 4)["x"]
    owner.step(feeds(0))
    assert compiled.step(x=x)["y"].tobytes() == bound.step(x=x)["y"].tobytes()
    with pytest.raises(OptionError, match="states must be a program of"):
        g.compile(outputs={"y": logits(4)}, states=3)


def other(**options):
    return {"outputs": {"y": logits(4, **options)}}


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: other(wide=7), r"'first/weight' is f32\[7,5\], but f32\[6,5\] in the other"),
        (lambda: {"outputs": {"y": g.linear(logits(4), 2, name="new")}},
         "the other program has no state 'new/weight'; give both networks the same scopes"),
        (lambda: {"loss": g.mean(logits(4)), "optimizer": "sgd"}, "a step updates .*copy them"),
        (lambda: {**other(), "alignment": 512}, "has another layout or alignment"),
        (lambda: {**other(), "device": "h100"}, "on cpu, but the plan is for h100; plan for the"),
    ],
)  # fmt: skip
def test_states_that_cannot_be_shared_are_refused(network, message):
    with pytest.raises(OptionError, match=message):
        trained().lend(g.plan(**network()))


def test_sharded_states_are_not_shared():
    loss = g.softmax_cross_entropy(logits(BATCH), g.input("t", (BATCH,), "int32"))
    plan = g.plan(loss, optimizer="sgd", ranks=2, shard="states")
    held = held_by_name(plan.graph)
    with pytest.raises(OptionError, match="is sharded over ranks"):
        lent_buffers(g.plan(outputs={"y": logits(4)}), plan, held, lambda state: None)


def test_an_evaluation_that_runs_ahead_ends_before_states_change():
    """On a GPU with slots for outputs, the next step of a loop is under way between two batches."""
    device = EmulatedDevice()
    owner = trained("cuda", device)
    shared = evaluated(owner, accelerator=device, overlap_copies=True)
    assert shared.backend.runs_ahead
    batches = [{"x": feeds(seed, 4)["x"]} for seed in range(4)]
    weight, found = owner.parameters["last/weight"], []
    for outputs in shared.steps(batches):
        found.append(outputs["y"])
        assert owner._store.pending or len(found) == 4
        owner.parameters["last/weight"] = np.zeros_like(weight) if len(found) == 1 else weight
    owner.parameters["last/weight"] = weight
    for number in (0, 1, 3):  # the second was under way when the parameter became 0
        assert found[number].tobytes() == shared.step(batches[number])["y"].tobytes()
