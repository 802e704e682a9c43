"""The strongest oracles: planned runs equal unplanned ones, and broken plans are rejected."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plans.bytes_of_a_step import is_sound, moved
from properties.oracle import initial_states, run_plain, run_unplanned, sources_of
from properties.strategies import OPTIMIZERS, examples, networks

import graphc as g
from graphc.devices.device import KERNELS
from graphc.errors import PlanError
from graphc.ir.builder import trace
from graphc.ir.types import contiguous_strides
from graphc.memory.allocate import Allocation
from graphc.memory.policies import with_sequence
from graphc.passes.modes import number_streams
from graphc.plans.check.check_plan import check_plan
from graphc.plans.memory_plan import ALLOCATE, RECOMPUTE, Lifetime


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8).tolist() if array.shape else array.tobytes()


def run_steps(program, feeds):
    """Outputs of each step and the states after them, from the states as they were before."""
    results = [program.step(feed) for feed in feeds]
    states = dict(program.states)
    program.reset()
    return results, states


@examples(150)
@given(
    networks(), st.sampled_from(OPTIMIZERS), st.sampled_from(RECOMPUTE), st.booleans(),
    st.lists(st.sampled_from(ALLOCATE), min_size=2, max_size=2, unique=True),
)  # fmt: skip
def test_strategies_equal_the_unplanned_run_bit_for_bit(
    network, optimizer, recompute, native, strategies
):
    """Native kernels round in other places than NumPy's: their strategies equal one another."""
    expected, kernels = None, "native" if native else "numpy"
    for strategy in strategies:
        program = g.compile(
            network.loss,
            outputs=network.outputs,
            optimizer=optimizer,
            recompute=recompute,
            allocate=strategy,
            kernels=kernels,
            poison=True,
        )
        if expected is None:
            feeds = network.feeds
            expected = run_steps(program, feeds) if native else run_plain(program.graph, feeds)
        for feed, wanted in zip(network.feeds, expected[0], strict=True):
            found = program.step(feed)
            assert {k: bits(v) for k, v in found.items()} == {k: bits(v) for k, v in wanted.items()}
        states = {name: bits(array) for name, array in program.states.items()}
        assert states == {name: bits(array) for name, array in expected[1].items()}


@examples(60)
@given(
    networks(), st.sampled_from(OPTIMIZERS),
    st.lists(st.sampled_from(RECOMPUTE[1:]), min_size=2, max_size=2, unique=True),
)  # fmt: skip
def test_recomputation_changes_no_bit(network, optimizer, policies):
    """Alg. 2 with any mirror counts trains exactly like the plain gradient graph."""
    runs = []
    for recompute in ("none", *policies):
        program = g.compile(network.loss, optimizer=optimizer, recompute=recompute, poison=True)
        losses = [bits(program.step(feed)["loss"]) for feed in network.feeds]
        runs.append((losses, {name: bits(array) for name, array in program.states.items()}))
    assert all(run == runs[0] for run in runs)


@examples(60)
@given(networks(), st.randoms(use_true_random=False), st.sampled_from(KERNELS))
def test_any_legal_schedule_trains_the_same(network, random, kernels):
    """Steps in any order that their operands allow, any of them again and again."""
    options = {"optimizer": g.optim.Momentum(), "kernels": kernels}
    plain = g.plan(network.loss, outputs=network.outputs, **options)
    graph = plain.graph
    schedule, made = [], set()
    left = list(range(len(graph.nodes)))
    while left:
        ready = [s for s in left if all(v in made or v.node is None for v in graph.nodes[s].inputs)]
        step = random.choice(ready)
        left.remove(step)
        schedule.append(step)
        made.update(graph.nodes[step].outputs)
        again = [s for s in schedule if not graph.nodes[s].op.has_effect]
        schedule += random.choices(again, k=random.randrange(3)) if again else []
    found = Allocation(with_sequence(graph, schedule), plain.target).plan("packed")
    check_plan(found)
    programs = [g.Program(chosen, poison=True) for chosen in (plain, found)]
    for feed in network.feeds:
        results = [program.step(feed) for program in programs]
        for name, array in results[0].items():
            assert bits(array) == bits(results[1][name])
    first, second = ({n: bits(a) for n, a in p.states.items()} for p in programs)
    assert first == second


@examples(40)
@given(
    networks(), st.floats(0, 1),
    st.lists(st.sampled_from(RECOMPUTE[1:]), min_size=2, max_size=2, unique=True),
)  # fmt: skip
def test_budgets_hold_and_bounds_are_below_every_policy(network, part, policies):
    plans = [
        g.plan(network.loss, outputs=network.outputs, optimizer=g.optim.SGD(), recompute=policy)
        for policy in ("none", *policies)
    ]
    with pytest.raises(g.BudgetError) as caught:
        g.plan(network.loss, outputs=network.outputs, optimizer=g.optim.SGD(), budget=1)
    least, most = caught.value.least_bytes, plans[0].arena_bytes
    budget = int(least + part * (most - least))
    found = g.plan(network.loss, outputs=network.outputs, optimizer=g.optim.SGD(), budget=budget)
    assert found.arena_bytes <= budget
    extra = found.recomputation.extra_time_fraction
    assert caught.value.bound_bytes == found.bound_bytes
    for other in (*plans, found):
        assert found.bound_bytes <= other.live_bytes
        if other.arena_bytes <= budget:
            others = other.recomputation.extra_time_fraction
            assert extra <= others + 1e-9
            assert found.certificate.extra_time_bound <= others + 1e-9


