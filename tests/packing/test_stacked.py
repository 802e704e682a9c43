"""Stacks of what lives equally long: any packing of them is one of the buffers."""

import numpy as np
import pytest
from buffer_families import first_fit_trap, random_lifetimes
from hypothesis import given
from hypothesis import strategies as st
from properties.small_packings import is_packing, problem_of, rows
from properties.strategies import examples

from graphc.packing import NORMAL, pack
from graphc.packing.phases import Packer
from graphc.packing.problem import PackingProblem
from graphc.packing.stacked import Stacked


def lifetimes(problem):
    return {*zip(problem.first.tolist(), problem.last.tolist(), strict=True)}


@examples(100)
@given(rows(30), st.integers(1, 20))
def test_a_packing_of_the_stacks_is_one_of_the_buffers(given_rows, most):
    problem = problem_of(given_rows)
    stacked = Stacked(problem, most)
    if stacked.problem is None:
        assert len(lifetimes(problem)) > most
        return
    assert len(stacked.problem) <= most
    assert stacked.problem.bound == problem.bound
    packer = Packer(stacked.problem)
    assert is_packing(problem, stacked.offsets(packer.offsets), packer.height)


def test_stacks_are_as_low_as_their_number_allows():
    lower, size = np.zeros(100, np.int64), np.full(100, 8)
    none = np.zeros(100, np.int64)
    problem = PackingProblem.of(lower, lower + 1, size, none.astype(bool), none)
    for most, highest in ((100, 8), (99, 16), (50, 32), (10, 104), (1, 800)):
        stacks = Stacked(problem, most).problem
        assert len(stacks) <= most
        assert stacks.size.max() <= highest
        assert stacks.size.sum() == 800


def test_a_trap_of_first_fit_with_many_buffers_is_packed_within_a_hundredth():
    """Where best fit in the order of time takes five times what is live."""
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


@pytest.mark.parametrize("is_few", [True, False])
def test_only_where_many_live_equally_long_are_there_stacks(is_few):
    lower, upper, size = random_lifetimes(4000, 0)
    if is_few:
        lower, upper = lower // 200, upper // 200 + 1
    none = np.zeros(len(size), np.int64)
    problem = PackingProblem.of(lower, upper, size, none.astype(bool), none)
    stacks = Stacked(problem, 2000).problem
    assert (stacks is not None) == (len(lifetimes(problem)) <= 2000) == is_few
