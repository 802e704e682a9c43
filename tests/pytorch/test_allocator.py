"""The model of torch's caching allocator keeps its documented rules, and equals recorded runs."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_cases.allocation_traces import case

from graphc.devices.device import find_device
from graphc.errors import OptionError
from graphc.torch.fit.allocator import MIB, CachingAllocator, cublas_bytes, replay

RECORDED = Path(__file__).parent.parent / "golden" / "torch_allocator.txt"


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (88_080_384, 88_080_384, 84 * MIB),
    ],
)
def test_a_request_is_rounded_and_takes_a_segment(size, allocated, reserved):
    peaks = replay([(0, size)])
    # Up to 1 MiB of a large segment is not split off, and counts as allocated.
    assert allocated <= peaks.allocated_bytes <= allocated + (MIB if size > MIB else 0)
    assert peaks.reserved_bytes == reserved


def test_large_blocks_are_split_if_more_than_1_mib_remains():
    assert replay([(0, 19 * MIB), (0, -1), (1, 18 * MIB)]).allocated_bytes == 20 * MIB
    split = replay([(0, 20 * MIB), (0, -1), (1, 18 * MIB)])
    assert split.inactive_split_bytes == 2 * MIB
    assert split.reserved_bytes == 20 * MIB


def test_freed_neighbors_merge():
    trace = [(0, 12 * MIB), (1, 4 * MIB), (2, 4 * MIB), (3, 4 * MIB)]
    trace += [(key, -1) for key in (1, 3, 2)]
    assert replay([*trace, (4, 20 * MIB)]).reserved_bytes == 32 * MIB


def test_the_smallest_block_is_taken_that_is_large_enough():
    trace = [(0, 60 * MIB), (1, 40 * MIB), (2, 50 * MIB)]
    trace += [(key, -1) for key in range(3)]
    peaks = replay([*trace, (3, 39 * MIB), (4, 49 * MIB), (5, 60 * MIB)])
    assert peaks.reserved_bytes == 150 * MIB


def test_blocks_from_max_split_size_on_are_kept_whole():
    trace = [(0, 100 * MIB), (0, -1), (1, 30 * MIB)]
    assert replay(trace).reserved_bytes == 100 * MIB
    assert replay(trace, max_split_bytes=40 * MIB).reserved_bytes == 130 * MIB
    trace = [(0, 100 * MIB), (0, -1), (1, 81 * MIB)]  # within 20 MiB of the block
    assert replay(trace, max_split_bytes=40 * MIB).allocated_bytes == 100 * MIB


def test_cached_segments_are_released_at_the_capacity():
    """`test_out_of_memory_retry` of torch: two halves of the device fit one after the other."""
    half = 50 * MIB
    both = replay([(0, half), (1, half)], capacity_bytes=99 * MIB)
    assert both.failed_bytes == half
    turns = replay([(0, half), (0, -1), (1, half + MIB)], capacity_bytes=99 * MIB)
    assert turns.failed_bytes == 0
    assert turns.retries == 1
    assert turns.reserved_bytes == half + 2 * MIB


def test_expandable_segments_grow_in_place():
    growing = [(0, 30 * MIB), (0, -1), (1, 50 * MIB), (1, -1), (2, 90 * MIB)]
    assert replay(growing).reserved_bytes == 170 * MIB
    assert replay(growing, expandable_segments=True).reserved_bytes == 100 * MIB  # pages of 20 MiB


@pytest.mark.parametrize(
    ("trace", "settings", "text"),
    [
        ([(7, -5)], {}, "must allocate key 7 before it frees it"),
        ([(7, 5), (7, 5)], {}, "must free key 7 before it allocates it again"),
        ([], {"capacity_bytes": 1.5}, "capacity_bytes must be an integer of at least 1, got 1.5"),
        ([], {"max_split_bytes": MIB}, "at least 20971521, got 1048576"),
        ([], {"expandable_segments": "yes"}, "must be True or False, got 'yes'"),
    ],
)
def test_errors_name_the_rule_and_the_value(trace, settings, text):
    with pytest.raises(OptionError, match=text):
        replay(trace, **settings)


def test_a_published_snapshot():
    """``X @ W + b`` with 10,000 weights, and the workspace of cuBLAS.

    discuss.pytorch.org/t/178671 lists the blocks of `torch.cuda.memory_snapshot`.
    """
    allocator = CachingAllocator()
    workspace = cublas_bytes(find_device("a100"))
    for key, size in enumerate((40_000, 40, 4_000, workspace, 40, 40)):
        allocator.allocate(key, size)
    allocator.free(4)  # X @ W
    live = sorted(each.size for each in allocator.live.values())
    assert live == [512, 512, 4_096, 40_448, 8_519_680]
    assert sorted(each.size for each in allocator.free_blocks()) == [512, 2_051_072, 12_451_840]
    assert allocator.reserved_bytes == 2_097_152 + 20_971_520


def test_entries_of_zero_bytes_are_skipped():
    assert replay([(0, 0), (0, 0), (1, 1)]) == replay([(1, 1)])


@pytest.mark.parametrize("line", RECORDED.read_text().splitlines())
def test_peaks_equal_those_of_torch(line):
    """real/test_torch_allocator.py has recorded them."""
    seed, *recorded = map(int, line.split())
    replayed = case(seed)
    peaks = replay(replayed.trace, **replayed.settings())
    assert [*vars(peaks).values()] == recorded


@given(seed=st.integers(0, 2**32), is_expandable=st.booleans())
def test_blocks_never_overlap_and_free_neighbors_are_merged(seed, is_expandable):
    allocator = CachingAllocator(expandable_segments=is_expandable)
    for key, size in case(seed).trace:
        if size > 0:
            allocator.allocate(key, size)
        else:
            allocator.free(key)
        free = list(allocator.free_blocks())
        spans = sorted(
            (each.address, each.address + each.size, each.is_live)
            for each in [*allocator.live.values(), *free]
        )
        assert all(end <= start for (_, end, _), (start, _, _) in pairwise(spans))
        assert sum(end - start for start, end, _ in spans) == allocator.reserved_bytes
        assert allocator.allocated_bytes <= allocator.reserved_bytes
        for each in free:
            after = each.after
            assert after is None or after.is_live or not after.is_mapped


@given(seed=st.integers(0, 2**32))
def test_peaks_equal_those_of_a_simulator_that_searches_lists(seed):
    _, capacity, max_split, _ = replayed = case(seed)
    slow = _Slow(capacity or 1 << 60, max_split or 1 << 60)
    for key, size in replayed.trace:
        if size < 0:
            slow.free(key)
        elif not slow.allocate(key, size):
            break
    peaks = replay(
        replayed.trace, capacity_bytes=capacity or None, max_split_bytes=max_split or None
    )
    assert (peaks.allocated_bytes, peaks.reserved_bytes) == slow.peaks


class _Slow:
    """Segments are lists of [bytes, key], where None is free; everything is a linear search."""

    def __init__(self, capacity, max_split):
        self.capacity, self.max_split = capacity, max_split
        self.segments, self.peaks = [], (0, 0)

    def reserved(self):
        return sum(size for segment in self.segments for size, _ in segment)

    def allocate(self, key, size):
        size = -(-size // 512) * 512
        is_small = size <= MIB
        segment, at = self.find(size, is_small) or self.extend(size, is_small) or (None, 0)
        if segment is None:
            return False
        rest = segment[at][0] - size
        if rest and (is_small or (rest > MIB and size < self.max_split)):
            segment[at : at + 1] = [[size, key], [rest, None]]
        else:
            segment[at][1] = key
        live = sum(size for each in self.segments for size, key in each if key is not None)
        self.peaks = max(self.peaks[0], live), max(self.peaks[1], self.reserved())
        return True

    def find(self, size, is_small):
        fits = [
            (block[0], number, at)
            for number, segment in enumerate(self.segments)
            if segment.is_small == is_small
            for at, block in enumerate(segment)
            if block[1] is None and block[0] >= size
        ]
        if not fits:
            return None
        found, number, at = min(fits)
        if (found >= self.max_split) != (size >= self.max_split):
            return None
        if size >= self.max_split and found >= size + 20 * MIB:
            return None
        return self.segments[number], at

    def extend(self, size, is_small):
        new = 2 * MIB if is_small else 20 * MIB
        if size >= 10 * MIB:
            new = -(-size // (2 * MIB)) * (2 * MIB)
        for release in (lambda: True, lambda: self.release_large(size, is_small), self.release):
            if release() and self.reserved() + new <= self.capacity:
                segment = _Segment([[new, None]])
                segment.is_small = is_small
                self.segments.append(segment)
                return segment, 0
        return None

    def release_large(self, size, is_small):
        needed = max(size, self.max_split)
        large = [
            each for each in self.segments
            if each.is_small == is_small and each[0][1] is None and len(each) == 1
            and each[0][0] >= self.max_split
        ]  # fmt: skip
        large.sort(key=lambda each: each[0][0])
        gone = [each for each in large if each[0][0] >= needed][:1]
        while large and sum(each[0][0] for each in gone) < needed:
            gone.append(large.pop())
        self.segments = [each for each in self.segments if not any(each is one for one in gone)]
        return sum(each[0][0] for each in gone) >= needed

    def release(self):
        self.segments = [each for each in self.segments if len(each) > 1 or each[0][1] is not None]
        return True

    def free(self, key):
        for segment in self.segments:
            for block in segment:
                if block[1] == key:
                    block[1] = None
            for at in reversed(range(len(segment) - 1)):
                if segment[at][1] is None and segment[at + 1][1] is None:
                    segment[at][0] += segment.pop(at + 1)[0]


class _Segment(list):
    """A list with the pool of its segment."""
