"""Every rule of copies to the host, broken one at a time in a plan that is right."""

from dataclasses import replace

import pytest

import graphc as g
from graphc import Graph
from graphc.errors import OptionError, PlanError, PlanFileError
from graphc.ir import builder
from graphc.memory.allocate import Allocation
from graphc.memory.streams import on_streams
from graphc.ops.collective import Arrival
from graphc.ops.host_copy import begin_copy_to_device, begin_copy_to_host, finish_copy
from graphc.plans.check.check_figures import check_figures
from graphc.plans.check.check_plan import check_plan
from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import Lifetime
from graphc.plans.plan_file import checked_plan
from graphc.plans.streams import StreamChoice, Streams, StreamSlot
from graphc.target import CPU_TARGET

SHAPE = (8, 64)


class Case:
    """A plan with two values on the host at the same time, one of them fetched twice."""

    def __init__(self):
        x = g.input("x", SHAPE)
        self.first = g.tanh(x)
        self.out = begin_copy_to_host(self.first)
        self.beside = g.sin(x)  # while the first value leaves
        self.there = finish_copy(self.out)
        self.second = g.exp(self.beside)
        self.later = finish_copy(begin_copy_to_host(self.second))
        self.between = g.cos(g.sin(self.beside))
        self.fetch = begin_copy_to_device(self.there)
        self.meanwhile = g.sigmoid(self.between)  # while it returns
        self.back = finish_copy(self.fetch)
        self.used = self.back + self.meanwhile
        again = finish_copy(begin_copy_to_device(self.there))
        other = finish_copy(begin_copy_to_device(self.later))
        self.graph = builder.trace({"y": self.used * again + other})
        self.plan = Allocation(self.graph, CPU_TARGET).plan("packed")


@pytest.fixture
def case():
    return Case()


def index(plan, value):
    return plan.placements[value].buffer


def broken(plan, value, **changes):
    """The plan with another buffer of a value."""
    buffers = list(plan.buffers)
    at = index(plan, value)
    buffers[at] = replace(buffers[at], **changes)
    return replace(plan, buffers=tuple(buffers))


def lasting(plan):
    """The plan with buffers that live for the whole step, so that only the replay may object."""
    whole = Lifetime(0, len(plan.graph.nodes) + 1)
    return replace(plan, buffers=tuple(replace(b, lifetime=whole) for b in plan.buffers))


def with_nodes(plan, *nodes, outputs=None):
    graph = Graph(nodes, outputs or plan.graph.outputs)
    return lasting(replace(plan, graph=graph))


def moved(plan, value, other):
    """The plan with one value at the offset of another."""
    return lasting(broken(plan, value, offset=plan.buffers[index(plan, other)].offset))


def refuses(plan, match):
    with pytest.raises(PlanError, match=match) as error:
        check_plan(plan)
    return error.value.culprits


def test_the_plan_is_right(case):
    check_plan(case.plan)
    check_plan(lasting(case.plan))
    check_figures(case.plan)
    assert case.plan.host_bytes == 2 * 2048
    assert case.plan.bytes_by_kind["host"] == 2 * 2048
    assert case.plan.summary("")["host_bytes"] == 2 * 2048


def test_a_copy_before_its_source_is_complete(case):
    nodes = list(case.graph.nodes)
    nodes.remove(case.out.producer)
    refuses(with_nodes(case.plan, case.out.producer, *nodes), "is not computed when step 0")


def test_a_source_overwritten_while_it_is_copied(case):
    culprits = refuses(moved(case.plan, case.beside, case.first), "overwritten by .* before step")
    assert set(culprits) == {case.graph.names[case.first], case.graph.names[case.beside]}


def test_a_result_overwritten_before_the_wait(case):
    refuses(moved(case.plan, case.meanwhile, case.back), "overwritten by .* before step")


def test_a_result_over_a_value_that_is_read_until_the_wait(case):
    """The value is read after the copy starts, though before it is awaited."""
    culprits = refuses(moved(case.plan, case.back, case.between), "overwritten by")
    assert set(culprits) == {case.graph.names[case.fetch], case.graph.names[case.between]}


