"""Memory plans as JSON: round trips. The oracle runs without any plan."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans.changed_files import planned
from properties.oracle import run_plain
from properties.strategies import OPTIMIZERS, examples, networks
from properties.test_plans import bits

import graphc as g
from graphc.devices.device import KERNELS
from graphc.errors import GraphcError
from graphc.models import MODELS
from graphc.plans.memory_plan import ALLOCATE, RECOMPUTE, check_alignment
from graphc.plans.plan_file import checked_plan

RNG = np.random.default_rng(0)
FEEDS = [
    {"x": RNG.standard_normal((4, 16)).astype(np.float32), "t": RNG.integers(0, 6, 4, np.int32)}
    for _ in range(2)
]


def assert_same_plan(found, wanted):
    """All that a plan says, value by value and node by node."""
    values = dict(zip(wanted.graph.values, found.graph.values, strict=True))
    nodes = dict(zip(wanted.graph.nodes, found.graph.nodes, strict=True))
    for old, new in nodes.items():
        for name in ("op", "attributes", "output_types", "scope", "phase", "mirror", "segment",
                     "level"):  # fmt: skip
            assert getattr(new, name) == getattr(old, name), (name, old)
        assert new.inputs == tuple(values[value] for value in old.inputs)
        assert new.copy_of is (old.copy_of and nodes[old.copy_of])
    for old, new in values.items():
        assert (type(new), new.type, new.index) == (type(old), old.type, old.index)
        for name in ("name", "default", "initial", "role", "trainable"):
            assert getattr(new, name, None) == getattr(old, name, None)
        placement = wanted.placements[old]
        over = None if placement.over is None else values[placement.over]
        assert found.placements[new] == replace(placement, over=over)
    assert list(found.placements) == list(found.graph.values)
    assert list(found.graph.outputs.items()) == [
        (name, values[value]) for name, value in wanted.graph.outputs.items()
    ]
    assert found.graph.kept == {values[v] for v in wanted.graph.kept if v in values}
    assert found.workspaces == {nodes[node]: b for node, b in wanted.workspaces.items()}
    slots = [replace(slot, value=values[slot.value]) for slot in wanted.slots]
    assert found.slots == tuple(slots)
    for name in ("buffers", "strategy_bytes", "recomputation", "certificate", "settings", "device",
                 "alignment", "recompute", "allocate", "arena_bytes", "feature_map_bytes",
                 "planning_seconds"):  # fmt: skip
        assert getattr(found, name) == getattr(wanted, name), name


def assert_round_trip(wanted):
    text = wanted.to_json()
    found = checked_plan(text)
    assert found.to_json() == text
    assert found.text() == wanted.text()
    assert_same_plan(found, wanted)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("allocate", ALLOCATE)
def test_round_trip_under_every_strategy(recompute, allocate):
    assert_round_trip(planned(recompute, allocate=allocate))


@pytest.mark.parametrize(
    "options",
    [
        {"alignment": 64},
        {"precision": "bf16", "accumulate": 2},
        {"precision": "fp16", "clip_norm": 1.0},
        {"recompute": None, "max_extra_flops": 0.2},
        {"roofline": "h100"},
        {"device": "cuda", "overlap_copies": True},
    ],
)
def test_round_trip_of_every_option(options):
    assert_round_trip(planned(**options))


def test_round_trip_of_plans_without_training():
    x = g.input("x", (2, 3))
    for outputs in ([x], [g.tanh(x), x], [g.parameter("w", (3,)), g.transpose(x)]):
        assert_round_trip(g.plan(outputs=outputs))


SMALL = {
    "mlp": {"layers": 3}, "lstm": {"seq_len": 3, "layers": 2, "hidden": 16},
    "preact_resnet": {"depth": 11}, "gpt2": {"layers": 1, "width": 16, "heads": 2, "seq_len": 4},
    "unet": {"width": 4, "depth": 2, "image": 16},
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("recompute", ["none", pytest.param("sublinear", marks=pytest.mark.slow)])
def test_round_trip_of_networks(name, recompute):
    loss = MODELS[name](batch=2, **SMALL[name])
    assert_round_trip(g.plan(loss, optimizer=g.optim.Momentum(), recompute=recompute))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name"), [*enumerate(MODELS)])
def test_round_trip_of_the_zoo(number, name):
    """Policies and allocators take turns; random networks have all pairs of them."""
    recompute = RECOMPUTE[number % len(RECOMPUTE)]
    allocate = [each for each in ALLOCATE if each != "coloring"][number % (len(ALLOCATE) - 1)]
    loss = MODELS[name](batch=1)
    assert_round_trip(
        g.plan(loss, optimizer=g.optim.Adam(), recompute=recompute, allocate=allocate)
    )


@examples(40)
@given(
    networks(),
    st.sampled_from(OPTIMIZERS),
    st.sampled_from(RECOMPUTE),
    st.sampled_from(ALLOCATE),
)
def test_round_trip_of_random_networks(network, optimizer, recompute, allocate):
    options = {"optimizer": optimizer, "recompute": recompute, "allocate": allocate}
    assert_round_trip(g.plan(network.loss, outputs=network.outputs, **options))


def test_the_same_network_gives_the_same_bytes_but_for_the_last_line(text):
    again = planned().to_json()
    assert again.splitlines()[:-2] == text.splitlines()[:-2]
    assert again.splitlines()[-2].startswith('"planning_seconds": ')


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_loaded_program_steps_to_the_same_bits(kernels, tmp_path):
    plan = planned(kernels=kernels)
    g.save_plan(plan, tmp_path / "plan.json")
    programs = [g.Program(p, seed=5) for p in (plan, g.load_plan(tmp_path / "plan.json"))]
    wanted, states = run_plain(plan.graph, FEEDS, seed=5)
    if kernels == "native":
        made = programs.pop(0)
        wanted, states = [made.step(feed) for feed in FEEDS], made.states
    for program in programs:
        for feed, outputs in zip(FEEDS, wanted, strict=True):
            found = program.step(feed)
            assert {k: bits(v) for k, v in found.items()} == {
                k: bits(v) for k, v in outputs.items()
            }
        assert {k: bits(v) for k, v in program.states.items()} == {
            k: bits(v) for k, v in states.items()
        }


def test_alignments():
    assert check_alignment(64) == 64
    with pytest.raises(GraphcError):
        check_alignment(48)
