"""Packings are valid, and as low as can be where that is known."""

import re

import numpy as np
import pytest
from buffer_families import cut_rectangle, nearly_full, training_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.lifetimes import least_height, most_live, overlaps
from properties.small_packings import LEVEL, fits, level_columns, problem_of
from properties.strategies import examples

from graphc.errors import CapacityError
from graphc.planner.pack import NORMAL, pack, phases
from graphc.progress import heard_by

LITTLE = 3 * 10**6
"""Effort that only goes a little beyond the first methods."""


def buffers(most, longest=10, largest=40):
    one = st.tuples(st.integers(-5, 20), st.integers(1, longest), st.integers(0, largest))
    return st.lists(one, max_size=most).map(
        lambda rows: tuple(
            np.array(column, np.int64)
            for column in (
                [a for a, _, _ in rows],
                [a + d for a, d, _ in rows],
                [s for _, _, s in rows],
            )
        )
    )


@settings(deadline=None)
@given(buffers(30))
def test_packings_are_valid_and_not_below_the_bound(given):
    lower, upper, size = given
    packing = pack(lower, upper, size, effort=LITTLE)
    assert overlaps(lower, upper, size, packing.offsets) == []
    assert packing.offsets.min(initial=0) >= 0
    assert packing.bound == most_live(lower.tolist(), upper.tolist(), size.tolist())
    assert packing.height == (packing.offsets + size).max(initial=0) >= packing.bound
    assert packing.is_optimal or packing.height > packing.bound


@examples(60)
@given(buffers(7, longest=4, largest=6))
def test_small_packings_are_the_lowest(given):
    lower, upper, size = (column.tolist() for column in given)
    packing = pack(lower, upper, size)
    assert packing.is_optimal
    assert packing.height == least_height(lower, upper, size)


def test_the_lowest_may_be_above_the_bound():
    lower, upper, size = [0, 0, 1, 3], [1, 3, 5, 5], [4, 4, 2, 8]
    packing = pack(lower, upper, size)
    assert packing.height == packing.bound == 10
    lower, duration, size = np.array(LEVEL).T
    packing = pack(lower, lower + duration, size)
    assert (fits(problem_of(LEVEL), 11), fits(problem_of(LEVEL), 12)) == (False, True)
    assert (packing.height, packing.bound, packing.proven) == (12, 11, 12)
    assert packing.is_optimal


@examples(60)
@given(buffers(7, longest=4, largest=6), st.sampled_from([0, 10**4, 10**5, 10**6]))
def test_the_proven_bound_is_at_most_the_optimum_at_any_effort(given, effort):
    lower, upper, size = (column.tolist() for column in given)
    packing = pack(lower, upper, size, effort=effort)
    assert packing.bound <= packing.proven <= least_height(lower, upper, size) <= packing.height
    assert packing.is_optimal == (packing.height == packing.proven)
    assert packing.is_optimal or packing.work >= effort


def test_the_work_goes_little_beyond_the_effort():
    columns = level_columns(0)
    for effort in (10**5, 10**6, 10**7):
        packing = pack(*columns, effort=effort)
        assert not packing.is_optimal
        assert effort <= packing.work <= 1.2 * effort


