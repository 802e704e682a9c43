"""Ranks that hold parts of parameters and moments, against ranks that hold them whole."""

from dataclasses import replace

import numpy as np
import pytest
from passes.test_data_parallel import drawn, mlp, norms, trained
from runtime.ranks.threads import on_ranks

import graphc as g
from graphc import Program
from graphc.errors import OptionError, PlanError, TextError
from graphc.ir.shards import Shard
from graphc.ir.types import align
from graphc.models import gpt2, preact_resnet
from graphc.ops.collective import AllGather, AllReduce, Collective, ReduceScatter
from graphc.plans.check.check_figures import check_figures
from graphc.runtime.ranks.lane import Lane

OPTIMIZERS = {
    "sgd": g.optim.SGD(0.1),
    "momentum": g.optim.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "adam": g.optim.Adam(1e-2),
    "adamw": g.optim.AdamW(1e-2),
    "adagrad": g.optim.Adagrad(0.1),
    "rmsprop": g.optim.RMSProp(1e-2, momentum=0.9, centered=True),
    "lion": g.optim.Lion(1e-2),
    "groups": g.optim.Groups([("bias", g.optim.SGD(0.1))], g.optim.AdamW(1e-2)),
}


def both(build, ranks, **options):
    """The plan with whole states and the one with shards."""
    return [g.plan(build(), ranks=ranks, shard=shard, **options) for shard in ("none", "states")]


def assert_equal_bits(whole, sharded, ranks, axis=0):
    feeds, _ = drawn(whole.graph, ranks, axis)
    expected, found = (trained(plan, feeds, ranks) for plan in (whole, sharded))
    for (losses, states), (other_losses, other_states) in zip(expected, found, strict=True):
        assert losses == other_losses
        assert sorted(states) == sorted(other_states)
        for name, state in states.items():
            assert state.tobytes() == other_states[name].tobytes()


@pytest.mark.parametrize("kernels", ["numpy", pytest.param("native", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shards_change_no_bit(name, kernels):
    plans = both(lambda: mlp(4), 3, optimizer=OPTIMIZERS[name], kernels=kernels)
    assert_equal_bits(*plans, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 2},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"allocate": "none"},
        {"reorder": False},
        {"recompute": "sublinear"},
        {"recompute": "cheap"},
        {"fuse": True},
    ],
    ids=str,
)
def test_shards_change_no_bit_under_any_option(options):
    plans = both(lambda: mlp(4, "float32"), 2, optimizer=g.optim.Adam(1e-2), **options)
    if options.get("precision") == "fp16":
        # The flag of an overflow is the same, the norm that it comes from is summed by parts.
        for plan in plans:
            assert plan.settings["precision"] == "fp16"
    assert_equal_bits(*plans, 2, axis=int("accumulate" in options))


def test_a_row_has_no_name_that_a_state_has():
    def build():
        x = g.input("x", (4, 8), "float64")
        own = [g.parameter(name, (8,), "float64", trainable=name != "shard1") for name in names]
        return g.mean(g.tanh(own[0] * x + own[1]))

    names = ("shard0", "shard1")
    plans = both(build, 2, optimizer=g.optim.SGD(0.1))
    assert [s.name for s in plans[1].graph.states if isinstance(s.initial, Shard)] == ["shard2"]
    assert_equal_bits(*plans, 2)


SMALL = {"layers": 2, "width": 16, "heads": 2, "seq_len": 8, "vocab": 20, "drop": 0.0}
NETWORKS = {
    "norms": lambda: norms(4),
    "preact_resnet": lambda: preact_resnet(11, batch=2, image=8),
    "gpt2": lambda: gpt2(batch=2, **SMALL),
}


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("norms", 2),
        ("gpt2", 3),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in [("norms", 3), ("gpt2", 2)]),
        *(pytest.param("preact_resnet", ranks, marks=pytest.mark.slow) for ranks in (2, 3)),
    ],
)
def test_networks_with_norms_and_views_train_the_same(name, ranks):
    assert_equal_bits(*both(NETWORKS[name], ranks, optimizer=g.optim.AdamW(1e-3)), ranks)


def test_a_clipped_step_is_that_of_whole_states_but_for_the_order_of_the_norm():
    whole, sharded = both(lambda: mlp(4), 3, optimizer=g.optim.Adam(1e-2), clip_norm=0.1)
    feeds, _ = drawn(whole.graph, 3, 0)
    expected, found = trained(whole, feeds, 3), trained(sharded, feeds, 3)
    np.testing.assert_allclose(found[0][0], expected[0][0], rtol=1e-13)
    for name, state in expected[0][1].items():
        np.testing.assert_allclose(found[0][1][name], state, rtol=1e-11, atol=1e-14)
        assert {states[name].tobytes() for _, states in found} == {found[0][1][name].tobytes()}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow), 8])
