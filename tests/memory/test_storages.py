"""Lifetimes, and which values share bytes, against the rules told step by step over all nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties.strategies import OPTIMIZERS, examples, networks

import graphc as g
from graphc.ir.graph import Input, State
from graphc.memory.allocate import Allocation
from graphc.memory.inplace import assign_storages
from graphc.memory.liveness import liveness, peak_bytes
from graphc.memory.placing import PLACERS, Tenant
from graphc.memory.storages import Storage
from graphc.plans.memory_plan import ALLOCATE


def graph_of(network, optimizer):
    options = {"recompute": "mirror", "allocate": "none"}
    return g.plan(network.loss, outputs=network.outputs, optimizer=optimizer, **options).graph


def readers(graph, value):
    """The steps that read a value, with one past the last for each output that it is."""
    found = [s for s, node in enumerate(graph.nodes) if any(v is value for v in node.inputs)]
    return found + [len(graph.nodes) for output in graph.outputs.values() if output is value]


@examples(60)
@given(networks(), st.sampled_from(OPTIMIZERS))
def test_lifetimes_are_those_of_all_readers(network, optimizer):
    graph = graph_of(network, optimizer)
    live = liveness(graph)
    assert live.end == len(graph.nodes)
    assert set(live.born) == set(live.dies) == set(graph.values)
    for value in graph.values:
        born = 0 if value.node is None else graph.nodes.index(value.node)
        assert live.born[value] == born
        assert live.dies[value] == max([born, *readers(graph, value)])


def permitted(node, value):
    """The operands that an op may write an output over, the best first."""
    names = node.op.may_overwrite.get(node.op.output_name(value.index), ())
    named = [(node.op.input_name(i), operand) for i, operand in enumerate(node.inputs)]
    return [operand for name in names for each, operand in named if each == name]


def told_storages(graph, placements, overwrite):
    """The values that share bytes, in their order, by the rule of Fig. 2 and all later nodes.

    Whether a view is possible, and how it lies, is taken from `placements`.
    """
    holds = {source: [source] for source in graph.sources}
    for step, node in enumerate(graph.nodes):
        taken = []
        for value in node.outputs:
            over = None
            if placements[value].how == "view":
                over = node.viewed
            elif value in node.replaced:
                over = node.replaced[value]
            elif overwrite:
                for operand in permitted(node, value):
                    shared = holds[operand]
                    later = {v for n in graph.nodes[step + 1 :] for v in n.inputs}
                    later |= set(graph.outputs.values())
                    if (
                        later.isdisjoint(shared)
                        and not any(isinstance(v, Input | State) for v in shared)
                        and not any(v in shared for v in taken)
                        and not any(v in shared and v is not operand for v in node.inputs)
                        and operand.shape == value.shape
                        and operand.type.bytes == value.type.bytes == shared[0].type.bytes
                        and placements[operand].strides is None
                    ):
                        over = operand
                        break
            if over is None:
                holds[value] = [value]
            else:
                holds[value] = holds[over]
                holds[value].append(value)
                if placements[value].how == "over":
                    taken.append(over)
    return holds


@examples(60)
@given(networks(), st.sampled_from(OPTIMIZERS), st.booleans())
def test_values_share_bytes_where_the_rule_of_fig_2_says_so(network, optimizer, overwrite):
    graph = graph_of(network, optimizer)
    found = assign_storages(graph, liveness(graph), {}, overwrite)
    holds = told_storages(graph, found.placements, overwrite)
    for value, place in found.placements.items():
        sharing = [v for v, other in found.placements.items() if other.buffer == place.buffer]
        assert sharing == holds[value]
    for storage in found.storages:
        values = [v for v, place in found.placements.items() if place.buffer == storage.index]
        first = values[0]
        assert storage.root is first
        assert storage.bytes == first.type.bytes
        if isinstance(first, State):
            assert (storage.first, storage.last) == (0, len(graph.nodes) + 1)
        else:
            born = 0 if first.node is None else graph.nodes.index(first.node)
            steps = [s for v in values for s in readers(graph, v)]
            steps += [graph.nodes.index(v.node) for v in values if v.node is not None]
            assert (storage.first, storage.last) == (born, max([born, *steps]) + 1)
    with_parts = Allocation(graph).merged.storages
    for storages in (found.storages, with_parts):  # placers rely on it
        born = [s.first for s in storages if not isinstance(s.root, State)]
        assert born == sorted(born)
    lifetimes = [(s.first, s.last, s.bytes) for s in found.storages]
    assert found.peak_bytes() == most_live(lifetimes)


def test_some_values_are_overwritten_some_viewed_and_some_left_alone():
    x = g.input("x", (4, 4))
    y = g.tanh(g.tanh(x))
    outputs = {"a": g.exp(y), "b": g.exp(g.transpose(y)), "c": y[1:3]}
    graph = g.plan(outputs=outputs, kernels="numpy").graph
    found = assign_storages(graph, liveness(graph), {}, True)
    assert {place.how for place in found.placements.values()} == {"new", "view", "over"}


LIFETIMES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(1, 40)).map(
        lambda t: (t[0], t[0] + t[1], t[2])
    ),
    max_size=12,
).map(sorted)


def most_live(lifetimes):
    """Time by time."""
    times = range(max((last for _, last, _ in lifetimes), default=0))
    return max((sum(b for a, z, b in lifetimes if a <= t < z) for t in times), default=0)


@given(LIFETIMES)
def test_the_peak_is_the_most_bytes_at_any_one_time(lifetimes):
    assert peak_bytes(lifetimes) == most_live(lifetimes)


@pytest.mark.parametrize("strategy", ALLOCATE)
@given(LIFETIMES, st.lists(st.booleans(), min_size=12, max_size=12))
def test_places_of_a_strategy_are_apart_in_time_or_bytes(strategy, lifetimes, is_work):
    """Workspaces of different steps may share; the others are one step long and so made here."""
    node = g.tanh(g.input("x", (2,))).producer
    tenants = [
        Tenant(first, first + 1, size, node)
        if work
        else Tenant(first, last, size, Storage(number, size, first, last, node.output))
        for number, ((first, last, size), work) in enumerate(zip(lifetimes, is_work, strict=False))
    ]
    seen = set()  # a node has one workspace
    tenants = [
        t for t in tenants if t.owner is not node or not (t.first in seen or seen.add(t.first))
    ]
    offsets, height = PLACERS[strategy](tenants)
    spans = [(t, a, a + t.bytes) for t, a in zip(tenants, offsets, strict=True)]
    for number, (one, low, high) in enumerate(spans):
        assert 0 <= low < high <= height
        for other, start, end in spans[:number]:
            apart_in_time = one.last <= other.first or other.last <= one.first
            assert apart_in_time or high <= start or end <= low
    values = [t for t in tenants if t.owner is not node]
    work = max((t.bytes for t in tenants if t.owner is node), default=0)
    least = most_live([(t.first, t.last, t.bytes) for t in tenants])
    if strategy in ("none", "inplace"):
        assert height == sum(t.bytes for t in values) + work
    assert (
        least
        <= height
        <= sum(t.bytes for t in values) + sum(t.bytes for t in tenants if t.owner is node)
    )


@pytest.mark.parametrize("strategy", ALLOCATE)
def test_feature_maps_are_what_is_no_state_input_output_or_gradient_of_an_update(strategy):
    """By hand: two maps of 512 bytes and the gradients between, none of them shared."""
    x = g.input("x", (16, 8))
    h = g.tanh(g.linear(x, 8, bias=False, name="a"))
    graph = g.plan(g.mean(g.tanh(h)), optimizer=g.optim.SGD(), allocate="none").graph
    allocation = Allocation(graph)
    placements = allocation.storages(strategy).placements
    apart = {placements[value].buffer for value in graph.outputs.values()}
    apart |= {placements[v].buffer for node in graph.effects for v in node.inputs}
    apart |= {placements[source].buffer for source in graph.sources}
    kept = [s for s in allocation.storages(strategy).storages if s.index not in apart]
    assert kept
    sizes = [-(-s.bytes // 256) * 256 for s in kept]
    least = most_live([(s.first, s.last, n) for s, n in zip(kept, sizes, strict=True)])
    found = allocation.feature_map_bytes(strategy)
    assert found == (sum(sizes) if strategy in ("none", "inplace") else found)
    assert least <= found <= sum(sizes)
    if strategy == "packed":
        assert found == least