@settings(deadline=None)
@given(buffers(12), st.integers(1, 9))
def test_sizes_are_rounded_up_and_offsets_are_multiples(given, alignment):
    lower, upper, size = given
    packing = pack(lower, upper, size, alignment=alignment, effort=LITTLE)
    rounded = -(-size // alignment) * alignment
    assert overlaps(lower, upper, rounded, packing.offsets) == []
    assert not (packing.offsets % alignment).any()
    assert packing.height % alignment == 0
    assert packing.bound == most_live(lower.tolist(), upper.tolist(), rounded.tolist())


@settings(deadline=None)
@given(buffers(12), st.data())
def test_pinned_buffers_stay_where_they_are(given, data):
    lower, upper, size = given
    free = pack(lower, upper, size, effort=LITTLE)
    chosen = data.draw(st.sets(st.sampled_from(range(len(size))))) if len(size) else set()
    shift = data.draw(st.integers(0, 5))
    pinned = {index: int(free.offsets[index]) + shift for index in chosen}
    packing = pack(lower, upper, size, pinned=pinned, effort=LITTLE)
    assert overlaps(lower, upper, size, packing.offsets) == []
    assert all(packing.offsets[index] == offset for index, offset in pinned.items())
    highest = max((offset + size[index] for index, offset in pinned.items()), default=0)
    assert packing.bound >= max(highest, free.bound if not pinned else 0)
    assert packing.height == max((packing.offsets + size).max(initial=0), highest)


@pytest.mark.parametrize(
    ("offset", "proven"), [(0, 10), (1, 11), (2, 12), (3, 10), (4, 11), (6, 11), (8, 10)]
)
def test_gaps_of_pins_that_no_sizes_fill_raise_what_is_proven(offset, proven):
    packing = pack([0, 0, 0], [1, 1, 1], [2, 3, 5], pinned={0: offset}, effort=0)
    assert (packing.bound, packing.proven) == (10, proven)


@examples(40)
@given(buffers(6, longest=4, largest=5), st.data())
def test_small_packings_around_pins_are_the_lowest(given, data):
    """All offsets that can matter: sums of sizes above the floor or above a pin."""
    lower, upper, size = (column.tolist() for column in given)
    if not size:
        return
    index = data.draw(st.integers(0, len(size) - 1))
    pin = data.draw(st.integers(0, 8))
    packing = pack(lower, upper, size, pinned={index: pin})
    assert packing.is_optimal

    def fits_below(height):
        def place(done):
            i = len(done)
            if i == len(size):
                return True
            choices = [pin] if i == index else range(height - size[i] + 1)
            return any(
                not overlaps(lower[: i + 1], upper[: i + 1], size[: i + 1], [*done, offset])
                and place([*done, offset])
                for offset in choices
            )

        return place([])

    assert packing.height == packing.bound or not fits_below(packing.height - 1)


@pytest.mark.parametrize("seed", range(4))
def test_rectangles_cut_to_pieces(seed):
    lower, upper, size = cut_rectangle(60, 40, 512, seed)
    packing = pack(lower, upper, size)
    assert overlaps(lower, upper, size, packing.offsets) == []
    assert packing.height == packing.bound == 512


@pytest.mark.parametrize("seed", range(4))
def test_training_traces_end_at_the_bound(seed):
    lower, upper, size = training_trace(400, seed)
    packing = pack(lower, upper, size)
    assert overlaps(lower, upper, size, packing.offsets) == []
    assert packing.height == packing.bound == most_live(lower, upper, size)


@pytest.mark.slow
def test_a_hundred_thousand_buffers():
    lower, upper, size = training_trace(50_000, 0)
    packing = pack(lower, upper, size)
    assert packing.height == packing.bound
    again = pack(lower, upper, size)
    assert (again.offsets == packing.offsets).all()


def test_parts_that_never_live_together_are_packed_apart():
    parts = [cut_rectangle(30, 20, 256, seed) for seed in range(3)]
    lower = np.concatenate([part[0] + 20 * i for i, part in enumerate(parts)])
    upper = np.concatenate([part[1] + 20 * i for i, part in enumerate(parts)])
    size = np.concatenate([part[2] for part in parts])
    packing = pack(lower, upper, size)
    assert overlaps(lower, upper, size, packing.offsets) == []
    assert packing.height == packing.bound == 256


def test_each_of_two_high_parts_is_searched_for_the_whole_way_down():
    """Not for a little less than the other, as soon as one is lower."""
    lower, upper, size = nearly_full(120, 40, 2)
    both = (
        np.concatenate((lower, lower + 40)),
        np.concatenate((upper, upper + 40)),
        np.tile(size, 2),
    )
    one, two = pack(lower, upper, size, effort=10**8), pack(*both, effort=3 * 10**8)
    assert two.bound == one.bound < two.height <= one.height


def test_equal_problems_get_equal_offsets():
    lower, upper, size = cut_rectangle(80, 40, 1000, 5)
    first, second = (pack(lower, upper, size).offsets for _ in range(2))
    assert (first == second).all()


@pytest.mark.parametrize("given", [cut_rectangle(150, 60, 4096, 1), nearly_full(120, 40, 2)])
def test_more_effort_is_never_worse(given):
    heights = [pack(*given, effort=effort).height for effort in (0, 10**6, 10**7, 10**8)]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_less_is_looked_for_without_a_capacity_as_with_one(seed):
    """Where the bound is out of reach, what lies in between is asked for."""
    given = nearly_full(120, 40, seed)
    effort = 3 * 10**8
    packing = pack(*given, effort=effort)
    assert overlaps(*given, packing.offsets) == []
    # The last hundredth is luck.
    with pytest.raises(CapacityError, match="was found, which does not prove"):
        pack(*given, capacity=packing.height - packing.bound // 100, effort=effort)


def test_nothing_and_no_bytes():
    packing = pack([], [], [])
    assert (packing.height, packing.bound, packing.gap, packing.is_optimal) == (0, 0, 0.0, True)
    packing = pack([0, 1], [2, 3], [0, 0])
    assert (packing.height, packing.offsets.tolist()) == (0, [0, 0])
    assert pack([0, 1], [2, 3], [0, 5], pinned={0: 64}).height == 64


def test_a_long_search_reports_how_far_it_is_and_packs_the_same(monkeypatch):
    monkeypatch.setattr(phases, "REPORTED", 10**5)
    lower, upper, size = level_columns(0)
    columns = (lower, upper, 64 * size)
    heard: list[str] = []
    with heard_by(heard.append):
        packing = pack(*columns, effort=10**7, alignment=64)
    assert (packing.offsets == pack(*columns, effort=10**7, alignment=64).offsets).all()
    told = [
        re.fullmatch(r"packing (.*) buffers: (.*) bytes, at least (.*), (.*)% of the effort", line)
        for line in heard
    ]
    counts, heights, least, parts = zip(
        *([int(number.replace(",", "")) for number in line.groups()] for line in told), strict=True
    )
    assert 20 <= len(told) <= 100  # of ten million units of work, a report a hundred thousand
    assert set(counts) <= {len(columns[0])}
    assert sorted(heights, reverse=True) == list(heights)
    assert heights[0] > heights[-1] == packing.height
    assert sorted(least) == list(least)
    assert packing.bound <= least[0]
    assert least[-1] <= packing.proven
    assert sorted(parts) == list(parts)
    assert parts[-1] >= 90


def test_a_plan_is_packed_without_a_report(monkeypatch):
    """What plans are doing is told by who makes them."""
    assert NORMAL < phases.REPORTED
    monkeypatch.setattr(phases, "REPORTED", 10**6)
    heard: list[str] = []
    with heard_by(heard.append):
        assert not pack(*level_columns(0), effort=10**6 - 1).is_optimal
        assert heard == []
        pack(*level_columns(0), effort=2 * 10**6)
    assert len(heard) == 1


def test_many_buffers_with_a_pin_end_without_using_the_effort(monkeypatch):
    monkeypatch.setattr(phases, "ORDER_LIMIT", 20)
    monkeypatch.setattr(phases, "SEARCH_LIMIT", 20)
    lower, upper, size = cut_rectangle(60, 40, 512, 0)
    found = pack(lower, upper, size, pinned={0: 0}, effort=10**15)
    assert found.height > found.bound
    assert found.work < 10**6


def test_the_effort_goes_to_the_highest_of_the_parts():
    """Two parts that live apart: neither waits until the other has used up everything."""
    parts = [cut_rectangle(100, 40, 1000, seed) for seed in (3, 4)]
    lower, upper, size = (np.concatenate(column) for column in zip(*parts, strict=True))
    lower[len(parts[0][0]) :] += 40
    upper[len(parts[0][0]) :] += 40
    heights = []
    for effort in (0, 10**6, 10**7, 10**8):
        found = pack(lower, upper, size, effort=effort)
        assert found.height <= max(pack(*part, effort=effort // 4).height for part in parts)
        heights.append(found.height)
    assert heights == sorted(heights, reverse=True)