def test_a_result_read_before_the_wait(case):
    early = builder.copy(case.used.producer, (case.fetch, case.meanwhile))
    places = {**case.plan.placements, early.output: case.plan.placements[case.used]}
    nodes = [n for n in case.graph.nodes if n.serial <= case.back.producer.serial]
    changed = replace(case.plan, placements=places)
    outputs = {"y": early.output}
    refuses(with_nodes(changed, *nodes[:-1], early, nodes[-1], outputs=outputs), "before its copy")


def test_an_unfinished_copy_on_the_host_is_not_fetched(case):
    fetch = begin_copy_to_device(case.out)
    back = builder.apply(Arrival, fetch, case.out).output
    nodes = [case.first.producer, case.out.producer, fetch.producer, case.there.producer,
             back.producer]  # fmt: skip
    places = dict(case.plan.placements)
    places |= {fetch: places[case.fetch], back: replace(places[case.back], over=fetch)}
    changed = replace(case.plan, placements=places)
    refuses(with_nodes(changed, *nodes, outputs={"y": back}), "before its copy is done")


def test_two_values_in_the_same_bytes_on_the_host(case):
    culprits = refuses(moved(case.plan, case.later, case.there), "overwritten by")
    assert case.graph.names[case.there] in culprits


def test_a_value_on_the_host_in_the_arena(case):
    wide = replace(case.plan, arena_bytes=case.plan.arena_bytes + 2048)
    refuses(
        lasting(broken(wide, case.there, kind="feature map", offset=case.plan.arena_bytes)),
        "is on the host, but buffer .* is in the arena",
    )


def test_a_value_of_the_device_in_host_memory(case):
    wide = replace(case.plan, host_bytes=3 * 2048)
    start = wide.host_start + 2 * 2048
    changed = broken(wide, case.beside, kind="host", offset=start)
    refuses(lasting(changed), "is on the device, but buffer .* is in host memory")


def test_a_host_too_small(case):
    refuses(replace(case.plan, host_bytes=2048), "outside host memory of 2048 bytes")


def test_a_buffer_of_the_host_at_an_offset_of_the_arena(case):
    refuses(broken(case.plan, case.there, offset=0), "outside host memory")
    refuses(broken(case.plan, case.there, offset=case.plan.host_start - 256), "outside host memory")


def test_a_buffer_of_the_arena_at_an_offset_of_the_host(case):
    refuses(broken(case.plan, case.beside, offset=case.plan.host_start), "outside the arena")


def test_a_copy_without_a_wait(case):
    nodes = case.first.producer, case.out.producer
    refuses(with_nodes(case.plan, *nodes, outputs={"y": case.first}), "no node waits for copy_to")


def test_a_wait_that_does_not_keep_its_source(case):
    careless = builder.apply(Arrival, case.out).output
    places = {**case.plan.placements, careless: case.plan.placements[case.there]}
    nodes = case.first.producer, case.out.producer, careless.producer
    changed = replace(case.plan, placements=places)
    refuses(with_nodes(changed, *nodes, outputs={"y": case.first}), "does not keep")


@pytest.mark.parametrize("name", ["first", "there", "back"])
@pytest.mark.parametrize("end", ["first", "last"])
def test_a_lifetime_shorter_than_the_copy(case, name, end):
    value = getattr(case, name)
    lifetime = case.plan.buffers[index(case.plan, value)].lifetime
    change = 1 if end == "first" else -1
    shorter = replace(lifetime, **{end: getattr(lifetime, end) + change})
    refuses(broken(case.plan, value, lifetime=shorter), "outside its recorded lifetime")


def test_a_lifetime_that_ends_with_the_start_of_the_copy(case):
    step = case.graph.position[case.out.producer]
    changed = broken(case.plan, case.first, lifetime=Lifetime(1, step + 1))
    refuses(changed, "outside its recorded lifetime")


