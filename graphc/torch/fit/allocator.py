"""A model of torch's CUDA caching allocator: the bytes that it reserves for a trace.

Follows c10/cuda/CUDACachingAllocator.cpp for one stream: rounding, two pools of segments, best
fit, splitting, merging, and the release of cached segments at the capacity. Not modeled: several
streams, private pools of CUDA graphs, `roundup_power2_divisions` and
`garbage_collection_threshold`. Of free blocks of one size the allocator takes the lowest address;
the model assumes that CUDA returns segments at ascending addresses.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from graphc.devices.device import HOPPER, Device
from graphc.errors import OptionError, truth, whole_number
from graphc.ir.types import align

KIB, MIB = 1 << 10, 1 << 20

BLOCK_BYTES = 512
"""Sizes are rounded up to multiples of this."""

_SMALL = MIB
"""The largest size served from the pool of small segments."""

_SMALL_SEGMENT, _LARGE_SEGMENT = 2 * MIB, 20 * MIB
"""Bytes of a segment for small sizes, and for sizes below `_OWN_SEGMENT`."""

_OWN_SEGMENT, _OWN_ROUNDING = 10 * MIB, 2 * MIB
"""From this size on, a new segment has the size of the request, rounded up."""

_ADDRESS_SPACE = _LARGE_SEGMENT << 50
"""Bytes of an expandable segment. torch takes 9/8 of the device, which no trace exceeds."""


def cublas_bytes(device: Device) -> int:
    """Return the default of ``CUBLAS_WORKSPACE_CONFIG``, as in torch's note on CUDA semantics.

    It is 32 MiB from Hopper on, else ``:4096:2:16:8``.
    """
    return 32 * MIB if device.architecture >= HOPPER else (2 * 4096 + 8 * 16) * KIB


@dataclass(frozen=True)
class AllocatorPeaks:
    """Peaks of torch's statistics while a trace is replayed.

    `allocated_bytes` is ``torch.cuda.max_memory_allocated``, `reserved_bytes` is
    ``max_memory_reserved``. `inactive_split_bytes` are free bytes in segments that also hold live
    blocks, and so cannot return to the device; torch does not count them in expandable segments.
    `retries` counts releases of all cached segments before an allocation (``num_alloc_retries``).
    `failed_bytes` is the size of the first allocation that does not fit the capacity, else 0.
    """

    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    retries: int
    failed_bytes: int


def replay(
    trace: Iterable[tuple[int, int]],
    *,
    capacity_bytes: int | None = None,
    max_split_bytes: int | None = None,
    expandable_segments: bool = False,
) -> AllocatorPeaks:
    """Return the allocator's peaks for a trace of (key, bytes) and, for a free, (key, -bytes).

    A key may be used again after its free. Entries of zero bytes are skipped. `capacity_bytes` is
    the memory of the device beside the CUDA context; the replay ends at an allocation that does
    not fit. `max_split_bytes` and `expandable_segments` are settings of
    ``PYTORCH_CUDA_ALLOC_CONF``. Raises `OptionError` for other sizes than positive integers, a
    `max_split_bytes` of up to 20 MiB, a key that is allocated twice, or freed unallocated.
    """
    allocator = CachingAllocator(capacity_bytes, max_split_bytes, expandable_segments)
    for key, size_bytes in trace:
        if size_bytes < 0:
            allocator.free(key)
        elif size_bytes > 0 and not allocator.allocate(key, size_bytes):
            break
    return allocator.peaks


@dataclass(eq=False, slots=True)
class Block:
    """A range of addresses in a segment: live, free, or (if expandable) without memory."""

    address: int
    size: int
    is_live: bool = False
    is_mapped: bool = True
    before: Block | None = None
    after: Block | None = None

    @property
    def is_split(self) -> bool:
        """Return True if the block is a part of its segment."""
        return self.before is not None or self.after is not None

    @property
    def extent(self) -> int:
        """Return the bytes of the block and of the unmapped block after it."""
        after = self.after
        return self.size + (after.size if after is not None and not after.is_mapped else 0)

    def cut(self, size: int) -> Block:
        """Shorten the block to `size` bytes; return the rest, linked after it."""
        rest = Block(self.address + size, self.size - size, False, self.is_mapped, self, self.after)
        if self.after is not None:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def absorb(self, other: Block) -> None:
        """Merge a neighbor into this block."""
        if other is self.before:
            self.address, self.before = other.address, other.before
            if self.before is not None:
                self.before.after = self
        else:
            self.after = other.after
            if self.after is not None:
                self.after.before = self
        self.size += other.size


@dataclass
class _Pool:
    """The blocks of small, or of large segments that are not live."""

    page: int
    """Bytes by which an expandable segment grows."""
    free: list[tuple[int, int, Block]] = field(default_factory=list)
    """Free blocks, in order of size and address."""
    unmapped: list[tuple[int, Block]] = field(default_factory=list)
    """Blocks without memory of the expandable segment, in order of address."""


class CachingAllocator:
    """The state of the allocator: `live` blocks by key, and `peaks` so far."""

    def __init__(
        self,
        capacity_bytes: int | None = None,
        max_split_bytes: int | None = None,
        expandable_segments: bool = False,
    ) -> None:
        """Create an allocator without segments; `replay` explains arguments and errors."""
        self._capacity = self._max_split = sys.maxsize
        if capacity_bytes is not None:
            self._capacity = whole_number("capacity_bytes", capacity_bytes)
        if max_split_bytes is not None:
            self._max_split = whole_number("max_split_bytes", max_split_bytes, _LARGE_SEGMENT + 1)
        self._is_expandable = truth("expandable_segments", expandable_segments)
        self._small, self._large = _Pool(_SMALL_SEGMENT), _Pool(_LARGE_SEGMENT)
        if expandable_segments:
            for start, pool in ((0, self._small), (_ADDRESS_SPACE, self._large)):
                pool.unmapped.append((start, Block(start, _ADDRESS_SPACE, is_mapped=False)))
        self.live: dict[int, Block] = {}
        self.reserved_bytes = self.allocated_bytes = 0
        self._inactive = self._next_address = 0
        self._peaks = AllocatorPeaks(0, 0, 0, 0, 0)

    @property
    def peaks(self) -> AllocatorPeaks:
        """The largest values of the statistics so far."""
        return self._peaks

    def free_blocks(self) -> Iterator[Block]:
        """Yield the free blocks that are mapped to memory of the device."""
        for pool in (self._small, self._large):
            yield from (block for _, _, block in pool.free)

    def allocate(self, key: int, size_bytes: int) -> bool:
        """Allocate bytes under a key; return False if they do not fit the capacity."""
        if key in self.live:
            raise OptionError(f"a trace must free key {key!r} before it allocates it again")
        size = align(size_bytes, BLOCK_BYTES)
        pool = self._pool(size)
        block = self._best_fit(pool, size) or self._from_device(pool, size)
        if block is None:
            self._note(failed_bytes=size_bytes)
            return False
        if self._is_divisible(pool, block, size):
            self._add(pool, block.cut(size))
        block.is_live = True
        self.live[key] = block
        self.allocated_bytes += block.size
        self._note()
        return True

    def free(self, key: int) -> None:
        """Return the block of a key to its pool, merged with its free neighbors."""
        if key not in self.live:
            raise OptionError(f"a trace must allocate key {key!r} before it frees it")
        block = self.live.pop(key)
        block.is_live = False
        self.allocated_bytes -= block.size
        pool = self._pool(block.size)
        self._merge(pool, block)
        self._add(pool, block)
        self._note()

    def _pool(self, size: int) -> _Pool:
        return self._small if size <= _SMALL else self._large

    def _is_divisible(self, pool: _Pool, block: Block, size: int) -> bool:
        """Return True if the rest of a block becomes a block of its own."""
        rest = block.size - size
        if pool is self._small or self._is_expandable:
            return rest > 0
        return rest > _SMALL and size < self._max_split

    def _best_fit(self, pool: _Pool, size: int) -> Block | None:
        """Take the smallest free block of a size; one that can grow counts with its extent."""
        at = bisect_left(pool.free, (size,))
        if at == len(pool.free):
            return None
        while (
            self._is_expandable
            and at + 1 < len(pool.free)
            and pool.free[at + 1][2].extent < pool.free[at][2].extent
        ):
            at += 1
        block = pool.free[at][2]
        if size < self._max_split <= block.size:  # kept whole, for large requests
            return None
        if size >= self._max_split and block.size >= size + _LARGE_SEGMENT:
            return None
        self._remove(pool, block)
        return block

    def _from_device(self, pool: _Pool, size: int) -> Block | None:
        """Take memory of the device; at the capacity, release cached memory and try again."""
        block = self._reserve(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._reserve(pool, size)
        if block is None:
            self._release_all()
            self._note(retries=1)
            block = self._reserve(pool, size)
        return block

    def _reserve(self, pool: _Pool, size: int) -> Block | None:
        """Return a new segment, or memory of the expandable one; None at the capacity."""
        if self._is_expandable:
            return self._expand(pool, size)
        segment = pool.page if size < _OWN_SEGMENT else align(size, _OWN_ROUNDING)
        if self.reserved_bytes + segment > self._capacity:
            return None
        block = Block(self._next_address, segment)
        self._next_address += segment
        self.reserved_bytes += segment
        return block

    def _release_oversize(self, pool: _Pool, size: int) -> bool:
        """Release free blocks of at least `max_split_bytes`, as many as a request needs.

        Return False if they do not suffice.
        """
        if self._max_split == sys.maxsize or self._is_expandable:
            return False
        needed = max(size, self._max_split)
        at = bisect_left(pool.free, (needed,))
        if at < len(pool.free):
            self._release(pool, pool.free[at][2])
            return True
        released = 0
        while released < needed and pool.free and pool.free[-1][0] >= self._max_split:
            released += pool.free[-1][0]
            self._release(pool, pool.free[-1][2])
        return released >= needed

    def _release_all(self) -> None:
        """Return all segments without live blocks, and free pages, to the device."""
        for pool in (self._small, self._large):
            for _, _, block in list(pool.free):
                if self._is_expandable:
                    self._unmap(pool, block)
                elif not block.is_split:
                    self._release(pool, block)

    def _release(self, pool: _Pool, block: Block) -> None:
        """Return a free segment to the device."""
        self._remove(pool, block)
        self.reserved_bytes -= block.size

    def _expand(self, pool: _Pool, size: int) -> Block | None:
        """Map pages after a free block, or into the first gap that has `size` bytes."""
        block = next(found for each in pool.unmapped if (found := _range_for(each[1], size)))
        if not block.is_mapped and not self._map(pool, block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.after
            assert after is not None  # _range_for has found it
            if not self._map(pool, after, min(after.size, size - block.size)):
                return None
            block = after
        self._remove(pool, block)
        return block

    def _map(self, pool: _Pool, block: Block, size: int) -> bool:
        """Map the first pages of an unmapped block; return False at the capacity."""
        size = align(size, pool.page)
        if self.reserved_bytes + size > self._capacity:
            return False
        pool.unmapped.remove((block.address, block))
        block.is_mapped = True
        if size < block.size:
            rest = block.cut(size)
            rest.is_mapped = False
            insort(pool.unmapped, (rest.address, rest))
        self._merge(pool, block)
        self._add(pool, block)
        self.reserved_bytes += size
        return True

    def _unmap(self, pool: _Pool, block: Block) -> None:
        """Return the whole pages of a free block to the device."""
        start = align(block.address, pool.page)
        end = (block.address + block.size) // pool.page * pool.page
        if start >= end:
            return
        self._remove(pool, block)
        if start > block.address:
            head, block = block, block.cut(start - block.address)
            self._add(pool, head)
        if end < block.address + block.size:
            self._add(pool, block.cut(end - block.address))
        self.reserved_bytes -= block.size
        block.is_mapped = False
        self._merge(pool, block)
        insort(pool.unmapped, (block.address, block))

    def _merge(self, pool: _Pool, block: Block) -> None:
        """Merge the neighbors of a block that are not live and mapped as it is."""
        for other in (block.before, block.after):
            if other is None or other.is_live or other.is_mapped != block.is_mapped:
                continue
            if other.is_mapped:
                self._remove(pool, other)
            else:
                pool.unmapped.remove((other.address, other))
            block.absorb(other)

    def _add(self, pool: _Pool, block: Block) -> None:
        insort(pool.free, (block.size, block.address, block))
        self._inactive += block.size * (block.is_split and not self._is_expandable)

    def _remove(self, pool: _Pool, block: Block) -> None:
        del pool.free[bisect_left(pool.free, (block.size, block.address))]
        self._inactive -= block.size * (block.is_split and not self._is_expandable)

    def _note(self, retries: int = 0, failed_bytes: int = 0) -> None:
        """Update the peaks after a change."""
        before = self._peaks
        self._peaks = AllocatorPeaks(
            max(before.allocated_bytes, self.allocated_bytes),
            max(before.reserved_bytes, self.reserved_bytes),
            max(before.inactive_split_bytes, self._inactive),
            before.retries + retries,
            before.failed_bytes or failed_bytes,
        )


def _range_for(unmapped: Block, size: int) -> Block | None:
    """Return the block that begins a range of free and unmapped blocks of `size` bytes, or None.

    The range begins with the free block before the unmapped one, if there is one.
    """
    before = unmapped.before
    first = before if before is not None and not before.is_live else unmapped
    block: Block | None = first
    while block is not None and not block.is_live and size > 0:
        size -= block.size
        block = block.after
    return first if size <= 0 else None
