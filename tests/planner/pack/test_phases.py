"""The phases of packing: each does what it is named after, in turn, and only ever finds less."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from properties.small_packings import (
    LEVEL,
    best_fit,
    fits,
    is_packing,
    level_columns,
    lowest_first,
    problem_of,
    rows,
)
from properties.strategies import examples

from graphc.planner.pack import exact, phases
from graphc.planner.pack.orders import basic_orders, disturbed_orders, ranks
from graphc.planner.pack.phases import SQUEAKS, Packer
from graphc.planner.pack.valleys import fill_valleys
from graphc.random_numbers import random_numbers


def problem_from(lower, upper, size, pinned=None):
    return problem_of(list(zip(lower, upper - lower, size, strict=True)), pinned)


LEVEL_PROBLEM = problem_from(*level_columns(0))


def without_joins(problem, **limits):
    """The other methods alone; test_joined.py has this one."""
    return Packer(problem, may_join=False, **limits)


def steps_of(packer, target, wanted):
    packer.target, packer.wanted = target, wanted
    return packer.steps


def heights_by_work(problem, steps, **limits):
    """Heights after the first methods, one more at a time, by an effort one above their work."""
    heights, effort = [], 0
    for _ in range(steps):
        packer = without_joins(problem, **limits)
        packer.improve(problem.bound, effort, problem.bound)
        heights.append(packer.height)
        effort = packer.work + 1
    return heights


def height_of(problem, offsets):
    return int((np.array(offsets) + problem.size).max())


def as_an_allocator(problem):
    """Best fit in the order of time by its definition, byte by byte."""
    offsets, height = {}, 0
    for i in sorted(range(len(problem)), key=lambda i: (problem.first[i], -problem.size[i], i)):
        live = [j for j in offsets if problem.last[j] > problem.first[i]]
        taken = {byte for j in live for byte in range(offsets[j], offsets[j] + problem.size[j])}
        edges = sorted({-1, *taken, height})
        holes = [(end - byte - 1, byte + 1) for byte, end in itertools.pairwise(edges)]
        holes = [(room, start) for room, start in holes if room > 0]
        room, offsets[i] = min(
            (hole for hole in holes if hole[0] >= problem.size[i]), default=(None, height)
        )
        if room is None:
            # The topmost hole grows, if there is one.
            offsets[i] = next((start for room, start in holes if start + room == height), height)
            height = offsets[i] + int(problem.size[i])
    return [offsets[i] for i in range(len(problem))]


@examples(100)
@given(rows(14, longest=5, largest=9))
def test_the_first_packing_is_what_an_allocator_with_best_fit_gives(given):
    problem = problem_of(given)
    packer = without_joins(problem)
    assert packer.offsets.tolist() == as_an_allocator(problem)
    assert packer.height == height_of(problem, packer.offsets)
    assert is_packing(problem, packer.offsets, packer.height)


@pytest.mark.parametrize("seed", range(4))
def test_lowest_place_first_then_best_and_first_fit_in_every_order(seed):
    """Each against its definition, on buffers that none of these packs at the bound."""
    problem = problem_from(*level_columns(seed))
    orders = [order.tolist() for order in basic_orders(problem)]
    assert len(orders) == 6
    packings = [lowest_first(problem, order) for order in orders]
    packings += [best_fit(problem, order, tight) for order in orders for tight in (True, False)]
    best = [without_joins(problem).height]
    for offsets in packings:
        best.append(min(best[-1], height_of(problem, offsets)))
    assert best[-1] > problem.bound
    assert heights_by_work(problem, len(best), squeaks=0) == best


@pytest.mark.parametrize("seed", range(8))
def test_lowest_place_first_packs_what_best_and_first_fit_do_not(seed):
    """So it is needed: what comes before the search ends lower with it."""
    problem = problem_from(*level_columns(seed))
    orders = [order.tolist() for order in basic_orders(problem)]
    lowest = min(height_of(problem, lowest_first(problem, order)) for order in orders)
    fitted = min(
        height_of(problem, best_fit(problem, order, tight))
        for order in orders
        for tight in (True, False)
    )
    assert lowest < fitted
    assert heights_by_work(problem, 7)[-1] == lowest


@pytest.mark.parametrize("seed", [0, 1, 3, 5, 6, 7])
def test_the_squeaky_wheel_packs_lower_than_the_orders_that_it_begins_with(seed):
    problem = problem_from(*level_columns(seed))
    heights = heights_by_work(problem, 7 + SQUEAKS)
    assert heights[-1] < heights[6]
    assert heights[-1] >= problem.bound


def calls_of(packer, monkeypatch, steps, wanted=0):
    """What a packer does in its first steps, told by the kernels that it calls."""
    calls = []

    def told(name, function):
        def tell(*arguments):
            calls.append((name, arguments))
            return function(*arguments)

        return tell

    monkeypatch.setattr(packer, "_in_valleys", told("valleys", packer._in_valleys))
    monkeypatch.setattr(packer, "_in_order", told("order", packer._in_order))
    search = exact.ExactSearch.search
    monkeypatch.setattr(exact.ExactSearch, "search", lambda *given: told("search", search)(*given))
    for _ in itertools.islice(steps_of(packer, packer.problem.bound, wanted), steps):
        pass
    return calls


def names(calls):
    return [(name, len(list(group))) for name, group in itertools.groupby(n for n, _ in calls)]


def test_every_phase_has_its_turn_and_every_other_search_asks_for_less(monkeypatch):
    packer = without_joins(LEVEL_PROBLEM)
    bound = packer.bound
    # Nothing is wanted but the bound, as without a capacity.
    calls = calls_of(packer, monkeypatch, 1 + 6 + 40 + 12 + 3 + 40 + 1 + 3, wanted=bound)
    assert names(calls) == [
        ("valleys", 46), ("order", 12), ("search", 3), ("valleys", 40), ("search", 4)
    ]  # fmt: skip
    for call, order in zip(calls[:6], basic_orders(LEVEL_PROBLEM), strict=True):
        assert (call[1][0] == order).all()
    searches = [arguments for name, arguments in calls if name == "search"]
    for (_, order, _, _), expected in zip(searches, disturbed_orders(LEVEL_PROBLEM), strict=False):
        assert (order == expected).all()
    assert [number for *_, number in searches] == [0, 0, 1, 1, 2, 2, 3]
    capacities = [capacity for _, _, capacity, _ in searches]
    assert capacities[::2] == [bound] * 4
    height = heights_by_work(LEVEL_PROBLEM, 1 + 6 + 40 + 12)[-1]
    assert capacities[1::2] == [height - (height - bound) // part for part in (4, 16, 4)]
    assert all(bound < capacity < height for capacity in capacities[1::2])


def test_a_height_that_the_caller_wants_is_asked_for_before_others(monkeypatch):
    bound = LEVEL_PROBLEM.bound
    packer = without_joins(LEVEL_PROBLEM)
    calls = calls_of(packer, monkeypatch, 1 + 6 + 40 + 12 + 3 + 40 + 1, wanted=bound + 3)
    capacities = [arguments[2] for name, arguments in calls if name == "search"]
    assert capacities == [bound, bound + 3, bound, bound + 3]


def test_a_height_that_is_reached_already_or_impossible_is_not_asked_for(monkeypatch):
    steps = 1 + 6 + 40 + 12 + 2
    for wanted in (LEVEL_PROBLEM.bound, heights_by_work(LEVEL_PROBLEM, steps - 2)[-1]):
        calls = calls_of(without_joins(LEVEL_PROBLEM), monkeypatch, steps, wanted)
        (_, (_, _, least, _)), (_, (_, _, capacity, _)) = calls[-2:]
        assert least == LEVEL_PROBLEM.bound != capacity != wanted


def test_buffers_above_the_target_move_to_the_front_by_a_random_distance(monkeypatch):
    """Round after round, from the first disturbed order and then from the second."""
    problem = problem_from(*level_columns(2, count=10))
    target = problem.bound
    packer = without_joins(problem, squeaks=6)
    calls = calls_of(packer, monkeypatch, 1 + 6 + 6 + 12 + 3 + 6 + 1 + 3 + 6)
    orders = [arguments[0].tolist() for name, arguments in calls if name == "valleys"][6:]
    assert len(orders) == 6 + 12  # once in the phase, then from two orders between searches
    for begin, rounds in ((0, orders[:6]), (0, orders[6:12]), (1, orders[12:])):
        start = next(itertools.islice(disturbed_orders(problem), begin, None)).tolist()
        place = {buffer: float(start.index(buffer)) for buffer in range(len(problem))}
        for number, order in enumerate(rounds, 1 + 6 * begin):
            assert order == sorted(place, key=lambda buffer: place[buffer])
            ends = np.array(lowest_first(problem, order)) + problem.size
            blamed = np.flatnonzero(ends > target).tolist()
            for buffer, drawn in zip(blamed, random_numbers(len(blamed), number), strict=True):
                part = (drawn + 1) / 2  # of the longest way, 0.3 of all places, most by less
                place[buffer] -= 0.3 * len(problem) * part * part


def test_work_is_counted_by_what_a_method_looks_at(monkeypatch):
    count, call = len(LEVEL_PROBLEM), phases.CALL
    packer = Packer(problem_from(*level_columns(0), {0: 700}))
    assert packer.work == call + count**2
    calls_of(packer, monkeypatch, 1 + 5)
    assert packer.work == 6 * (call + count**2)
    packer = without_joins(LEVEL_PROBLEM)
    assert packer.work == 0
    (_, (order,)), *_ = calls_of(packer, monkeypatch, 1 + 1)
    visits = fill_valleys(
        LEVEL_PROBLEM.first, LEVEL_PROBLEM.last, LEVEL_PROBLEM.size, ranks(order),
        LEVEL_PROBLEM.by_birth, LEVEL_PROBLEM.births, np.zeros(count, np.int64),
    )[1]  # fmt: skip
    assert packer.work == call + phases.VISIT * visits
    assert count <= visits <= count * count


def test_large_problems_are_not_placed_in_quadratic_work(monkeypatch):
    packer = without_joins(LEVEL_PROBLEM, order_limit=len(LEVEL_PROBLEM) - 1, search_limit=1)
    calls = calls_of(packer, monkeypatch, 200)
    assert names(calls) == [("valleys", 199)]


def test_buffers_beside_pins_are_fitted_around_them_and_searched(monkeypatch):
    problem = problem_from(*level_columns(0), {0: 700})
    packer = without_joins(problem)
    calls = calls_of(packer, monkeypatch, 1 + 12 + 3 + 40 + 1)
    assert names(calls) == [("order", 12), ("search", 3), ("order", 40), ("search", 1)]
    assert is_packing(problem, packer.offsets, packer.height)


def test_many_buffers_beside_pins_end_without_using_the_effort():
    problem = problem_from(*level_columns(0), {0: 0})
    packer = without_joins(problem, order_limit=10, search_limit=10)
    packer.improve(problem.bound, 10**15, problem.bound)
    assert packer.height > problem.bound
    assert packer.work < 10**6


def work_until(target):
    packer = without_joins(LEVEL_PROBLEM)
    for _ in steps_of(packer, target, target):
        if packer.height <= target:
            return packer.work
    raise AssertionError("the search has no end")


def test_packing_ends_as_soon_as_its_target_is_reached():
    for target in sorted({*heights_by_work(LEVEL_PROBLEM, 60)}):
        packer = without_joins(LEVEL_PROBLEM)
        packer.improve(target, 10**15, target)
        assert packer.height <= target
        assert packer.work == work_until(target)


def test_an_exhausted_search_raises_the_bound_to_the_least_height():
    problem = problem_of(LEVEL)
    packer = without_joins(problem)
    packer.improve(problem.bound, 10**12, problem.bound)
    assert (problem.bound, packer.bound, packer.height) == (11, 12, 12)
    assert not fits(problem, 11)
    assert is_packing(problem, packer.offsets, 12)


@examples(40)
@given(rows(5))
def test_more_work_never_ends_higher_and_every_packing_is_valid(given):
    problem = problem_of(given)
    heights = []
    for effort in (0, 1, 10**5, 10**6, 10**7):
        packer = Packer(problem)
        packer.improve(problem.bound, effort, problem.bound)
        assert is_packing(problem, packer.offsets, packer.height)
        heights.append(packer.height)
    assert sorted(heights, reverse=True) == heights
    assert fits(problem, heights[-1])
    assert not fits(problem, packer.bound - 1)
