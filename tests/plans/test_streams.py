"""Plans with streams: every legal order gives the same, bytes buy width, and files keep it all."""

import functools
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from plans.bytes_of_a_step import is_sound
from runtime.emulated_gpu.networks import branches, small_mlp

import graphc as g
from graphc import Program
from graphc.errors import BudgetError, OptionError, PlanError, PlanFileError
from graphc.memory.hazards import Addresses
from graphc.models import inception_v3, lstm, two_tower
from graphc.plans.check.check_figures import check_figures
from graphc.plans.check.check_plan import check_plan
from graphc.plans.json_form import checksum, read_plan_json
from graphc.plans.memory_plan import Lifetime
from graphc.plans.streams import StreamChoice
from graphc.runtime.feeds import random_feeds
from graphc.runtime.gpu.bind import bind, slots_of_works

NETWORKS = {
    "two_tower": lambda: two_tower(batch=4, layers=2, width=6, rows=9, words=3),
    "inception_v3": lambda: inception_v3(batch=1, image=75, width=2, classes=3),
    "branches": functools.partial(branches, "float32"),
    "mlp": functools.partial(small_mlp, "float32"),
    "lstm": lambda: lstm(layers=2, seq_len=3, hidden=4, inputs=3, classes=5, batch=2),
}
SMALL = ("two_tower", "branches", "mlp")


def plan_of(name, **options):
    return g.plan(NETWORKS[name](), optimizer=g.optim.Momentum(0.1), **options)


def wide(name, streams, **options):
    """A plan with room for everything apart."""
    return plan_of(name, streams=streams, budget=2**30, **options)


def some_legal_order(plan, rng):
    """Nodes as streams may run them: each waits for what its slot says, and for views."""
    nodes, slots = plan.graph.nodes, plan.streams.slots
    needs = [{plan.graph.position[v.node] for v in n.inputs if v.node is not None} for n in nodes]
    last = {}
    for number, node in enumerate(nodes):
        slot = slots.get(node)
        if slot is None:  # a view stands behind what it views
            continue
        # What data says a slot must say too, by itself or by what it waits for.
        views = {n for n in needs[number] if nodes[n] not in slots}
        needs[number] = views | {*slot.waits}
        if slot.stream in last:
            needs[number].add(last[slot.stream])
        last[slot.stream] = number
    order, done = [], set()
    left = set(range(len(nodes)))
    while left:
        ready = sorted(n for n in left if needs[n] <= done)
        # Now and then one runs as far ahead as it can.
        number = rng.choice(ready) if rng.random() < 0.8 else ready[0]
        order.append(nodes[number])
        done.add(number)
        left.remove(number)
    return order


def interleaved(plan, rng):
    """The plan with its nodes in another legal order, for a runtime that follows the order. The
    stated lifetimes, which are those of the other order, are the whole step."""
    whole = Lifetime(0, len(plan.graph.nodes) + 1)
    buffers = tuple(replace(buffer, lifetime=whole) for buffer in plan.buffers)
    rooms = {node: buffers[room.index] for node, room in plan.workspaces.items()}
    graph = plan.graph.in_order(some_legal_order(plan, rng))
    return replace(plan, graph=graph, buffers=buffers, workspaces=rooms, streams=None)


def fed(plan):
    return {source.name: array for source, array in random_feeds(plan.graph, 5).items()}


def bits_after(plan, feeds, steps=2):
    """Losses and states after some steps."""
    program = Program(plan, 3)
    losses = [program.step(feeds)["loss"].tobytes() for _ in range(steps)]
    return losses, {name: array.tobytes() for name, array in program.states.items()}


def check_orders(plan, count):
    """So many legal orders have the bits of the plan's own; how many differ from one another."""
    rng, feeds, seen = random.Random(1), fed(plan), set()
    expected = bits_after(plan, feeds)
    for _ in range(count):
        other = interleaved(plan, rng)
        seen.add(other.graph.nodes)
        assert bits_after(other, feeds) == expected
    return len(seen)


