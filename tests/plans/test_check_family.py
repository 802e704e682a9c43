"""Plans that share an arena: the checker rejects families in which a step would corrupt a state."""

from dataclasses import replace

import numpy as np
import pytest

import graphc as g
from graphc.errors import PlanError
from graphc.ir.contents import Contents
from graphc.ir.types import align
from graphc.models import bert, lstm, mobilenet_v2, unet
from graphc.plans.check.check_family import check_family
from graphc.plans.check.check_plan import check_plan
from graphc.plans.family import in_one_arena

ALIGNMENT = 256


def build(rows, shared=True):
    """States in another order for an odd size, and a constant that depends on the size."""
    x = g.input("x", (rows, 8))
    names = ["a", "b"] if rows % 2 else ["b", "a"]
    weights = {n: g.parameter(n, (8, 8), initial=g.Initial("normal", 0.3)) for n in names}
    for name in names:
        _ = weights[name]
    h = g.tanh(g.matmul(x, weights[names[0]]))
    h = g.tanh(g.matmul(h, weights[names[1]]))
    table = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)
    h = h * g.constant(table)
    both = np.linspace(0, 1, 8, dtype=np.float32)
    return g.mean(h + g.constant(both) if shared else h)


@pytest.fixture(scope="module")
def family():
    return g.plan_family(build, {"rows": (40, 9, 16)}, optimizer=g.optim.Adam())


def moved(plan, state_name, offset):
    """The plan with a state at another offset."""
    (state,) = (each for each in plan.graph.states if each.name == state_name)
    index = plan.placements[state].buffer
    buffers = tuple(
        replace(buffer, offset=offset) if buffer.index == index else buffer
        for buffer in plan.buffers
    )
    return replace(plan, buffers=buffers)


def replaced(family, index, plan):
    plans = list(family.plans)
    plans[index] = plan
    return plans


def test_states_have_the_same_offsets_and_constants_are_apart(family):
    check_family(family.plans, family.arena_bytes)
    places = [
        {state.name: plan.address(state) for state in plan.graph.states if state.role != "constant"}
        for plan in family.plans
    ]
    assert places[0] == places[1] == places[2]
    order = sorted(places[0], key=places[0].get)
    assert order == sorted(order)
    constants = {
        (plan.address(state), state.initial.digest)
        for plan in family.plans
        for state in plan.graph.states
        if isinstance(state.initial, Contents)
    }
    assert len(constants) == len({address for address, _ in constants}) == 4
    assert family.arena_bytes == max(plan.arena_bytes for plan in family.plans)
    assert family.largest is family.plans[0]
    for plan in family.plans:
        rest = [buffer.offset for buffer in plan.buffers if buffer.kind != "state"]
        assert min(rest) == family.state_bytes


def test_plans_keep_their_height_above_the_states(family):
    """The region of states grows by the constants of other sizes, and nothing else changes."""
    for size, plan in zip(family.sizes, family.plans, strict=True):
        alone = g.plan(build(**size), optimizer=g.optim.Adam())
        above = alone.arena_bytes - alone.state_bytes
        assert plan.arena_bytes - family.state_bytes == above
        grown = family.state_bytes - alone.state_bytes
        assert [b.offset + grown for b in alone.buffers if b.kind != "state"] == [
            b.offset for b in plan.buffers if b.kind != "state"
        ]


def test_a_state_at_another_offset_is_rejected(family):
    for index, plan in enumerate(family.plans):
        places = {state.name: plan.address(state) for state in plan.graph.states}
        swapped = moved(moved(plan, "a", places["b"]), "b", places["a"])
        check_plan(swapped)  # valid on its own
        with pytest.raises(PlanError, match=r"state '[ab]' has the offset") as caught:
            check_family(replaced(family, index, swapped), family.arena_bytes)
        assert caught.value.culprits[0] in "ab"


