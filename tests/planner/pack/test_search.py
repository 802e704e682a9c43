"""The exact search against trying all offsets of small problems."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties.small_packings import LEVEL, fits, is_packing, problem_of, rows
from properties.strategies import examples

from graphc.planner.pack.branching import list_choices, lowest_support, most_constrained
from graphc.planner.pack.exact import ExactSearch, Outcome
from graphc.planner.pack.search import FOUND, LIMIT_REACHED, NONE_EXISTS, search

LONG = 10**6
"""A restart's number, and so a limit, that small problems do not reach."""


def all_but_reached(found):
    assert found.outcome is not Outcome.LIMIT_REACHED
    return found.outcome is Outcome.FOUND


@examples(150)
@given(rows(6), st.randoms(use_true_random=False), st.integers(-1, 3))
def test_a_packing_is_found_just_where_one_exists(given, random, above):
    problem = problem_of(given)
    order = np.array(random.sample(range(len(problem)), len(problem)))
    capacity = max(0, problem.bound + above)
    found = ExactSearch(problem).search(order, capacity, LONG)
    assert all_but_reached(found) == fits(problem, capacity)
    if found.outcome is Outcome.FOUND:
        assert is_packing(problem, found.offsets, capacity)


@examples(150)
@given(rows(6, largest=4), st.data())
def test_a_packing_around_pins_is_found_just_where_one_exists(given, data):
    chosen = data.draw(st.sets(st.integers(0, len(given) - 1), min_size=1, max_size=2))
    pinned = {index: data.draw(st.integers(0, 6)) for index in sorted(chosen)}
    problem = problem_of(given, pinned)
    fixed = np.flatnonzero(problem.is_pinned)
    held = problem_of([given[i] for i in fixed], dict(enumerate(problem.offset[fixed].tolist())))
    if not is_packing(held, held.offset, held.bound):
        return  # pins that overlap are refused before any search
    capacity = problem.bound + data.draw(st.integers(0, 3))
    order = np.arange(len(problem))
    found = ExactSearch(problem).search(order, capacity, LONG)
    assert all_but_reached(found) == fits(problem, capacity)
    if found.outcome is Outcome.FOUND:
        assert is_packing(problem, found.offsets, capacity)


def test_the_answer_depends_neither_on_the_order_nor_on_what_was_searched_before():
    problem = problem_of(LEVEL)
    assert problem.bound == 11
    assert (fits(problem, 11), fits(problem, 12)) == (False, True)
    exact, rng = ExactSearch(problem), np.random.default_rng(0)
    for _ in range(200):
        order = rng.permutation(len(LEVEL))
        for capacity in (12, 11):  # one search after another on the same tables
            found = exact.search(order, capacity, LONG)
            assert all_but_reached(found) == (capacity == 12)


def searched(problem, capacity, limit):
    """How a search ends, its decisions and its work, with the rank of buffers as they are given."""
    exact = ExactSearch(problem)
    exact.search(np.arange(len(problem)), 0, 0)  # gives ranks; nothing fits into 0
    tables = (exact._buffers, exact._sections, exact._neighbours, exact._members, exact._pins)
    return search(*tables, capacity, limit)


@pytest.mark.parametrize("capacity", [11, 12])
def test_a_search_ends_at_its_limit_and_not_before(capacity):
    problem = problem_of(LEVEL)
    end, decisions, work = searched(problem, capacity, LONG)
    assert end == (FOUND if capacity == 12 else NONE_EXISTS)
    assert decisions > 2
    before = 0
    for limit in range(decisions):
        outcome, taken, done = searched(problem, capacity, limit)
        assert (outcome, taken) == (LIMIT_REACHED, limit + 1)
        assert before <= done <= work
        before = done
    assert searched(problem, capacity, decisions) == (end, decisions, work)


def test_the_limit_grows_with_the_sequence_of_restarts_and_with_the_buffers(monkeypatch):
    limits = []

    def seen(*arguments):
        limits.append(arguments[-1])
        return LIMIT_REACHED, 0, 0

    monkeypatch.setattr("graphc.planner.pack.exact.search", seen)
    for count in (10, 600):
        exact = ExactSearch(problem_of([(i % 5, 2, 1) for i in range(count)]))
        for number in (0, 1, 2, 6):
            exact.search(np.arange(count), 10, number)
    assert limits == [1000, 1000, 2000, 4000, 1200, 1200, 2400, 4800]


def begun(given, pinned=None):
    """The tables of a search that has placed nothing."""
    exact = ExactSearch(problem_of(given, pinned))
    exact.search(np.arange(len(given)), 0, 0)
    return exact._buffers, exact._sections, exact._neighbours, exact._members


def test_the_outermost_section_with_the_fewest_choices_is_branched_on():
    # Sections 0, 1 and 2; the first holds two buffers, the last three, the middle one all long.
    given = [(0, 1, 2), (2, 1, 2), (2, 1, 1), (0, 2, 3), (1, 2, 3)]
    buffers, sections, _, members = begun(given)
    assert most_constrained(9, buffers, sections, members) == 0
    choices = np.zeros(8, np.int64)
    end = list_choices(0, buffers, sections, members, choices, 2)
    assert choices[2:end].tolist() == [0, 3]  # by rank, which is their number
    end = list_choices(2, buffers, sections, members, choices, 0)
    assert choices[:end].tolist() == [1, 2, 4]


def test_a_buffer_that_leaves_a_floor_rests_on_the_lowest_neighbor():
    # In section 0 are buffers 0 and 1; 1 also meets 2, of 5 units, and 3, of 4, in section 1.
    given = [(0, 1, 2), (0, 2, 3), (1, 1, 5), (1, 1, 4)]
    buffers, sections, neighbours, members = begun(given)
    assert lowest_support(0, buffers, sections, neighbours, members) == 4
