"""Pieces that fit together exactly: the shapes, what is made of them, and packings that hold."""

import itertools

import numpy as np
import pytest
from buffer_families import cut_evenly, cut_rectangle, first_fit_trap, random_lifetimes
from hypothesis import given
from properties.small_packings import free, is_packing, problem_of, rows
from properties.strategies import examples

from graphc.planner.pack import NORMAL, pack, phases
from graphc.planner.pack.joined import Joined
from graphc.planner.pack.phases import Packer

WHEEL = [(0, 6, 2), (6, 3, 5), (4, 5, 4), (0, 4, 7), (4, 2, 3)]
"""(first, duration, size) of a, b, c, d and, in the middle, e: 9 bytes for 9 times."""


def joined(given, seed=0):
    found = Joined(problem_of(given) if isinstance(given, list) else given, seed)
    work = sum(found.work())
    assert work > 0
    return found


def lives(found):
    problem = found.problem
    return sorted(
        zip(problem.first.tolist(), problem.last.tolist(), problem.size.tolist(), strict=True)
    )


def assert_holds(problem, found):
    """The pieces, packed on their own, are a packing of the buffers of the same height."""
    packer = Packer(found.problem, may_join=False)
    packer.improve(packer.bound, 10**6, packer.bound)
    offsets = found.offsets(packer.offsets)
    assert is_packing(problem, offsets, packer.height)


@pytest.mark.parametrize("given", [
    [(0, 2, 5), (2, 3, 5)],  # one hands its bytes on
    [(0, 2, 5), (2, 3, 2), (2, 3, 3)],  # what begins then is a pile
    [(0, 2, 2), (0, 2, 3), (2, 3, 5)],  # what ends then is one
    [(0, 2, 1), (0, 2, 4), (2, 3, 2), (2, 3, 3)],  # both are
    WHEEL,
    [(9 - first - long, long, size) for first, long, size in WHEEL],  # in the other direction
    [(0, 6, 2), (6, 3, 5), (4, 5, 1), (4, 5, 3), (0, 4, 7), (4, 2, 3)],  # c was piled before
])  # fmt: skip
def test_fitting_buffers_become_one_piece(given):
    problem = problem_of(given)
    found = joined(given)
    assert len(found.problem) == 1
    assert found.problem.size[0] == problem.bound
    assert is_packing(problem, found.offsets(np.zeros(1, np.int64)), problem.bound)


@pytest.mark.parametrize("given", [
    [(0, 2, 5), (2, 3, 4)],
    [(0, 3, 5), (1, 3, 4), (3, 3, 2)],
    [(first, long, size + (i == 4)) for i, (first, long, size) in enumerate(WHEEL)],
])  # fmt: skip
def test_misfitting_buffers_stay_apart(given):
    assert len(joined(given).problem) == len(given)


def test_of_three_that_live_equally_long_those_two_are_piled_that_fit():
    """4 + 3 are as large as the 7 bytes before them; 4 + 2 and 2 + 3 are as large as nothing."""
    given = [(0, 3, 7), (3, 4, 4), (3, 4, 2), (3, 4, 3), (0, 3, 1)]
    assert lives(joined(given)) == [(0, 1, 1), (0, 2, 7), (1, 2, 2)]


@examples(60)
@given(rows(14, longest=5, largest=9))
def test_every_packing_of_the_pieces_is_one_of_the_buffers(given):
    problem = problem_of(given)
    for seed in range(2):
        found = joined(problem, seed)
        assert len(found.problem) <= len(problem)
        assert_holds(problem, found)


@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_a_rectangle_become_few(seed):
    problem = free(cut_rectangle(1000, 1000, 2**20, seed))
    found = joined(problem)
    assert len(found.problem) < 30
    assert_holds(problem, found)


@pytest.mark.parametrize("make", [
    lambda: cut_rectangle(400, 400, 2**20, 2),
    lambda: cut_rectangle(1000, 1000, 2**20, 1),
    lambda: cut_evenly(10_000, 10_000, 2**30, 0),
    lambda: first_fit_trap(9),
])  # fmt: skip
def test_families_are_packed_at_their_known_optimum(make):
    lower, upper, size = make()
    found = pack(lower, upper, size, effort=NORMAL)
    assert found.height == found.bound
    order = np.argsort(lower, kind="stable")
    assert fits_byte_for_byte(lower[order], upper[order], size[order], found.offsets[order])


def fits_byte_for_byte(lower, upper, size, offsets):
    """Whether no two that live together overlap, by a sweep over time with those that live."""
    live = []
    for first, last, bytes_, at in zip(lower, upper, size, offsets, strict=True):
        live = [each for each in live if each[0] > first]
        if any(at < end and start < at + bytes_ for _, start, end in live):
            return False
        live.append((last, at, at + bytes_))
    return True


def test_the_pieces_of_a_seed_are_always_the_same():
    problem = free(cut_rectangle(300, 80, 1024, 0))
    one, same, other = (joined(problem, seed) for seed in (0, 0, 1))
    assert lives(one) == lives(same)
    assert lives(one) != lives(other)


def test_large_problems_are_joined_where_they_are_full(monkeypatch):
    asked = []
    monkeypatch.setattr(Packer, "_join", lambda packer, seed: iter(asked.append(seed) or ()))
    for columns in (cut_rectangle(300, 80, 1024, 0), random_lifetimes(300, 0)):
        packer = Packer(free(columns), order_limit=100, search_limit=1)  # no stacks
        for _ in itertools.islice(packer.steps, 5):
            pass
    assert asked == [0]


def test_first_fit_takes_far_more_than_is_live_in_its_trap():
    lower, upper, size = first_fit_trap(8)
    live, height = [], 0
    for first, last, bytes_ in zip(lower, upper, size, strict=True):
        live = sorted((start, end, until) for start, end, until in live if until > first)
        at = 0
        for start, end, _ in live:
            if start - at >= bytes_:
                break
            at = max(at, end)
        live.append((at, at + bytes_, last))
        height = max(height, at + bytes_)
    changes = np.zeros(upper.max() + 1, np.int64)
    np.add.at(changes, lower, size)
    np.add.at(changes, upper, -size)
    assert changes.cumsum().max() == 256
    assert height >= 4 * 256


def test_seeds_that_leave_too_many_pieces_end_the_joining(monkeypatch):
    """The first seed leaves few; a later one does not, and none is asked behind it."""
    asked = []

    class Later:
        def __init__(self, problem, seed):
            asked.append(seed)
            self.problem = problem

        def work(self):
            yield 1

    packer = Packer(free(cut_rectangle(60, 20, 64, 0)))
    packer.bound = packer.target = packer.wanted = 0  # never reached, so that all goes on
    monkeypatch.setattr(phases, "Joined", Later)
    for _ in itertools.islice(packer.steps, 200):
        pass
    assert asked == [0]
