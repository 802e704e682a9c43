"""The kernels alone: against plain Python, and compiled against not compiled."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from buffer_families import cut_rectangle
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.lifetimes import overlaps
from properties.small_packings import best_fit, fits, lowest_first, problem_of

from graphc.planner.pack import pack
from graphc.planner.pack.exact import ExactSearch, Outcome, luby
from graphc.planner.pack.in_order import place_in_order
from graphc.planner.pack.orders import ranks
from graphc.planner.pack.problem import PackingProblem
from graphc.planner.pack.valleys import fill_valleys

ROWS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 10), st.integers(1, 30)), min_size=1, max_size=25
)


@settings(deadline=None)
@given(ROWS, st.booleans(), st.randoms(use_true_random=False))
def test_best_and_first_fit(rows, tightest, random):
    problem = problem_of(rows)
    order = np.array(random.sample(range(len(rows)), len(rows)))
    offsets = np.zeros(len(rows), np.int64)
    height = place_in_order(
        problem.first, problem.last, problem.size, order, problem.is_pinned, tightest, offsets
    )
    assert offsets.tolist() == best_fit(problem, order.tolist(), tightest)
    assert height == (offsets + problem.size).max()


@settings(deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_valleys_are_filled_lowest_first(rows, random):
    problem = problem_of(rows)
    order = np.array(random.sample(range(len(rows)), len(rows)))
    offsets = np.zeros(len(rows), np.int64)
    height, _ = fill_valleys(
        problem.first, problem.last, problem.size, ranks(order),
        problem.by_birth, problem.births, offsets,
    )  # fmt: skip
    assert offsets.tolist() == lowest_first(problem, order.tolist())
    assert height == (offsets + problem.size).max()


@settings(deadline=None)
@given(ROWS)
def test_sections_keep_who_lives_with_whom(rows):
    problem = problem_of(rows)
    for i, (low, long, _) in enumerate(rows):
        for j, (other, longer, _) in enumerate(rows):
            together = low < other + longer and other < low + long
            assert together == bool(
                problem.first[i] < problem.last[j] and problem.first[j] < problem.last[i]
            )
    live = [{i for i in range(len(rows)) if problem.first[i] <= s < problem.last[i]}
            for s in range(problem.sections)]  # fmt: skip
    assert all(not a <= b and not b <= a for a, b in itertools.pairwise(live))
    for i in range(len(rows)):
        within = range(problem.first[i], problem.last[i])
        assert problem.crowd[i] == max(sum(problem.size[j] for j in live[s]) for s in within)


PURE = """
import sys
sys.modules["numba"] = None
import numpy as np
from graphc.planner.pack import pack
lower, upper, size = np.load(sys.argv[1])
for pinned in (None, {0: 4096}):
    print(pack(lower, upper, size, pinned=pinned, effort=3 * 10**6).offsets.tolist())
assert sys.modules["numba"] is None
"""


def test_offsets_do_not_depend_on_numba(tmp_path):
    pytest.importorskip("numba")
    rows = np.stack(cut_rectangle(45, 30, 2000, 3))
    np.save(tmp_path / "rows.npy", rows)
    done = subprocess.run(
        [sys.executable, "-c", PURE, str(tmp_path / "rows.npy")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for pinned, line in zip((None, {0: 4096}), done.stdout.splitlines(), strict=True):
        offsets = pack(*rows, pinned=pinned, effort=3 * 10**6).offsets
        assert line == str(offsets.tolist())
        assert overlaps(*rows, offsets) == []


def test_restarts_follow_lubys_sequence():
    assert [luby(number) for number in range(1, 16)] == [
        1,
        1,
        2,
        1,
        1,
        2,
        4,
        1,
        1,
        2,
        1,
        1,
        2,
        4,
        8,
    ]


PINNED = [
    # first, last, size, pin (-1: none); the least packing is 8 high
    [(0, 1, 5, -1), (1, 2, 5, 3), (1, 2, 2, 0), (0, 2, 1, -1)],
    [(0, 1, 4, -1), (0, 3, 3, -1), (3, 5, 2, 3), (2, 4, 4, -1), (0, 5, 1, -1), (2, 5, 2, -1)],
]


@pytest.mark.parametrize(("rows", "capacity"), [(PINNED[0], 8), (PINNED[1], 10)])
def test_no_packing_is_overlooked_beside_pins(rows, capacity):
    first, last, size, pin = np.array(rows, np.int64).T
    problem = PackingProblem.of(first, last, size, pin >= 0, np.maximum(pin, 0))
    assert fits(problem, capacity)
    for order in itertools.permutations(range(len(rows))):
        found = ExactSearch(problem).search(np.array(order), capacity, 1000)
        assert found.outcome is Outcome.FOUND
