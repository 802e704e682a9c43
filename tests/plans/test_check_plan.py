"""Every rule of the checker, broken one at a time. Random plans are in tests/properties."""

from dataclasses import replace

import pytest

import graphc as g
from graphc.errors import PlanError
from graphc.plans.check.check_plan import check_plan
from graphc.plans.memory_plan import Lifetime


@pytest.fixture
def plan():
    x = g.input("x", (4, 64))
    h = g.tanh(g.linear(x, 64, name="a"))
    loss = g.mean(g.sigmoid(g.linear(h, 64, name="b")))
    return g.plan(loss, optimizer=g.optim.Adam(), kernels="numpy")


def broken(plan, index, **changes):
    buffers = list(plan.buffers)
    buffers[index] = replace(buffers[index], **changes)
    return replace(plan, buffers=tuple(buffers))


def some(plan, kind):
    return next(b for b in plan.buffers if b.kind == kind)


def test_accepts_the_plan(plan):
    check_plan(plan)


def test_misalignment(plan):
    buffer = some(plan, "feature map")
    with pytest.raises(PlanError, match="not a multiple of 256"):
        check_plan(broken(plan, buffer.index, offset=buffer.offset + 4))


def test_outside_the_arena(plan):
    with pytest.raises(PlanError, match="outside the arena"):
        check_plan(replace(plan, arena_bytes=plan.arena_bytes - 256))


def test_a_value_larger_than_its_buffer(plan):
    buffer = some(plan, "feature map")
    with pytest.raises(PlanError, match="exceeds its buffer"):
        check_plan(broken(plan, buffer.index, bytes=buffer.bytes - 4))


def test_a_state_under_a_feature_map(plan):
    buffer = some(plan, "feature map")
    moment = next(s for s in plan.graph.states if s.name == "adam/m/b/weight")
    with pytest.raises(PlanError, match="would overwrite the state") as error:
        check_plan(broken(plan, buffer.index, offset=plan.address(moment)))
    assert error.value.culprits[0] == "@adam/m/b/weight"


def test_a_state_under_a_workspace(plan):
    node, buffer = next(iter(plan.workspaces.items()))
    low = replace(buffer, offset=0)
    moved = replace(plan, workspaces={**plan.workspaces, node: low})
    with pytest.raises(PlanError, match="workspace"):
        check_plan(moved)


def test_a_workspace_over_an_operand(plan):
    node, buffer = next((n, b) for n, b in plan.workspaces.items() if n.op.name == "tanh_gradient")
    moved = replace(buffer, offset=plan.address(node.inputs[1]))
    wide = replace(plan, arena_bytes=plan.arena_bytes + buffer.bytes)
    with pytest.raises(PlanError, match="overlaps") as error:
        check_plan(replace(wide, workspaces={**plan.workspaces, node: moved}))
    assert len(error.value.culprits) == 2


def inner_places(plan, node, room):
    """Values that live across a node, and every aligned place of a workspace inside each."""
    step = plan.graph.position[node]
    for buffer in plan.buffers:
        across = buffer.lifetime.first < step < buffer.lifetime.last - 1
        if buffer.kind != "workspace" and across and buffer.bytes > room.bytes:
            last = buffer.offset + buffer.bytes - room.bytes
            for offset in range(buffer.offset, last + 1, plan.alignment):
                yield buffer, offset


def test_a_workspace_anywhere_inside_a_value_that_lives_across_its_node():
    """Behind its first bytes too, where no edge of a value is; operand or not."""
    x = g.input("x", (16, 32))
    h = g.tanh(g.softmax(g.tanh(g.linear(x, 32, name="a"))))
    loss = g.mean(g.linear(h, 32, name="b"))
    plan = g.plan(loss, optimizer=g.optim.Adam(), kernels="numpy")
    kinds, inside, apart = set(), 0, 0
    for node, room in plan.workspaces.items():
        for buffer, offset in inner_places(plan, node, room):
            kinds.add(buffer.kind)
            inside += offset > buffer.offset
            names = [plan.graph.names[value] for value in plan.residents[buffer.index]]
            apart += not {plan.placements[v].buffer for v in node.inputs} & {buffer.index}
            changed = {**plan.workspaces, node: replace(room, offset=offset)}
            with pytest.raises(PlanError, match="workspace") as error:
                check_plan(replace(plan, workspaces=changed))
            assert set(names) & set(error.value.culprits)
    assert kinds >= {"state", "feature map"}
    assert inside > 20
    assert apart > 20


def test_an_output_over_an_operand_that_the_op_reads_to_the_end(plan):
    """A matmul may not write over what it reads, though nobody reads that later."""
    node = next(n for n in plan.graph.nodes if n.op.name == "matmul" and n.phase == "gradient")
    target = plan.placements[node.inputs[0]].buffer
    output = plan.placements[node.output].buffer
    place = plan.buffers[target].offset
    with pytest.raises(PlanError, match="which the op does not allow") as error:
        check_plan(broken(plan, output, offset=place))
    assert len(error.value.culprits) == 2


def test_an_update_run_twice(plan):
    nodes = list(plan.graph.nodes)
    update = next(n for n in nodes if n.op.name == "adam_update")
    nodes.insert(nodes.index(update), update)
    long = tuple(replace(b, lifetime=Lifetime(0, len(nodes) + 1)) for b in plan.buffers)
    twice = replace(plan, buffers=long, graph=replace(plan.graph, nodes=tuple(nodes)))
    with pytest.raises(PlanError, match="overwritten by") as error:
        check_plan(twice)
    assert error.value.culprits[0] == plan.graph.names[update.inputs[0]]


def test_an_update_placed_elsewhere(plan):
    update = next(n for n in plan.graph.nodes if n.op.name == "adam_update")
    scratch = next(
        v
        for v in plan.graph.values
        if v.type == update.outputs[0].type
        and v.node
        and v.node.phase == "gradient"
        and not v.node.op.has_effect
    )
    placements = {**plan.placements, update.outputs[0]: plan.placements[scratch]}
    with pytest.raises(
        PlanError, match=r"placed elsewhere|does not allow|would overwrite"
    ) as error:
        check_plan(replace(plan, placements=placements))
    assert plan.graph.names[update.outputs[0]] in error.value.culprits


def test_a_value_without_a_place(plan):
    placements = dict(plan.placements)
    value = placements.popitem()[0]
    with pytest.raises(PlanError, match="has no placement"):
        check_plan(replace(plan, placements=placements))
    assert value not in placements


def test_overlapping_outputs():
    a, b = g.split(g.input("x", (4, 8)), 2)
    loss = g.softmax_cross_entropy(g.tanh(a) + b, g.input("t", (2,), "int32"))
    plan = g.plan(loss, allocate="none", kernels="numpy")
    node = loss.producer
    loss_buffer = plan.placements[node.outputs[0]].buffer
    target = plan.address(node.outputs[1])
    with pytest.raises(PlanError, match="overlap"):
        check_plan(broken(plan, loss_buffer, offset=target))