@pytest.mark.parametrize("names", [("out", "there"), ("fetch", "back")])
def test_other_strides_than_those_of_the_source(case, names):
    turned = (4, 32)
    places = dict(case.plan.placements)
    for name in names:
        value = getattr(case, name)
        places[value] = replace(places[value], strides=turned)
    refuses(lasting(replace(case.plan, placements=places)), "a copy keeps strides")


@pytest.mark.parametrize(("begun", "name"), [("out", "there"), ("fetch", "back")])
def test_an_arrival_in_other_bytes_than_the_copy(case, begun, name):
    value = getattr(case, name)
    own = replace(case.plan.buffers[index(case.plan, value)], index=len(case.plan.buffers))
    start = case.plan.host_start + case.plan.host_bytes
    if begun == "out":
        changed = replace(case.plan, host_bytes=case.plan.host_bytes + 2048)
        own = replace(own, offset=start)
    else:
        changed = replace(case.plan, arena_bytes=case.plan.arena_bytes + 2048)
        own = replace(own, offset=case.plan.arena_bytes)
        on_host = [replace(b, offset=b.offset + 2048) if b.kind == "host" else b
                   for b in changed.buffers]  # fmt: skip
        changed = replace(changed, buffers=tuple(on_host))
    place = replace(case.plan.placements[value], buffer=own.index, how="new", over=None)
    changed = replace(changed, buffers=(*changed.buffers, own),
                      placements={**changed.placements, value: place})  # fmt: skip
    refuses(lasting(changed), "is the finished copy .*, but has other bytes or strides")


def test_copies_and_streams(case):
    with pytest.raises(OptionError, match="streams cannot be combined with copies"):
        on_streams(case.plan, CostModel.of(case.plan), 2)
    slots = {node: StreamSlot(0, ()) for node in case.graph.nodes}
    streams = Streams(1, slots, 1.0, 1.0, (StreamChoice(case.plan.arena_bytes, 1.0),))
    refuses(replace(case.plan, streams=streams), "has copies to the host and streams")


@pytest.mark.parametrize("change", [-256, 256])
def test_other_bytes_of_host_memory(case, change):
    changed = replace(case.plan, host_bytes=case.plan.host_bytes + change)
    with pytest.raises(PlanError, match="host memory"):
        check_figures(changed)


def test_another_kind(case):
    with pytest.raises(PlanError, match="states gradient for the kind"):
        check_figures(broken(case.plan, case.back, kind="gradient"))


def test_strides_that_layouts_do_not_have(case):
    """The same for source and copy, so that only the figures are wrong."""
    places = dict(case.plan.placements)
    for value in (case.first, case.out, case.there, case.fetch, case.back):
        places[value] = replace(places[value], strides=(4, 32))
    with pytest.raises(PlanError, match="the strides of"):
        check_figures(replace(case.plan, placements=places))


def test_files_of_plans_with_copies(case, tmp_path):
    path = tmp_path / "plan.json"
    g.save_plan(case.plan, path)
    found = g.load_plan(path)
    assert found.host_bytes == case.plan.host_bytes
    assert found.to_json() == case.plan.to_json()
    text = path.read_text()
    changed = text.replace(f'"host_bytes": {case.plan.host_bytes}', '"host_bytes": 8192')
    with pytest.raises(PlanError, match="the size of host memory"):
        checked_plan(changed)
    without = text.replace(f'"host_bytes": {case.plan.host_bytes},\n', "")
    with pytest.raises(PlanError, match="outside host memory of 0 bytes"):
        checked_plan(without)
    with pytest.raises(PlanFileError, match="host_bytes"):
        checked_plan(text.replace(f'"host_bytes": {case.plan.host_bytes}', '"host_bytes": -1'))


def test_printouts_name_the_host(case):
    for text in (case.plan.text(), str(case.plan)):
        assert "on the host         4,096 bytes = 4.00 KiB" in text
        assert "  on the host             4.00 KiB\n" in text
        assert "4.00 KiB to the host, 6.00 KiB back" in text
    assert "<table>" in case.plan._repr_html_()