OF_STREAMS = {
    2: ({}, {"allocate": "sharing"}, {"recompute": "sublinear"}),
    4: ({}, {"budget": 2**30}),
}


@pytest.mark.parametrize("streams", OF_STREAMS)
@pytest.mark.parametrize("name", SMALL)
def test_legal_orders_have_the_same_bits(name, streams):
    for options in OF_STREAMS[streams]:
        assert check_orders(plan_of(name, streams=streams, **options), 5) > 2
    plain, streamed = plan_of(name), plan_of(name, streams=streams)
    assert bits_after(streamed, fed(plain)) == bits_after(plain, fed(plain))


@pytest.mark.slow
@pytest.mark.parametrize("streams", [2, 4])
@pytest.mark.parametrize("name", ["two_tower", "inception_v3"])
def test_many_legal_orders_have_the_same_bits(name, streams):
    for options in ({"budget": 2**30}, {}):
        plan = plan_of(name, streams=streams, kernels="numpy", **options)
        assert check_orders(plan, 50) > 40


@pytest.mark.parametrize("name", SMALL)
def test_every_byte_is_right_in_legal_orders(name):
    rng = random.Random(2)
    for plan in (wide(name, 3), plan_of(name, streams=3)):
        for _ in range(3):
            assert is_sound(interleaved(plan, rng))


def without_wait(plan, node, other):
    slot = plan.streams.slots[node]
    waits = tuple(n for n in slot.waits if n != other)
    slots = {**plan.streams.slots, node: replace(slot, waits=waits)}
    return replace(plan, streams=replace(plan.streams, slots=slots))


def what_is_wrong(plan):
    """What the checker says against a plan; None for one that it accepts."""
    try:
        check_plan(plan)
    except PlanError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", SMALL)
def test_a_missing_wait_is_found_where_an_order_goes_wrong(name):
    """The checker accepts what no order that was tried breaks, and nothing that one breaks."""
    plan = plan_of(name, streams=3)
    rng, verdicts = random.Random(3), []
    for node, slot in plan.streams.slots.items():
        for other in slot.waits:
            broken = without_wait(plan, node, other)
            told = what_is_wrong(broken)
            verdicts.append(told is None)
            if told is None:
                assert all(is_sound(interleaved(broken, rng)) for _ in range(3))
            else:
                assert f"node {plan.graph.position[node]} " in told
                assert "does not wait for it" in told
    assert verdicts.count(False) > 5


def test_some_order_of_a_plan_without_waits_is_wrong():
    plan = plan_of("branches", streams=3)
    slots = {node: replace(slot, waits=()) for node, slot in plan.streams.slots.items()}
    broken = replace(plan, streams=replace(plan.streams, slots=slots))
    with pytest.raises(PlanError, match="does not wait"):
        check_plan(broken)
    rng = random.Random(4)
    assert not all(is_sound(interleaved(broken, rng)) for _ in range(20))


def changed(plan, node, **fields):
    slots = {**plan.streams.slots, node: replace(plan.streams.slots[node], **fields)}
    return replace(plan, streams=replace(plan.streams, slots=slots))


def test_slots_without_a_valid_schedule_are_refused():
    plan = plan_of("two_tower", streams=2)
    slots, places = plan.streams.slots, Addresses.of(plan)
    *_, node = (node for node, slot in slots.items() if slot.waits)
    left_out = {n: slot for n, slot in slots.items() if n is not node}
    view = next(n for n in plan.graph.nodes if not places.runs(n))
    number = plan.graph.position[node]
    stream = slots[node].stream
    own_before = next(
        before
        for before, other in enumerate(plan.graph.nodes[:number])
        if other in slots and slots[other].stream == stream
    )
    wrong = {
        "has no stream": replace(plan, streams=replace(plan.streams, slots=left_out)),
        "is on stream 2 of 2": changed(plan, node, stream=2),
        f"waits for node {number}, which": changed(plan, node, waits=(number,)),
        "which is on its own stream": changed(plan, node, waits=(own_before,)),
        "waits for node 9999, which": changed(plan, node, waits=(9999,)),
        "1 to 64 streams": replace(plan, streams=replace(plan.streams, count=0)),
        "is a view": replace(
            plan, streams=replace(plan.streams, slots={**slots, view: slots[node]})
        ),
    }
    for text, other in wrong.items():
        with pytest.raises(PlanError, match=text):
            check_plan(other)


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 1e-30}, {"choices": ()}, {"one_stream_seconds": 1e9},
        {"choices": (StreamChoice(1, 1.0),)},
    ],
    ids=str,
)  # fmt: skip
def test_figures_of_streams_are_checked(change):
    plan = plan_of("branches", streams=3)
    check_figures(plan)
    with pytest.raises(PlanError, match="the plan states"):
        check_figures(replace(plan, streams=replace(plan.streams, **change)))