def test_a_write_to_a_constant_of_another_plan_is_rejected():
    """A valid plan whose values overlap bytes that it does not know to be a constant."""

    family = g.plan_family(
        lambda rows: build(rows, shared=False), {"rows": (40, 9, 16)}, optimizer=g.optim.Adam()
    )

    def end(plan):
        states = (plan.buffers[plan.placements[state].buffer] for state in plan.graph.states)
        return max(buffer.offset + align(buffer.bytes, ALIGNMENT) for buffer in states)

    index = min(range(3), key=lambda number: end(family.plans[number]))
    plan = family.plans[index]
    shift = family.state_bytes - end(plan)
    assert shift > 0, "its constants precede another plan's"
    sunk = replace(
        plan,
        buffers=tuple(
            b if b.kind == "state" else replace(b, offset=b.offset - shift) for b in plan.buffers
        ),
        workspaces={n: replace(b, offset=b.offset - shift) for n, b in plan.workspaces.items()},
    )
    check_plan(sunk)  # valid on its own
    with pytest.raises(PlanError, match="would overwrite a constant of another plan"):
        check_family(replaced(family, index, sunk), family.arena_bytes)


def test_constants_that_overlap_are_rejected(family):
    first, other = family.plans[0], family.plans[2]
    (address,) = {
        first.address(state)
        for state in first.graph.states
        if isinstance(state.initial, Contents) and state.shape == (40, 8)
    }
    (table,) = (s for s in other.graph.states if s.role == "constant" and s.shape == (16, 8))
    with pytest.raises(PlanError, match="constants of the family share byte"):
        check_family(replaced(family, 2, moved(other, table.name, address)), family.arena_bytes)


def test_other_differences_are_rejected(family):
    with pytest.raises(PlanError, match=r"plan 0 needs .* the arena of the family has"):
        check_family(family.plans, family.arena_bytes - 1)
    gpu = g.plan(build(16), optimizer=g.optim.Adam(), device="cuda")
    with pytest.raises(PlanError, match="plan 2 is for h200"):
        check_family(replaced(family, 2, gpu), 2**30)
    plans = [*family.plans[:2], g.plan(build(16), optimizer=g.optim.SGD())]
    with pytest.raises(PlanError, match="plan 0 has a state 'adam/m/a', but plan 2 does not"):
        check_family(plans, 2**30)
    other = in_one_arena([{}], [g.plan(wider(), optimizer=g.optim.Adam())])
    with pytest.raises(PlanError, match="state 'a' has the initial value"):
        check_family([family.plans[0], *other.plans], 2**30)


def wider():
    """The same states, one with other initial values."""
    x = g.input("x", (4, 8))
    h = g.matmul(x, g.parameter("b", (8, 8), initial=g.Initial("normal", 0.3)))
    return g.mean(g.matmul(h, g.parameter("a", (8, 8), initial=g.Initial("normal", 0.4))))


ZOO = {
    "unet": (lambda image: unet(batch=1, image=image, width=8, depth=2), {"image": (16, 24, 40)}),
    "mobilenet_v2": (lambda batch: mobilenet_v2(batch=batch, image=32), {"batch": (1, 7)}),
    "lstm": (lambda seq_len: lstm(seq_len=seq_len, hidden=16, batch=2), {"seq_len": (1, 4)}),
    "bert": (
        lambda seq_len: bert(layers=1, width=32, heads=2, vocab=50, seq_len=seq_len),
        {"seq_len": (1, 16, 40)},
    ),
}


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("bert", "cpu"),
        ("unet", "h100"),
        *(
            pytest.param(name, device, marks=pytest.mark.slow)
            for name, device in (
                ("lstm", "cpu"), ("unet", "cpu"), ("mobilenet_v2", "cpu"),
                ("mobilenet_v2", "h100"), ("lstm", "h100"), ("bert", "h100"),
            )
        ),
    ],
)  # fmt: skip
def test_networks_of_the_zoo_have_the_same_states_for_all_sizes(name, device):
    """No layout of a state depends on the size, and the arena is that of the largest plan."""
    build, sizes = ZOO[name]
    family = g.plan_family(build, sizes, optimizer="adamw", device=device)
    alone = [g.plan(build(**size), optimizer="adamw", device=device) for size in family.sizes]
    assert family.arena_bytes == max(plan.arena_bytes for plan in alone)


def test_the_checks_of_each_plan_apply(family):
    plan = family.plans[0]
    broken = replace(plan, buffers=tuple(replace(b, offset=b.offset + 1) for b in plan.buffers))
    with pytest.raises(PlanError, match="not a multiple of"):
        check_family(replaced(family, 0, broken), family.arena_bytes + 1)