def test_a_rank_holds_an_nth_of_the_states(ranks):
    build = lambda: gpt2(layers=1, width=64, heads=2, seq_len=16, batch=2, vocab=100)  # noqa: E731
    whole, sharded = both(build, ranks, optimizer=g.optim.Adam())
    held = [
        sum(s.type.bytes for s in plan.graph.states if s.role in ("parameter", "moment"))
        for plan in (whole, sharded)
    ]
    rows = [s for s in sharded.graph.states if s.role == "parameter"]
    padding = sum(3 * s.type.dtype.itemsize * s.initial.padding for s in rows)
    assert ranks * held[1] == held[0] + padding
    assert padding <= 3 * 4 * len(rows) * (ranks - 1)
    total = {
        kind: sum(n.op.sent_bytes(n) for n in plan.graph.nodes if isinstance(n.op, kind))
        for plan in (whole, sharded)
        for kind in (AllReduce, ReduceScatter, AllGather)
        if plan is sharded or kind is AllReduce
    }
    scattered, gathered = total[ReduceScatter], total[AllGather]
    parameters = sum(s.type.bytes for s in whole.graph.states if s.role == "parameter")
    assert scattered == gathered
    assert scattered == pytest.approx(parameters * (ranks - 1) / ranks, rel=1e-3)


