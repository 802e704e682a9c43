"""Stacks of what lives equally long: any packing of them is one of the buffers."""

import numpy as np
from buffer_families import cut_evenly, first_fit_trap, random_lifetimes
from hypothesis import given
from hypothesis import strategies as st
from properties.small_packings import free, is_packing, problem_of, rows
from properties.strategies import examples

from graphc.planner.pack import NORMAL, pack
from graphc.planner.pack.phases import Packer
from graphc.planner.pack.stacked import stacked


def lifetimes(problem):
    return {*zip(problem.first.tolist(), problem.last.tolist(), strict=True)}


@examples(100)
@given(rows(30), st.integers(1, 20))
def test_a_packing_of_the_stacks_is_one_of_the_buffers(given_rows, most):
    problem = problem_of(given_rows)
    found = stacked(problem, most, alike=1)
    if found is None:
        assert len(lifetimes(problem)) > most
        return
    stacks, offsets = found
    assert len(stacks) <= most
    assert stacks.bound == problem.bound
    packer = Packer(stacks)
    assert is_packing(problem, offsets(packer.offsets), packer.height)


def test_stacks_are_as_low_as_their_number_allows():
    lower, size = np.zeros(100, np.int64), np.full(100, 8)
    for most, highest in ((100, 8), (99, 16), (50, 32), (10, 104), (1, 800)):
        stacks, _ = stacked(free((lower, lower + 1, size)), most)
        assert len(stacks) <= most
        assert stacks.size.max() <= highest
        assert stacks.size.sum() == 800


def test_a_trap_of_first_fit_with_many_buffers_is_packed_within_a_hundredth():
    """Where best fit in the order of time takes more than six times what is live."""
    lower, upper, size = first_fit_trap(13)
    found = pack(lower, upper, size, effort=NORMAL)
    assert found.bound == 2**13
    assert found.height <= 1.01 * found.bound
    for time in np.unique(lower):
        live = np.flatnonzero((lower <= time) & (time < upper))
        live = live[np.argsort(found.offsets[live])]
        ends = found.offsets[live] + size[live]
        assert (ends[:-1] <= found.offsets[live][1:]).all()
        assert ends[-1] <= found.height


def test_only_where_many_live_equally_long_are_there_stacks():
    lower, upper, size = random_lifetimes(4000, 0)
    fewest = stacked(free((lower // 1000, lower // 1000 + 1, size)), 2000)
    assert fewest is not None
    assert len(lifetimes(fewest[0])) == 4
    assert stacked(free((lower // 1000, lower // 1000 + 1, size)), 3) is None
    assert stacked(free((lower // 40, lower // 40 + 1, size)), 2000) is None
    assert stacked(free((lower, upper, size)), 4000) is None


def test_buffers_of_many_live_ranges_are_joined_and_not_stacked():
    """On stacks it ends higher, at 1.09 times what is live, for the same work."""
    lower, upper, size = cut_evenly(15_000, 200, 2**30, 0)
    found = pack(lower, upper, size, effort=6 * 10**9)
    assert found.height < 1.05 * found.bound
