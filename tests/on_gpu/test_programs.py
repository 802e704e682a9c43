"""Programs on the GPU: refused steps, copies beside steps, losses of parts, recorded engines."""

import random

import numpy as np
import pytest
from models.test_zoo import SMALL
from plans.with_copies import randomly_copied
from runtime.emulated_gpu.twins import SEED
from runtime.towers import CLASSES, feeds, plan_of

import graphc as g
from graphc.errors import FeedError, NonFiniteError
from graphc.runtime.feeds import random_feeds


def states(program):
    return {name: np.asarray(array).tobytes() for name, array in program.states.items()}


@pytest.mark.parametrize("streams", [1, 3])
def test_a_label_out_of_range_changes_no_state(streams):
    program, plain = (g.bind(plan_of(device="cuda", streams=streams)) for _ in range(2))
    for step in range(4):  # call by call, captured, replayed
        for late, limit in CLASSES.items():
            before = states(program)
            bad = feeds()[f"{late}_t"].copy()
            bad[1] = limit
            with pytest.raises(FeedError, match=rf"{late}_t.*\[0, {limit}\)"):
                program.step(feeds(**{f"{late}_t": bad}))
            assert states(program) == before
        assert program.step(feeds(step)) == plain.step(feeds(step))
    assert states(program) == states(plain)


def test_a_number_that_is_not_finite_changes_no_state():
    for late in CLASSES:
        program = g.bind(plan_of(device="cuda"), check_finite=True)
        name = f"{late}/hidden/weight"
        program.parameters[name] = np.full_like(program.parameters[name], np.inf)
        before = states(program)
        with pytest.raises(NonFiniteError, match="computed by"):
            program.step(feeds(1))
        assert states(program) == before


@pytest.mark.parametrize("name", ["resnet", "gpt2"])
def test_copies_beside_steps_change_no_bit(name):
    runs = []
    for overlaps in (False, True):
        options = {"optimizer": g.optim.Adam(), "seed": SEED, "overlap_copies": overlaps}
        program = g.compile(SMALL[name](), device="cuda", **options)
        batches = [
            {source.name: array for source, array in random_feeds(program.graph, step).items()}
            for step in range(6)
        ]
        losses = [outputs["loss"].tobytes() for outputs in program.steps(batches)]
        runs.append((losses, states(program)))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", ["resnet", "gpt2"])
@pytest.mark.parametrize("options", [{}, {"cuda_graph": False}, {"poison": True}])
def test_values_on_the_host_change_no_bit(name, options):
    """Values leave at random nodes and come back at others."""
    plain = g.plan(SMALL[name](), optimizer=g.optim.Adam(), device="cuda")
    plan = randomly_copied(plain, random.Random(2), 20)
    runs = []
    for each in (plain, plan):
        program = g.bind(each, seed=SEED, **options)
        losses = [
            program.step({s.name: a for s, a in random_feeds(plain.graph, step).items()})["loss"]
            for step in range(4)
        ]
        runs.append(([loss.tobytes() for loss in losses], states(program)))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_labels_that_do_not_count(accumulate):
    """The mean is over the labels that count, of all micro-batches together."""
    rows = 8 // accumulate
    x, labels = g.input("x", (rows, 12)), g.input("t", (rows,), "int32")
    loss = g.softmax_cross_entropy(g.linear(x, 5), labels, ignore_index=-1)
    rng = np.random.default_rng(3)
    fed = {
        "x": rng.standard_normal((8, 12)).astype(np.float32),
        "t": np.array([1, -1, -1, -1, 4, 0, -1, 2], np.int32),
    }
    if accumulate > 1:
        fed = {k: array.reshape(accumulate, rows, *array.shape[1:]) for k, array in fed.items()}
    found = []
    for device in ("cpu", "cuda"):
        program = g.compile(
            loss, optimizer=g.optim.SGD(0.1), device=device, seed=SEED, accumulate=accumulate
        )
        found.append([float(program.step(fed)["loss"]) for _ in range(3)])
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_steps_of_several_sizes_in_one_arena():
    """Without padding, they have the bits of one program per size; each size is captured."""

    def build(seq_len):
        return g.models.gpt2("small", 2, 64, 4, seq_len, 2, 97, 64)

    sizes, options = (16, 64, 32), {"optimizer": g.optim.Adam(1e-2), "seed": SEED}
    family = g.family(build, {"seq_len": sizes}, device="cuda", **options)
    programs = {size: g.compile(build(size), device="cuda", **options) for size in sizes}
    current = None
    for step in range(15):
        program = programs[sizes[step % 3]]
        if current is not None:
            program.states.update(current)
        given = {source.name: x for source, x in random_feeds(program.graph, step).items()}
        assert family.step(given)["loss"].tobytes() == program.step(given)["loss"].tobytes()
        current = {name: np.asarray(array).copy() for name, array in program.states.items()}
        assert states(family) == states(program)
