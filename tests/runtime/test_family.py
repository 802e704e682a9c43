"""Programs of several sizes in one arena."""

import functools
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
from runtime.garbage import own_garbage
from runtime.sized_networks import BATCH, BETWEEN, BUILDS, IGNORED, PAD, SIZES, feeds, gpt2

import graphc as g
from graphc import Program
from graphc.compiler import families
from graphc.errors import (
    BudgetError,
    FeedError,
    NonFiniteError,
    OptionError,
    TornError,
)


@functools.cache
def alone(name, size, optimizer):
    """A program for one size."""
    return g.compile(BUILDS[name](size), optimizer=optimizer)


def made(name, optimizer, **options):
    return g.family(BUILDS[name], SIZES[name], pad=PAD[name], optimizer=optimizer, **options)


def states(program):
    return {name: array.copy() for name, array in program.states.items()}


@pytest.mark.parametrize("name", BUILDS)
def test_a_padded_step_has_the_loss_and_gradients_of_the_unpadded_one(name):
    """With a learning rate of 1, parameters change by the gradients."""
    optimizer = g.optim.SGD(1.0)
    family = made(name, optimizer)
    for size in BETWEEN[name]:
        program, given = alone(name, size, optimizer), feeds(name, size, 1)
        family.reset()
        program.reset()
        before = states(family)
        loss, expected = family.step(given)["loss"], program.step(given)["loss"]
        assert abs(loss - expected) < 1e-12
        for state, array in program.states.items():
            assert np.abs(family.states[state] - array).max() < 1e-12
        assert any((before[state] != array).any() for state, array in family.states.items())


@pytest.mark.parametrize("name", BUILDS)
def test_mixed_steps_equal_those_of_one_program_per_shape(name):
    """Bit for bit without padding; the order of sums differs with it."""
    optimizer = g.optim.Adam(1e-2)
    family = made(name, optimizer)
    (sizes,) = SIZES[name].values()
    for choices in (sizes, (*sizes, *BETWEEN[name])):
        family.reset()
        random, expected = np.random.default_rng(3), states(family)
        for step in range(30):
            size = int(random.choice(choices))
            program, given = alone(name, size, optimizer), feeds(name, size, step)
            program.states.update(expected)
            loss = program.step(given)["loss"]
            expected = states(program)
            found = family.step(given)["loss"]
            assert abs(found - loss) < 1e-9 * max(1, abs(loss))
        if choices is sizes:
            assert {n: a.tobytes() for n, a in family.states.items()} == {
                n: a.tobytes() for n, a in expected.items()
            }
        for state, array in family.states.items():
            np.testing.assert_allclose(array, expected[state], rtol=1e-9, atol=1e-9)


def test_the_smallest_size_that_holds_the_feeds_runs():
    family = made("gpt2", "sgd")
    assert family.arena_bytes == max(plan.arena_bytes for plan in family.plan.plans)
    assert family.sizes == ({"seq_len": 8}, {"seq_len": 16}, {"seq_len": 24})
    for length, size in ((1, 8), (8, 8), (9, 16), (16, 16), (17, 24), (24, 24)):
        assert family.chosen(feeds("gpt2", length, 0)) is family.program(seq_len=size)
    memory = [family.program(**size).backend._arena.bytes for size in family.sizes]
    assert all(np.shares_memory(memory[0], other) for other in memory)
    assert "Family of 3 sizes on cpu" in repr(family)


def test_a_size_of_several_inputs_holds_all_of_them():
    """Sizes are compared by elements; an input without a number must match exactly."""

    def build(rows, columns):
        x = g.input("x", (rows, columns))
        return {"y": x * 2.0, "z": g.input("z", (columns,)) + 1.0}

    family = g.family(
        build, [{"rows": 4, "columns": 2}, {"rows": 2, "columns": 4}, {"rows": 4, "columns": 4}],
        pad={"x": 7.0},
    )  # fmt: skip

    def step(rows, columns, wide):
        return family.step(x=np.ones((rows, columns), np.float32), z=np.zeros(wide, np.float32))

    assert step(3, 1, 2)["y"].tolist() == [[2, 14], [2, 14], [2, 14], [14, 14]]
    assert step(1, 2, 4)["y"].shape == (2, 4)
    assert step(3, 4, 4)["y"].shape == (4, 4)
    with pytest.raises(FeedError, match=r"'z' with the shape \[3\].*f32\[2\], f32\[4\].*to pad"):
        step(3, 1, 3)
    with pytest.raises(FeedError, match=r"'x' with the shape \[5, 1\].*add a size that holds it"):
        step(5, 1, 4)