def test_a_file_with_too_many_streams_is_refused(tmp_path):
    content = json.loads(plan_of("branches", streams=2).to_json())
    content["streams"]["count"] = 10**12
    content["sha256"] = checksum(content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(PlanFileError, match=r"streams\.count"):
        g.load_plan(tmp_path / "plan.json")
    with pytest.raises(OptionError, match="streams"):
        g.bind(plan_of("branches"), streams=65)


# --- what bytes buy ---


@pytest.mark.parametrize(
    "name", [*SMALL, *(pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS if n not in SMALL)]
)
def test_more_bytes_never_give_a_slower_plan(name):
    plain = plan_of(name)
    last = None
    full = wide(name, 4)
    choices = full.streams.choices
    sizes, times = zip(*((c.arena_bytes, c.seconds) for c in choices), strict=True)
    assert list(sizes) == sorted(set(sizes))
    assert list(times) == sorted(set(times), reverse=True)
    assert (full.arena_bytes, full.streams.seconds) == (sizes[-1], times[-1])
    for budget in (plain.arena_bytes, *sizes, sizes[-1] + 10**6):
        if budget < plain.arena_bytes:
            continue
        plan = plan_of(name, streams=4, budget=budget)
        assert plan.arena_bytes <= budget
        assert last is None or plan.streams.seconds <= last
        last = plan.streams.seconds
    assert plan_of(name, streams=4).arena_bytes <= plain.arena_bytes


def test_budgets_of_what_is_printed_without_one_are_no_slower():
    """Where kernels are fused, too: for what is computed once, in larger groups."""
    network = functools.partial(
        lstm, layers=2, seq_len=3, hidden=64, inputs=16, classes=50, batch=16
    )

    def plan(**options):
        return g.plan(network(), optimizer=g.optim.SGD(0.1), device="h200", streams=4, **options)

    choices = plan().streams.choices
    assert len(choices) > 3
    for choice in choices[::2]:
        assert plan(budget=choice.arena_bytes).streams.seconds <= choice.seconds


def test_bytes_of_feature_maps_hold_on_streams():
    """Whatever order is tried: a budget of the paper's measure is one of every way."""
    for name in SMALL:
        plain = plan_of(name)
        given = plain.feature_map_bytes
        plan = plan_of(name, streams=4, feature_map_budget=given)
        assert plan.feature_map_bytes <= given


def test_nodes_keep_their_order_where_that_is_asked_for():
    labels = [
        [
            node.label
            for node in plan_of("two_tower", reorder=False, budget=2**30, **own).graph.nodes
        ]
        for own in ({}, {"streams": 4})
    ]
    assert labels[0] == labels[1]


def test_inference_buys_width_and_keeps_a_budget():
    loss = two_tower(batch=64, layers=4, width=128)
    plain, same = (g.plan(outputs=[loss], device="h200", streams=n) for n in (1, 2))
    full = g.plan(outputs=[loss], device="h200", streams=2, budget="1GiB")
    assert same.arena_bytes <= plain.arena_bytes < full.arena_bytes
    assert full.streams.seconds < same.streams.seconds
    with pytest.raises(BudgetError, match="for 2 streams") as caught:
        g.plan(outputs=[loss], device="h200", streams=2, budget=1000)
    assert caught.value.least_bytes <= plain.arena_bytes
    with pytest.raises(OptionError, match="budgets require a training step"):
        g.plan(outputs=[loss], budget="1GiB")


@pytest.mark.slow
def test_small_updates_share_a_launch_on_streams():
    network = functools.partial(inception_v3, batch=1, image=75, width=4, classes=3)
    counts = []
    for options in ({}, {"streams": 4}, {"streams": 4, "budget": 2**40}):
        plan = g.plan(network(), optimizer=g.optim.SGD(0.1), device="h200", **options)
        works = bind(plan, 0x7F00_0000_0000)
        counts.append(len(works))
        for number, slot in enumerate(slots_of_works(plan, works, alone=False)):
            assert all(other < number for other in slot.waits)
    assert max(counts) <= 1.05 * counts[0]


def test_a_frontier_is_that_of_one_stream():
    with pytest.raises(OptionError, match="frontier supports only one stream"):
        g.frontier(NETWORKS["mlp"](), optimizer=g.optim.SGD(0.1), streams=2)


def test_towers_run_side_by_side():
    """By the cost model two towers take about half the seconds, where all bytes are apart."""
    plan = g.plan(two_tower(), optimizer=g.optim.SGD(0.1), device="h200", streams=2, budget="1GiB")
    assert 1.8 < plan.streams.speedup < 2.0
    of_towers = {}
    for node, slot in plan.streams.slots.items():
        if node.phase == "forward" and "layer" in node.scope:
            of_towers.setdefault(node.scope.split("/")[0], set()).add(slot.stream)
    assert of_towers["queries"].isdisjoint(of_towers["items"])


def test_one_stream_is_no_stream():
    plan = plan_of("branches", streams=1)
    assert plan.streams is None
    assert "streams" not in plan.summary("branches")


def test_another_strategy_pays_nothing_for_width():
    for allocate in ("none", "inplace", "sharing"):
        plain, plan = (plan_of("branches", allocate=allocate, streams=n) for n in (1, 4))
        assert plan.arena_bytes == plain.arena_bytes
        assert len(plan.streams.choices) == 1


@pytest.mark.parametrize("given", [0, -1, 1.5, "2", 65, True])
def test_invalid_stream_counts_are_refused(given):
    with pytest.raises(OptionError, match="streams"):
        plan_of("branches", streams=given)


# --- what is printed and written ---


def test_the_printout_has_a_frontier():
    plan = g.plan(two_tower(), optimizer=g.optim.SGD(0.1), device="h200", streams=4)
    text, found = plan.text(), plan.summary("two_tower")
    start = text.index("4 streams, by the cost model without launches")
    rows = text[start:].split("\n\n")[0].splitlines()[2:]
    assert len(rows) == len(plan.streams.choices) == len(found["streams_frontier"])
    assert [row.endswith("*") for row in rows].count(True) == 1
    assert found["streams"] == 4
    assert found["step_seconds"] < found["one_stream_seconds"]
    assert found["settings"]["streams"] == 4


@pytest.mark.parametrize("name", ["two_tower", "branches"])
def test_files_keep_streams(name, tmp_path):
    plan = wide(name, 4)
    found = read_plan_json(plan.to_json()).plan
    assert [*found.streams.slots.values()] == [*plan.streams.slots.values()]
    assert found.streams.choices == plan.streams.choices
    assert found.to_json() == plan.to_json()
    g.save_plan(plan, tmp_path / "plan.json")
    loaded = g.load_plan(tmp_path / "plan.json")
    assert bits_after(loaded, fed(plan)) == bits_after(plan, fed(plan))


def test_bind_spreads_a_plan_that_has_no_streams():
    plan = plan_of("branches")
    program = g.bind(plan, streams=3)
    assert program.plan.streams.count == 3
    assert program.plan.arena_bytes == plan.arena_bytes
    check_plan(program.plan)
    own, expected = (each.step(fed(plan))["loss"] for each in (program, g.bind(plan)))
    np.testing.assert_array_equal(own, expected)