@examples(60)
@given(networks(), st.sampled_from(RECOMPUTE))
def test_bytes_only_fall_from_strategy_to_strategy(network, recompute):
    plans = {
        a: g.plan(network.loss, optimizer=g.optim.SGD(), recompute=recompute, allocate=a)
        for a in ALLOCATE
    }
    sizes = [plans[a].arena_bytes for a in ("none", "inplace", "sharing")]
    assert sizes == sorted(sizes, reverse=True)
    assert plans["packed"].live_bytes <= plans["packed"].arena_bytes <= sizes[2]
    for name, found in plans.items():
        assert found.live_bytes <= found.arena_bytes
        assert dict(found.strategy_bytes)[name] == found.arena_bytes


@examples(30)
@given(networks())
def test_text_round_trip(network):
    graph = g.plan(network.loss, optimizer=g.optim.Adam(), recompute="mirror").graph
    text = g.format_graph(graph)
    parsed = g.parse_graph(text)
    assert g.format_graph(parsed) == text
    assert Allocation(parsed).plan("packed").text() == Allocation(graph).plan("packed").text()


def planned(network):
    return g.plan(network.loss, optimizer=g.optim.Momentum(), recompute="mirror")


def names_in(plan, buffer):
    return {plan.graph.names[value] for value in plan.residents.get(buffer.index, [])}


@examples(60)
@given(networks(), st.data())
def test_shifted_offset_is_rejected_with_both_culprits(network, data):
    plan = planned(network)
    values = [b for b in plan.buffers if b.kind not in ("workspace", "state")]
    pairs = [
        (a, b)
        for a in values
        for b in values
        if a.index != b.index
        and a.lifetime.overlaps(b.lifetime)
        # the later one is written while the earlier one is still to be read
        and a.lifetime.first < b.lifetime.first < a.lifetime.last - 1
    ]
    assume(pairs)
    victim, thief = data.draw(st.sampled_from(pairs))
    buffers = list(plan.buffers)
    buffers[thief.index] = replace(thief, offset=victim.offset)
    with pytest.raises(PlanError) as error:
        check_plan(
            replace(plan, buffers=tuple(buffers), arena_bytes=plan.arena_bytes + thief.bytes)
        )
    assert len(error.value.culprits) == 2
    moved = names_in(plan, thief)
    assert moved & set(error.value.culprits), (moved, error.value.culprits)


@examples(100)
@given(networks(), st.data())
def test_a_buffer_or_workspace_anywhere_is_accepted_only_if_every_read_finds_its_bytes(
    network, data
):
    options = {"recompute": "mirror", "alignment": 16, "kernels": "numpy"}
    plan = g.plan(network.loss, optimizer=g.optim.Momentum(), **options)
    thief = data.draw(st.sampled_from(sorted(plan.buffers, key=lambda b: b.kind != "workspace")))
    victim = data.draw(st.sampled_from(plan.buffers))
    shift = data.draw(st.integers(-(thief.bytes // 16), victim.bytes // 16))
    offset = max(0, victim.offset + 16 * shift)
    arena = max(plan.arena_bytes, offset + thief.bytes)
    changed = replace(moved(plan, {thief.index: offset}), arena_bytes=arena)
    with suppress(PlanError):
        check_plan(changed)
        assert is_sound(changed)


@examples(60)
@given(networks(), st.data())
def test_swapped_order_is_rejected_with_both_culprits(network, data):
    plan = planned(network)
    nodes = plan.graph.nodes
    steps = [
        step
        for step in range(len(nodes) - 1)
        if any(value.node is nodes[step] for value in nodes[step + 1].inputs)
    ]
    step = data.draw(st.sampled_from(steps))
    swapped = (*nodes[:step], nodes[step + 1], nodes[step], *nodes[step + 2 :])
    with pytest.raises(PlanError) as error:
        check_plan(replace(plan, graph=replace(plan.graph, nodes=swapped)))
    assert len(error.value.culprits) == 2


@examples(60)
@given(networks(), st.data())
def test_shortened_lifetime_is_rejected_with_both_culprits(network, data):
    plan = planned(network)
    buffer = data.draw(st.sampled_from([b for b in plan.buffers if b.kind != "workspace"]))
    shorter = Lifetime(buffer.lifetime.first, buffer.lifetime.last - 1)
    buffers = list(plan.buffers)
    buffers[buffer.index] = replace(buffer, lifetime=shorter)
    with pytest.raises(PlanError) as error:
        check_plan(replace(plan, buffers=tuple(buffers)))
    assert len(error.value.culprits) == 2
    assert error.value.culprits[0] in names_in(plan, buffer)


@examples(60)
@given(networks())
def test_passes_change_no_bit(network):
    """The graph as traced, its random streams numbered as a plan's, and that after all passes."""
    outputs = {"loss": network.loss, **network.outputs}
    traced = number_streams(trace(outputs))
    planned_graph = g.plan(outputs=outputs, training=True).graph
    found = []
    for graph in (traced, planned_graph):
        feeds = sources_of(graph, initial_states(graph), network.feeds[0])
        arrays = run_unplanned(graph, feeds)
        found.append({name: bits(arrays[value]) for name, value in graph.outputs.items()})
    assert found[0] == found[1]


@examples(60)
@given(networks(), st.data())
def test_a_moved_view_is_rejected_with_both_culprits(network, data):
    plan = planned(network)
    views = [v for v, p in plan.placements.items() if p.how == "view" and v.type.elements > 1]
    assume(views)
    view = data.draw(st.sampled_from(views))
    place = plan.placements[view]
    strides = place.strides or contiguous_strides(view.type)
    wrong = replace(place, strides=tuple(2 * s if s else 4 for s in strides))
    with pytest.raises(PlanError) as error:
        check_plan(replace(plan, placements={**plan.placements, view: wrong}))
    assert plan.graph.names[view] in error.value.culprits
