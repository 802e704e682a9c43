"""List schedules: they keep what nodes wait for, and Graham's bound."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphc.memory.side_by_side import NOBODY, longest_paths_first, scheduled


@st.composite
def works(draw):
    """Needs and seconds of some nodes; None stands for views."""
    count = draw(st.integers(1, 14))
    needs = [
        sorted(draw(st.sets(st.integers(0, n - 1), max_size=3))) if n else [] for n in range(count)
    ]
    times = st.one_of(st.none(), st.integers(1, 9).map(float))
    return needs, [draw(times) for _ in range(count)]


def without_views(needs, seconds):
    """Needs in which views wait for nothing and nobody waits for them, as hazards are."""
    return [
        [] if own is None else [other for other in needed if seconds[other] is not None]
        for needed, own in zip(needs, seconds, strict=True)
    ]


def legal(schedule):
    """All pairs of nodes, the first of which runs first in every legal order."""
    before, last = {}, {}
    for number, slot in enumerate(schedule.slots):
        if slot is None:
            continue
        own = {*slot.waits, *([last[slot.stream]] if slot.stream in last else [])}
        before[number] = own.union(*(before[other] for other in own))
        last[slot.stream] = number
    return before


@given(works(), st.integers(1, 4))
def test_a_schedule_keeps_needs_and_its_clocks_are_the_partial_order(drawn, count):
    needs, seconds = without_views(*drawn), drawn[1]
    schedule = scheduled(needs, seconds, count)
    before = legal(schedule)
    assert before.keys() == {n for n, own in enumerate(seconds) if own is not None}
    for number, found in before.items():
        slot = schedule.slots[number]
        assert set(needs[number]) <= found
        assert 0 <= slot.stream < count
        assert all(schedule.slots[other].stream != slot.stream for other in slot.waits)
        hands = schedule.before[number]
        assert found == {n for n in before if n <= hands[schedule.slots[n].stream]} - {number}
    assert min((min(hands, default=0) for hands in schedule.before), default=0) >= NOBODY


@given(works(), st.integers(1, 4))
def test_schedules_take_at_most_twice_what_any_takes(drawn, count):
    """Graham (1966): below 2 - 1 / k times the longest chain or an equal share of all."""
    needs, seconds = without_views(*drawn), drawn[1]
    order = longest_paths_first(needs, seconds, count)
    assert sorted(order) == list(range(len(needs)))
    place = {number: at for at, number in enumerate(order)}
    for number, needed in enumerate(needs):
        assert all(place[other] < place[number] for other in needed)
    moved = [[place[other] for other in needs[number]] for number in order]
    found = scheduled(moved, [seconds[number] for number in order], count)
    chain = []
    for number, needed in enumerate(needs):
        chain.append((seconds[number] or 0.0) + max((chain[n] for n in needed), default=0.0))
    total = sum(own or 0.0 for own in seconds)
    least = max(*chain, total / count)
    assert least - 1e-9 <= found.seconds <= (2 - 1 / count) * least + 1e-9
    assert scheduled(needs, seconds, 1).seconds == pytest.approx(total)


def test_the_longest_path_goes_first():
    """Two streams, a chain of three behind three nodes that wait for nothing."""
    needs, seconds = [[], [], [], [2], [3]], [1.0] * 5
    order = longest_paths_first(needs, seconds, 2)
    assert order[0] == 2
    times = [scheduled(needs, seconds, 2).seconds]
    place = {number: at for at, number in enumerate(order)}
    moved = [[place[other] for other in needs[number]] for number in order]
    times.append(scheduled(moved, seconds, 2).seconds)
    assert times == [4.0, 3.0]


def test_the_best_of_all_orders_is_near():
    """Four nodes on two streams: no order of them is faster than what the rule finds."""
    needs, seconds = [[], [], [0], [1]], [3.0, 1.0, 1.0, 4.0]
    orders = [o for o in itertools.permutations(range(4)) if o.index(0) < o.index(2)]
    times = []
    for order in (o for o in orders if o.index(1) < o.index(3)):
        place = {number: at for at, number in enumerate(order)}
        moved = [[place[other] for other in needs[number]] for number in order]
        times.append(scheduled(moved, [seconds[n] for n in order], 2).seconds)
    order = longest_paths_first(needs, seconds, 2)
    place = {number: at for at, number in enumerate(order)}
    moved = [[place[other] for other in needs[number]] for number in order]
    assert scheduled(moved, [seconds[n] for n in order], 2).seconds == min(times) == 5.0
