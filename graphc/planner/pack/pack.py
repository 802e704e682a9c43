"""Offset assignment for buffers with fixed live ranges: independent parts, each in phases."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from graphc.byte_sizes import parse_bytes
from graphc.errors import whole_number
from graphc.planner.pack.capacity import check_bound, check_height
from graphc.planner.pack.given import Buffers
from graphc.planner.pack.phases import Packer
from graphc.planner.pack.problem import Integers, Packing

NORMAL = 15 * 10**7
"""Effort for a memory plan, in units of work: some tenths of a second if the bound is not
reached."""

THOROUGH = 2 * 10**10
"""Effort for the lowest packing, in units of work: up to about a minute."""


def pack(
    lower: npt.ArrayLike,
    upper: npt.ArrayLike,
    size: npt.ArrayLike,
    *,
    alignment: int = 1,
    pinned: Mapping[int, int] | None = None,
    capacity: int | str | None = None,
    effort: int = THOROUGH,
    ids: Sequence[str] | None = None,
) -> Packing:
    """Assign offsets so that no two buffers with overlapping live ranges overlap, minimizing
    height.

    `lower`, `upper` and `size` are integers, one per buffer (shape ``[buffers]``). A buffer is live
    on the half-open interval `[lower, upper)`. It takes `size` bytes, rounded up to `alignment`, at
    a multiple of `alignment`. `pinned` maps buffers, by index, to fixed offsets in bytes. `effort`
    counts units of work. The result depends on the effort, but never on time or machine. More
    effort never gives a higher packing. Messages name buffers by their `ids`, or by index without
    `ids`.

    The search stops as soon as the height is known to be minimal, or is at most `capacity` bytes.
    `graphc.planner.pack.phases` lists the algorithms and their sources.

    Raises `PackingError` for invalid input, and `CapacityError` if the height found exceeds
    `capacity` bytes.
    """
    effort = whole_number("effort", effort, 0)
    if isinstance(capacity, str):
        capacity = parse_bytes("capacity", capacity)
    if capacity is not None:
        capacity = whole_number("capacity", capacity, 0)
    buffers = Buffers.of(lower, upper, size, alignment, pinned, ids)
    offsets = buffers.offset.copy()
    takes_bytes = np.flatnonzero(buffers.size > 0)
    problem, unit = buffers.problem(takes_bytes)
    ends = (buffers.offset + buffers.size)[buffers.is_pinned]
    bound = max(problem.bound * unit, int(ends.max(initial=0)))
    if capacity is not None:
        check_bound(buffers, bound, capacity)
    whole = Packer(problem, unit)
    proven, work = bound, whole.work
    wanted = bound if capacity is None else capacity
    if whole.height * unit > wanted:
        whole.offsets, least, work = _by_parts(whole, bound // unit, wanted // unit, effort)
        proven = max(proven, least * unit)
    offsets[takes_bytes] = whole.offsets * unit
    height = max(int((offsets + buffers.size).max(initial=0)), bound)
    if capacity is not None:
        check_height(buffers, height, proven, capacity)
    return Packing(offsets, height, bound, proven, work)


def _by_parts(whole: Packer, target: int, wanted: int, effort: int) -> tuple[Integers, int, int]:
    """Pack each group of buffers on its own if live ranges of groups do not overlap. The highest
    group is always improved next, until all are at most `wanted`.

    Returns offsets, a lower bound of the height, and the work done.
    """
    problem, offsets = whole.problem, whole.offsets.copy()
    ends = offsets + problem.size
    groups = [group for group in problem.apart() if int(ends[group].max()) > wanted]
    packers = [_packer_of(whole, group) for group in groups]
    work = sum(packer.work for packer in dict.fromkeys([whole, *packers]))
    highest = [(-packer.height, index) for index, packer in enumerate(packers)]
    heapq.heapify(highest)
    while work < effort:
        _, index = heapq.heappop(highest)
        packer = packers[index]
        if packer.height <= max(wanted, packer.bound):
            break
        # The goal is the height of the next highest part, and at least one unit less than now.
        goal = max(min(-highest[0][0], packer.height - 1) if highest else target, wanted)
        before = packer.work
        has_more = packer.improve(target, effort - work + before, wanted, goal)
        work += packer.work - before
        if not has_more:
            break
        heapq.heappush(highest, (-packer.height, index))
    for group, packer in zip(groups, packers, strict=True):
        offsets[group] = packer.offsets
    return offsets, max([target, *(packer.bound for packer in packers)]), work


def _packer_of(whole: Packer, group: Integers) -> Packer:
    """Return a packer for a group of buffers, initialized with their current offsets. If the group
    contains all buffers, return `whole`."""
    if len(group) == len(whole.problem):
        return whole
    packer = Packer(whole.problem.part(group), whole.unit)
    ends = whole.offsets[group] + whole.problem.size[group]
    packer.keep(whole.offsets[group], int(ends.max()))
    return packer