def test_constants_of_each_size_survive_the_steps_of_others():
    """A table whose contents depend on the size, beside one that all sizes share."""

    def build(rows):
        x = g.input("x", (rows, 3))
        own = g.constant(np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) + 0.5)
        shared = g.constant(np.array([1, 2, 3], np.float32))
        return {"y": g.tanh(x) * own + shared}

    for poison in (False, True):
        family = g.family(build, {"rows": (40, 2, 7)}, poison=poison)
        for rows in (2, 7, 40, 7, 2, 40):
            x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
            expected = g.compile(outputs=build(rows)).step(x=x)["y"]
            assert family.step(x=x)["y"].tobytes() == expected.tobytes()


def test_poisoned_steps_have_the_same_bits():
    plain, poisoned = made("bert", "adam"), made("bert", "adam", poison=True)
    for step, length in enumerate((24, 5, 8, 17, 16)):
        given = feeds("bert", length, step)
        assert plain.step(given)["loss"] == poisoned.step(given)["loss"]


def test_dropout_draws_new_numbers_in_each_step():
    """The step counter is a state of the family."""

    def build(rows):
        x = g.dropout(g.input("x", (rows, 16)), 0.5)
        return g.mean(g.linear(x, 1)) * 0.0 + g.mean(x)

    family = g.family(build, {"rows": (8, 16)}, optimizer="sgd")
    program = g.compile(build(8), optimizer="sgd")
    ones = {rows: np.ones((rows, 16), np.float32) for rows in (8, 16)}
    expected = [program.step(x=ones[8])["loss"] for _ in range(3)]
    found = [family.step(x=ones[rows])["loss"] for rows in (8, 16, 8)]
    assert found[0] == expected[0]
    assert found[2] == expected[2] != expected[0]


def test_micro_batches_are_weighted_by_their_counts():
    """A step with two micro-batches has the loss of one batch with the labels of both."""
    family = made("gpt2", g.optim.SGD(1.0), accumulate=2)
    parts = [feeds("gpt2", 11, seed) for seed in (4, 5)]
    parts[1]["labels"][:, 3:] = IGNORED
    given = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    program = g.compile(gpt2(11), optimizer=g.optim.SGD(1.0), accumulate=2)
    assert abs(family.step(given)["loss"] - program.step(given)["loss"]) < 1e-12
    single = alone("gpt2", 11, g.optim.SGD(1.0))
    single.reset()
    initial, losses, counts = states(single), [], []
    for part in parts:
        single.states.update(initial)
        losses.append(single.step(part)["loss"])
        counts.append((part["labels"] != IGNORED).sum())
    family.reset()
    assert abs(family.step(given)["loss"] - np.average(losses, weights=counts)) < 1e-12


def test_checkpoints_do_not_depend_on_the_sizes(tmp_path):
    family = made("gpt2", "adam")
    family.step(feeds("gpt2", 9, 0))
    family.save(tmp_path / "states.safetensors", {"epoch": "1"})
    assert g.read_notes(tmp_path / "states.safetensors") == {"epoch": "1"}
    other = g.family(gpt2, [{"seq_len": 32}], optimizer="adam")
    other.load(tmp_path / "states.safetensors")
    assert {n: a.tobytes() for n, a in other.states.items()} == {
        n: a.tobytes() for n, a in family.states.items()
    }
    family.reset()
    assert (family.states["embedding/token"] != other.parameters["embedding/token"]).any()
    with pytest.raises(OptionError, match="belong to another program"):
        family.program(seq_len=8).reset()


def test_steps_yields_the_outputs_of_each_batch():
    family, other = made("gpt2", "sgd"), made("gpt2", "sgd")
    batches = [feeds("gpt2", length, length) for length in (3, 24, 12)]
    expected = [other.step(batch)["loss"] for batch in batches]
    assert [outputs["loss"] for outputs in family.steps(iter(batches))] == expected
    steps = other.steps([batches[0], feeds("gpt2", 25, 0)])
    assert next(steps)["loss"] < expected[0]
    with pytest.raises(FeedError, match="no size of the family holds"):
        next(steps)
    for wrong in (None, 5):
        with pytest.raises(FeedError, match="iterable of mappings"):
            family.steps(wrong)
    with pytest.raises(FeedError, match="feeds must map names"):
        next(family.steps([[1]]))


