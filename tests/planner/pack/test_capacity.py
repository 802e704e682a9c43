"""What errors about a capacity say, against counting time by time."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphc.errors import CapacityError
from graphc.planner.pack.capacity import LISTED, check_bound, check_height
from graphc.planner.pack.given import Buffers

ROWS = st.lists(
    st.tuples(st.integers(-3, 12), st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=12
)


def buffers_of(rows, pinned=None, ids=None):
    lower, duration, size = np.array(rows, np.int64).T
    return Buffers.of(lower, lower + duration, size, 1, pinned, ids)


def live_at(rows, time):
    return sum(size for birth, duration, size in rows if birth <= time < birth + duration)


@settings(deadline=None)
@given(ROWS, st.integers(0, 30))
def test_times_and_buffers_above_a_capacity_are_those_of_counting(rows, capacity):
    times = range(-4, 20)
    bound = max(live_at(rows, time) for time in times)
    if bound <= capacity:
        check_bound(buffers_of(rows), bound, capacity)
        return
    with pytest.raises(CapacityError) as caught:
        check_bound(buffers_of(rows), bound, capacity)
    error = caught.value
    assert (error.capacity, error.height, error.bound) == (capacity, bound, bound)
    told = {time for begin, end in error.times for time in range(begin, end)}
    assert told == {time for time in times if live_at(rows, time) > capacity}
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(error.times))
    peak = next(time for time in times if live_at(rows, time) == bound)
    assert f"{bound} bytes are live at time {peak}," in str(error)
    at_peak = [i for i, (birth, duration, _) in enumerate(rows) if birth <= peak < birth + duration]
    at_peak.sort(key=lambda i: (-rows[i][2], i))
    assert error.buffers == tuple(at_peak[:LISTED])


def test_a_message_names_six_buffers_and_six_spans_and_counts_the_others():
    rows = [(10 * i, 1, 5) for i in range(8)] + [(70, 1, size) for size in (9, 1, 2, 3, 4, 6, 7, 8)]
    with pytest.raises(CapacityError) as caught:
        check_bound(buffers_of(rows), 45, 4)
    assert len(caught.value.times) == 8
    assert [rows[i][2] for i in caught.value.buffers] == [9, 8, 7, 6, 5, 4]
    assert "[40, 41), [50, 51) and 2 more spans" in str(caught.value)
    with pytest.raises(CapacityError) as caught:
        check_bound(buffers_of(rows[:6]), 5, 4)
    assert "[40, 41), [50, 51); the largest" in str(caught.value)


def test_a_pin_above_the_capacity_is_the_cause_where_nothing_else_is():
    rows = [(0, 2, 4), (0, 2, 4), (2, 1, 3)]
    buffers = buffers_of(rows, {0: 4, 2: 20})
    told = r"buffer 2, live \[2, 3\) at bytes \[20, 23\)"
    with pytest.raises(CapacityError, match=told) as caught:
        check_bound(buffers, 23, 22)
    assert (caught.value.buffers, caught.value.times) == ((2,), ())
    check_bound(buffers, 23, 23)


@pytest.mark.parametrize(
    ("height", "proven", "said", "cure"),
    [
        (12, 10, "does not prove that none exists", "to at least 12, or the effort"),
        (12, 11, "an exhausted search or pinned buffers prove", "to at least 12"),
        (12, 12, "an exhausted search or pinned buffers prove", "to at least 12"),
    ],
)
def test_a_height_above_the_capacity_says_what_is_proven_and_what_helps(height, proven, said, cure):
    buffers = buffers_of([(0, 2, 4), (1, 2, 6), (3, 1, 9)], ids=("a", "b", "c"))
    check_height(buffers, 10, 10, 10)
    check_height(buffers, 9, 9, 10)
    with pytest.raises(CapacityError) as caught:
        check_height(buffers, height, proven, 10)
    error = caught.value
    assert (error.capacity, error.height, error.bound) == (10, height, proven)
    assert error.buffers == (1, 0)
    assert said in str(error)
    assert f"takes {height} bytes, and none can take fewer than {proven}" in str(error)
    assert str(error).endswith(
        "at time 1, where the largest buffers are buffer 'b' (6 bytes), buffer 'a' (4 bytes). "
        f"Raise the capacity {cure}"
    )
