"""The states of chain_copies.py, compiled: moves from each state, and the best state of each cell.

States are rows of two tables, which grow as states are found. `fronts` has the row of the best
state of each cell, by cut, by whether what crosses the cut is on the host, and by cell; -1 if the
cell is empty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphc.jit import compiled
from graphc.planner.profile import Floats, Integers

KEPT, LEAVING, DUE, SECONDS = range(4)
"""Columns of the amounts of a state: three numbers of bytes, and the extra seconds so far."""

PARENT, MOVE, ON_HOST, LEVEL, CROSSES = range(5)
"""Columns of the move to a state: the row of the state before; a take by its index, or -1 - c for a
split before the cut c; 1 if the inner values leave; the level of free bytes of reruns; and 1 if
what crosses the cut leaves, or LAST."""

LAST = 2
"""The mark of states after the last unit."""

RESERVED = (1.0, 0.5, 0.0)
"""Parts of the due bytes that have a place beside the reruns of a range."""


class Moves(NamedTuple):
    """The moves of a chain as arrays; bytes are floats.

    Of takes, `first_take` has the index of the first one by cut. By take there are the cut after
    it, the inner bytes that stay, those that may leave, the new bytes that cross the cut after it,
    the peaks, the seconds of forward and backward, and the extra ones among them. By cut,
    `may_cross` has the bytes that cross there and may leave. By pair of cuts, `split_need` are peak
    bytes of a split, `split_wait` those that must have left if the link is busy, `split_bytes` what
    crosses, and `forward` and `backward` the seconds. `reruns` has the extra seconds of ranges by
    level, and `level_bytes` the bytes of a level.
    """

    first_take: Integers
    stop: Integers
    stays: Floats
    leaves: Floats
    crossing: Floats
    forward_peak: Floats
    region_peak: Floats
    take_forward: Floats
    take_backward: Floats
    take_extra: Floats
    may_cross: Floats
    split_need: Floats
    split_wait: Floats
    split_bytes: Floats
    forward: Floats
    backward: Floats
    reruns: Floats
    level_bytes: float


class Limits(NamedTuple):
    """The bytes of the device, the rates of the link, the largest extra seconds, and the number of
    cells by direction."""

    free: float
    to_host: float
    to_device: float
    seconds: float
    cells: int


class Tables(NamedTuple):
    """Amounts and moves of states, by row."""

    amounts: Floats
    moves: Integers


@compiled
def search(moves: Moves, limits: Limits) -> Tables:
    """Return all states that were continued, and the last ones."""
    count, side = len(moves.first_take) - 1, limits.cells + 1
    fronts = np.full((count, 2, side * side * side), -1, np.int64)
    tables, used = Tables(np.zeros((1024, 4)), np.zeros((1024, 5), np.int64)), 1
    fronts[0, 0, 0], tables.moves[0, PARENT] = 0, -1
    for cut in range(count):
        takes = moves.first_take[cut + 1] - moves.first_take[cut]
        most = 4 * takes + 2 * len(RESERVED) * (count - cut) + 1
        for crosses in range(2):
            front = fronts[cut, crosses]
            least = _least(front, tables.amounts, side)
            copied = crosses * moves.may_cross[cut]
            for cell in range(len(front)):
                row = front[cell]
                if row < 0 or _is_dominated(tables.amounts[row, SECONDS], least, cell, side):
                    continue
                while used + most > len(tables.amounts):
                    amounts = np.concatenate((tables.amounts, np.zeros_like(tables.amounts)))
                    origins = np.concatenate((tables.moves, np.zeros_like(tables.moves)))
                    tables = Tables(amounts, origins)
                used = _take(moves, limits, fronts, tables, used, row, cut, copied)
                used = _split(moves, limits, fronts, tables, used, row, cut, copied)
    return Tables(tables.amounts[:used], tables.moves[:used])


@compiled
def _take(
    moves: Moves,
    limits: Limits,
    fronts: Integers,
    tables: Tables,
    used: int,
    row: int,
    cut: int,
    copied: float,
) -> int:
    """Add the states after the takes of a state, of whose crossing values `copied` bytes leave.
    Returns the number of rows used."""
    amounts, origins, count = tables.amounts, tables.moves, len(fronts)
    kept, leaving, due = amounts[row, KEPT], amounts[row, LEAVING], amounts[row, DUE]
    free = limits.free - kept - copied
    for take in range(moves.first_take[cut], moves.first_take[cut + 1]):
        stop, leaves = moves.stop[take], moves.leaves[take]
        forward_peak, region_peak = moves.forward_peak[take], moves.region_peak[take]
        if max(forward_peak, region_peak) > free:
            continue
        out = max(0.0, forward_peak - free + leaving)
        back = max(0.0, region_peak - free + due)
        total = amounts[row, SECONDS] + moves.take_extra[take]
        total += out / limits.to_host + back / limits.to_device
        left = max(0.0, leaving - out - moves.take_forward[take] * limits.to_host)
        still_due = max(0.0, due - back - moves.take_backward[take] * limits.to_device)
        if stop == count:
            # What has not left and what is due are the same values.
            total += max(0.0, still_due - left) / limits.to_device
            total += max(0.0, left - still_due) / limits.to_host
        if total > limits.seconds:
            continue
        for on_host in range(2 if leaves > 0 and stop < count else 1):
            size_out = copied + on_host * leaves
            stays = moves.stays[take] + (1 - on_host) * leaves
            amounts[used, KEPT] = kept + stays + moves.crossing[take]
            amounts[used, LEAVING], amounts[used, DUE] = left + size_out, still_due + size_out
            amounts[used, SECONDS] = total
            origins[used, PARENT], origins[used, MOVE] = row, take
            origins[used, ON_HOST], origins[used, LEVEL] = on_host, -1
            used = _add(moves, limits, fronts, tables, used, stop)
    return used


@compiled
def _split(
    moves: Moves,
    limits: Limits,
    fronts: Integers,
    tables: Tables,
    used: int,
    row: int,
    cut: int,
    copied: float,
) -> int:
    """Add the states after the splits of a state, as `_take` does."""
    amounts, origins = tables.amounts, tables.moves
    kept, leaving, due = amounts[row, KEPT], amounts[row, LEAVING], amounts[row, DUE]
    free = limits.free - kept - copied
    for stop in range(cut + 1, len(fronts)):
        if moves.split_need[cut, stop] > free:
            break
        out = max(0.0, moves.split_wait[cut, stop] - free + leaving)
        left = max(0.0, leaving - out - moves.forward[cut, stop] * limits.to_host)
        for part in range(len(RESERVED) if due > 0 else 1):
            held = RESERVED[part] * due
            if free < held:
                continue
            level = int((free - held) / moves.level_bytes + 1e-9)
            level = min(level, moves.reruns.shape[2] - 1)
            extra = moves.reruns[cut, stop - 1, level]
            if extra == np.inf:  # the reruns do not fit; `limits.seconds` may be infinite, too
                continue
            total = amounts[row, SECONDS] + extra
            total += out / limits.to_host + (due - held) / limits.to_device
            if not total <= limits.seconds:
                continue
            back = (extra + moves.backward[cut, stop]) * limits.to_device
            amounts[used, KEPT] = kept + moves.split_bytes[cut, stop]
            amounts[used, LEAVING] = left + copied
            amounts[used, DUE] = max(0.0, held - back) + copied
            amounts[used, SECONDS] = total
            origins[used, PARENT], origins[used, MOVE] = row, -1 - stop
            origins[used, ON_HOST], origins[used, LEVEL] = 0, level
            used = _add(moves, limits, fronts, tables, used, stop)
    return used


@compiled
def _add(
    moves: Moves, limits: Limits, fronts: Integers, tables: Tables, used: int, cut: int
) -> int:
    """Add the state in the next row, before `cut`: what crosses the cut is kept, or leaves. Returns
    the number of rows used."""
    if cut == len(fronts):
        tables.moves[used, CROSSES] = LAST
        return used + 1
    after = used
    for crosses in range(2 if moves.may_cross[cut] > 0 else 1):
        if after > used:
            tables.amounts[after], tables.moves[after] = tables.amounts[used], tables.moves[used]
        if crosses:
            tables.amounts[after, KEPT] -= moves.may_cross[cut]
        tables.moves[after, CROSSES] = crosses
        after += _put(fronts[cut, crosses], tables, after, limits)
    return after


@compiled
def _put(front: Integers, tables: Tables, row: int, limits: Limits) -> int:
    """Put the state of a new row into the front if it is the best one of its cell. Returns 1 if it
    keeps the row, 0 if it takes that of a worse state or is left out."""
    amounts = tables.amounts
    if amounts[row, KEPT] > limits.free:
        return 0
    cell = 0
    for column in (KEPT, LEAVING, DUE):
        place = int(np.ceil(amounts[row, column] * limits.cells / limits.free))
        cell = cell * (limits.cells + 1) + min(place, limits.cells)
    old = front[cell]
    if old < 0:
        front[cell] = row
        return 1
    ahead = amounts[old, SECONDS] - amounts[row, SECONDS]
    is_less = amounts[row, :SECONDS].sum() < amounts[old, :SECONDS].sum()
    if ahead > 0 or (ahead == 0 and is_less):
        amounts[old], tables.moves[old] = amounts[row], tables.moves[row]
    return 0


@compiled
def _least(front: Integers, amounts: Floats, side: int) -> Floats:
    """Return by cell the least seconds of states in cells that are nowhere larger."""
    least = np.full(len(front), np.inf)
    for cell in range(len(front)):
        if front[cell] >= 0:
            least[cell] = amounts[front[cell], SECONDS]
        if cell % side:
            least[cell] = min(least[cell], least[cell - 1])
        if cell // side % side:
            least[cell] = min(least[cell], least[cell - side])
        if cell // (side * side):
            least[cell] = min(least[cell], least[cell - side * side])
    return least


@compiled
def _is_dominated(seconds: float, least: Floats, cell: int, side: int) -> bool:
    """Return True if a state of a smaller cell in every direction is as fast. Cells have sizes up
    to their bound, so all of a lower cell are less; cell 0 is empty."""
    below = cell
    if cell % side:
        below -= 1
    if cell // side % side:
        below -= side
    if cell // (side * side):
        below -= side * side
    return bool(below != cell and least[below] <= seconds)