def test_an_evaluation_uses_the_states_of_a_family():
    """A program of its own size, without a copy of the states."""

    def build(rows):
        x = g.input("x", (rows, 6))
        return g.linear(g.tanh(g.linear(x, 5, name="first")), 2, name="last")

    family = g.family(lambda rows: g.mean(build(rows) ** 2), {"rows": (4, 8)}, optimizer="sgd")
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    for rows in (4, 8):
        evaluation = g.compile(outputs={"y": build(3)}, states=family.program(rows=rows))
        family.step(x=x[:rows])
        copied = g.compile(outputs={"y": build(3)})
        copied.states.update(dict(family.states))
        assert evaluation.step(x=x[:3])["y"].tobytes() == copied.step(x=x[:3])["y"].tobytes()
        assert evaluation.arena_bytes < copied.arena_bytes


def test_a_reset_sets_all_step_counters_to_0():
    family = made("gpt2", "sgd")
    for size in SIZES["gpt2"]["seq_len"]:
        family.step(feeds("gpt2", size, 1))
    programs = [family.program(**size) for size in family.sizes]
    assert all("1 step done" in repr(program) for program in programs)
    family.reset()
    assert all("0 steps done" in repr(program) for program in programs)


def test_an_evaluation_is_freed_with_its_arena():
    family = g.family(gpt2, [{"seq_len": 8}], pad=PAD["gpt2"])
    shared = family.program(seq_len=8)
    with own_garbage():
        program = g.compile(gpt2(8), training=False, states=shared)
        backend = weakref.ref(program._backend)
        del program
        gc.collect()
        assert backend() is None


def test_an_interrupted_update_tears_all_sizes(monkeypatch):
    family = made("gpt2", "sgd")
    small = family.program(seq_len=8)

    def interrupt():
        raise KeyboardInterrupt

    calls = small.backend._updating
    monkeypatch.setattr(small.backend, "_updating", [calls[0], interrupt, *calls[1:]])
    with pytest.raises(KeyboardInterrupt):
        family.step(feeds("gpt2", 8, 0))
    monkeypatch.undo()
    for length in (8, 24):
        with pytest.raises(TornError):
            family.step(feeds("gpt2", length, 0))
    family.reset()
    for length in (8, 24):
        family.step(feeds("gpt2", length, 0))


def test_copies_of_states_are_shared():
    """With `check_finite`, a step keeps copies of the states: one set for all sizes."""
    family = made("gpt2", "adam", check_finite=True)
    sizes = [family.program(**size) for size in family.sizes]
    assert family.kept_bytes == sum(array.nbytes for array in family.states.values())
    assert {program.kept_bytes for program in sizes} == {family.kept_bytes}
    family.parameters["embedding/position"] = np.full((32, 16), 1e308)
    before = states(family)
    for length in (8, 9, 24):
        with pytest.raises(NonFiniteError, match="NaN or infinity"):
            family.step(feeds("gpt2", length, 0))
    assert {n: a.tobytes() for n, a in family.states.items()} == {
        n: a.tobytes() for n, a in before.items()
    }


MEMORY = """
import gc, re, sys, tracemalloc
import numpy as np
import graphc as g

def build(batch, width=512):
    x, labels = g.input("x", (batch, 256)), g.input("labels", (batch,), "int32")
    for layer in range(6):
        x = g.relu(g.linear(x, width, name=f"layer{layer}"))
    return g.softmax_cross_entropy(g.linear(x, 10, name="last"), labels, ignore_index=-100)

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

def feeds(batch):
    return {"x": np.ones((batch, 256), np.float32), "labels": np.zeros(batch, np.int32)}

options = dict(pad={"x": 0, "labels": -100}, optimizer="adam", kernels=sys.argv[1])
g.family(lambda batch: build(batch, 32), {"batch": (4, 8)}, **options).step(feeds(3))  # load code
tracemalloc.start()
gc.collect()
gc.freeze()  # later collections look only at what is new
before = resident()
family = g.family(build, {"batch": (1024, 2048, 2560)}, **options)
arrays = [t.size for t in tracemalloc.take_snapshot().filter_traces(
    [tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)]).traces]
for batch in (1024, 1025, 2560):
    family.step(feeds(batch))
gc.collect()
grown = resident() - before
small = g.family(lambda batch: build(batch, 128), {"batch": (32, 48, 64)}, **options)
batches = [feeds(batch) for batch in (32, 31, 48, 33, 64, 63, 64)]
for feed in batches:
    small.step(feed)
gc.collect()
tracemalloc.reset_peak()
start, _ = tracemalloc.get_traced_memory()
for step in range(200):
    small.step(batches[step % 7])
    if step % 7 == 6:
        gc.collect()  # cycles of frames
gc.collect()
end, peak = tracemalloc.get_traced_memory()
print(family.arena_bytes, sum(arrays), end - start, peak - start, grown)
"""