@pytest.mark.parametrize("allocate", ["none", "inplace", "packed"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gathered_parameters_are_not_feature_maps(precision, allocate):
    given = {"precision": precision, "allocate": allocate, "optimizer": g.optim.Adam()}
    whole, sharded = both(lambda: mlp(4), 4, **given)
    assert "gathered" not in whole.bytes_by_kind
    rows = [node.output for node in sharded.graph.nodes if isinstance(node.op, AllGather)]
    assert rows
    there = {sharded.placements[row].buffer for row in rows}
    there |= {sharded.placements[n.output].buffer for v in rows for n in waits(sharded, v)}
    assert {b.index for b in sharded.buffers if b.kind == "gathered"} == there
    sizes = (align(sharded.buffers[index].bytes, sharded.alignment) for index in there)
    assert sharded.bytes_by_kind["gathered"] == sum(sizes)
    # The forward pass keeps the same maps, from other places of the same parameters.
    assert sharded.bytes_by_kind["feature map"] == whole.bytes_by_kind["feature map"]
    check_figures(sharded)
    kinds = dict.fromkeys(there, "feature map")
    buffers = [replace(b, kind=kinds.get(b.index, b.kind)) for b in sharded.buffers]
    with pytest.raises(PlanError, match="kind"):
        check_figures(replace(sharded, buffers=tuple(buffers)))


def waits(plan, value):
    """The nodes that wait for a value."""
    return [plan.graph.nodes[n] for n in plan.graph.uses[value] if plan.graph.nodes[n].op.awaits]


def test_sixteen_bits_are_gathered_where_nothing_else_is_read():
    _, plan = both(lambda: mlp(4, "float32"), 2, optimizer=g.optim.Adam(), precision="bf16")
    gathered = [n.output.type.dtype.name for n in plan.graph.nodes if isinstance(n.op, AllGather)]
    assert set(gathered) == {"bfloat16"}
    largest = max(
        v.type.bytes for v in plan.graph.values if v.type.dtype.name == "float32" and v.node
    )
    rows = [n.inputs[0].type.bytes for n in plan.graph.nodes if isinstance(n.op, ReduceScatter)]
    assert largest <= max(rows)  # no float32 master is whole


@pytest.mark.slow
def test_a_budget_holds_with_shards_and_changes_no_bit():
    build = lambda: preact_resnet(20, batch=4, image=16)  # noqa: E731
    _, plain = both(build, 2, optimizer=g.optim.Adam())
    budget = plain.arena_bytes * 4 // 5
    tight = g.plan(build(), ranks=2, shard="states", optimizer=g.optim.Adam(), budget=budget)
    assert tight.arena_bytes <= budget
    assert_equal_bits(plain, tight, 2)


def test_a_file_goes_from_any_number_of_ranks_to_any_other(tmp_path):
    plans = {
        n: g.plan(mlp(12 // n), optimizer=g.optim.Adam(1e-2), ranks=n, shard="states")
        for n in (1, 2, 3)
    }
    path = tmp_path / "states.safetensors"

    def run(ranks, before):
        def work(wire):
            program = Program(plans[ranks], poison=True, lane=Lane(wire))
            if before is not None:
                program.load(before)
            held = dict(program.states)
            program.save(path)
            return held

        return on_ranks(ranks, work)

    ran = g.Program(plans[1])
    rng = np.random.default_rng(0)
    ran.step(x=rng.normal(size=(12, 8)), labels=rng.integers(0, 5, 12).astype(np.int32))
    expected = dict(ran.states)
    ran.save(path)
    for ranks in (2, 3, 2, 1):
        for states in run(ranks, path):
            assert sorted(states) == sorted(expected)
            for name, state in expected.items():
                assert states[name].tobytes() == state.tobytes()


def test_states_begin_and_are_assigned_as_on_one_rank():
    plan = g.plan(mlp(4), optimizer=g.optim.Adam(), ranks=3, shard="states")
    alone = g.Program(g.plan(mlp(4), optimizer=g.optim.Adam()), seed=7)
    name = "layer1/weight"

    def work(wire):
        program = Program(plan, seed=7, lane=Lane(wire))
        begun = dict(program.states)
        program.parameters[name] = 2 * begun[name]
        changed = dict(program.states)
        program.reset()
        return begun, changed, dict(program.states)

    for begun, changed, reset in on_ranks(3, work):
        for key, state in alone.states.items():
            assert begun[key].tobytes() == reset[key].tobytes() == state.tobytes()
            factor = 2 if key == name else 1
            assert changed[key].tobytes() == (state * factor).astype(state.dtype).tobytes()


def test_a_row_is_gathered_once_for_all_its_members_until_a_state_changes():
    plan = g.plan(mlp(4), optimizer=g.optim.Adam(), ranks=2, shard="states")
    rows = sum(isinstance(state.initial, Shard) for state in plan.graph.states)
    feeds, _ = drawn(plan.graph, 2, 0)

    def work(wire):
        program = Program(plan, lane=Lane(wire))
        gathers = []
        gather = wire.gather
        wire.gather = lambda *given: (gathers.append(1), gather(*given))[1]
        first = dict(program.states)
        assert len(gathers) == rows
        name = "layer0/weight"
        program.parameters[name] = first[name] + 1
        assert (program.parameters[name] == first[name] + 1).all()
        program.step(feeds[0][wire.rank])
        before = len(gathers)
        assert (program.parameters[name] != first[name] + 1).any()
        assert len(gathers) == before + 1
        program.parameters[name][...] = 0  # a copy
        assert program.parameters[name].any()

    on_ranks(2, work)


def test_one_rank_has_the_plan_without_shards():
    plain, one = (g.plan(mlp(4), optimizer=g.optim.Adam(), **k) for k in ({}, {"shard": "states"}))
    assert plain.text() == one.text()


def test_plans_with_shards_are_read_back(tmp_path):
    plan = g.plan(mlp(4), optimizer=g.optim.Adam(), ranks=3, shard="states")
    text = g.format_graph(plan.graph)
    assert g.format_graph(g.parse_graph(text)) == text
    g.save_plan(plan, tmp_path / "plan.json")
    assert g.load_plan(tmp_path / "plan.json").text() == plan.text()
    for changed in (
        text.replace("ranks=3", "ranks=2", 1),
        text.replace("ranks=3", "ranks='3'", 1),
        text.replace("(5, 16)", "(6, 16)", 1),
        text.replace("'uniform'", "'seed'", 1),
        text.replace("'uniform'", "7", 1),
        text.replace("('output/bias', (5,), 'constant', 0.0)", "'output/bias'", 1),
    ):
        assert changed != text
        with pytest.raises(TextError):
            g.parse_graph(changed)


def test_options_that_exclude_shards_are_refused():
    with pytest.raises(OptionError, match="shard applies only to training"):
        g.plan(outputs=[g.input("x", (3,))], shard="states")
    for optimizer in (
        g.optim.LAMB(), g.optim.Muon(), g.optim.Groups([("bias", g.optim.LAMB())], g.optim.SGD())
    ):  # fmt: skip
        with pytest.raises(OptionError, match=r"needs whole parameters; choose SGD, Adam"):
            g.plan(mlp(4), optimizer=optimizer, ranks=2, shard="states")
    groups = g.optim.Groups([("none such", g.optim.SGD())], g.optim.SGD())
    with pytest.raises(OptionError, match="no parameter belongs to the group 'none such'"):
        g.plan(mlp(4), optimizer=groups, ranks=2, shard="states")


def test_recomputed_nodes_may_view_gathered_parameters():
    build = lambda: gpt2(layers=2, width=16, heads=2, seq_len=8, batch=2, vocab=20)  # noqa: E731
    for policy in ("sublinear", "recursive", "cheap"):
        plan = g.plan(
            build(), optimizer=g.optim.Adam(), ranks=2, shard="states", recompute=policy,
            precision="bf16", kernels="numpy",
        )  # fmt: skip
        assert plan.recomputation.nodes


def test_no_exchange_is_made_twice_unless_that_is_asked_for():
    counts = {
        policy: sum(isinstance(n.op, Collective) for n in plan.graph.nodes)
        for policy in (None, "sublinear", "cheap")
        for plan in [
            g.plan(mlp(4), optimizer=g.optim.SGD(), ranks=2, shard="states", recompute=policy)
        ]
    }
    assert len(set(counts.values())) == 1