@pytest.mark.parametrize("kernels", ["native", pytest.param("numpy", marks=pytest.mark.slow)])
def test_two_hundred_mixed_steps_allocate_nothing_beside_one_arena(kernels):
    """Less than 24 KiB at any moment, where a padded input would take 64 KiB. Arrays and resident
    memory are those of one arena."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, kernels], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    arena, arrays, grown, peak, resident = map(int, done.stdout.split())
    assert arena <= arrays < 1.01 * arena + 2**20
    assert grown < 4 * 2**10
    assert peak < 24 * 2**10
    assert resident < 1.5 * arena


def test_every_size_within_a_budget_recomputes_only_what_it_must():
    sizes = {"seq_len": (8, 16, 24, 32)}
    free = g.plan_family(gpt2, sizes, optimizer="sgd")
    least = g.plan_family(gpt2, [{"seq_len": 32}], optimizer="sgd", recompute="recursive")
    budget = (least.arena_bytes + free.arena_bytes) // 2
    family = g.plan_family(gpt2, sizes, optimizer="sgd", budget=budget)
    assert family.arena_bytes <= budget < free.arena_bytes
    counts = [plan.recomputation.nodes for plan in family.plans]
    fit = [plan.arena_bytes <= budget for plan in free.plans]
    assert [count == 0 for count in counts] == fit
    assert fit[0]
    assert not fit[-1]
    table = str(family).splitlines()
    assert table[0].split() == ["size", "arena", "recomputed", "extra", "time"]
    assert [line.split()[0] for line in table[1:-1]] == [f"seq_len={n}" for n in (8, 16, 24, 32)]
    found = family.as_json()
    assert found["arena_bytes"] == max(row["arena_bytes"] for row in found["sizes"])
    assert [row["recomputed_nodes"] for row in found["sizes"]] == counts
    with pytest.raises(BudgetError, match=r"^seq_len=8: "):
        g.plan_family(gpt2, sizes, optimizer="sgd", budget=1000)


def test_a_budget_includes_the_constants_of_other_sizes(monkeypatch):
    def build(rows):
        h = g.input("x", (rows, 64))
        for layer in range(8):
            h = g.tanh(g.linear(h, 64, name=f"layer{layer}"))
        table = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
        return g.mean(h * g.constant(table))

    alone = g.plan(build(64), optimizer="sgd")
    family = g.plan_family(build, {"rows": (64, 60)}, optimizer="sgd", budget=alone.arena_bytes)
    assert family.arena_bytes <= alone.arena_bytes
    assert family.plans[0].recomputation.nodes > 0
    with pytest.raises(BudgetError) as least:
        g.plan(build(64), optimizer="sgd", budget=1000)
    asked = least.value.least_bytes + 1000
    with pytest.raises(BudgetError) as refused:
        g.plan_family(build, {"rows": (64, 60)}, optimizer="sgd", budget=asked)
    told = str(refused.value)
    assert f"rows=64: no plan within {asked:,} bytes" in told
    assert "15,360 bytes = 15.00 KiB are constants of other sizes" in told
    assert refused.value.least_bytes > asked
    monkeypatch.setattr(families, "ROUNDS", 1)
    with pytest.raises(BudgetError, match="the constants of all sizes change with their plans"):
        g.plan_family(build, {"rows": (64, 60)}, optimizer="sgd", budget=alone.arena_bytes)


def test_smaller_batches_of_one_program_are_padded():
    """`Program.steps` pads the last batch of an epoch; `step` and other inputs stay strict."""
    program, reference = (g.compile(gpt2(16), optimizer=g.optim.SGD(1.0)) for _ in range(2))
    whole = feeds("gpt2", 16, 0)
    last = {name: array[:1] for name, array in feeds("gpt2", 16, 1).items()}
    losses = [outputs["loss"] for outputs in program.steps([whole, last], pad=PAD["gpt2"])]
    fed = {"tokens": np.zeros((BATCH, 16), np.int32), "labels": np.full((BATCH, 16), IGNORED)}
    for name, array in last.items():
        fed[name][:1] = array
    assert losses == [reference.step(whole)["loss"], reference.step(fed)["loss"]]
    assert {n: a.tobytes() for n, a in program.states.items()} == {
        n: a.tobytes() for n, a in reference.states.items()
    }
    with pytest.raises(FeedError, match="shapes are fixed"):
        next(program.steps([last]))
    with pytest.raises(FeedError, match="'labels' must be"):
        next(program.steps([last], pad={"tokens": 0}))
    with pytest.raises(FeedError, match="no input 'token'"):
        program.steps([last], pad={"token": 0})
    assert isinstance(program, Program)
