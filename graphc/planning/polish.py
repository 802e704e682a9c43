"""Local search on a sequence: what the budget lets stay is not computed again.

Let step s stand at positions q < p of a sequence, and nowhere between. Without the repeat at
p, what reads s's results behind p reads those of q, so each has to stay live from its last reader
before p up to p. That is possible where on all of this stretch

    bytes live + bytes of the results that stay ≤ limit

and it saves the cost of s. Repeats are tried greedily, those of most cost a byte first and late
ones before early ones. Levels are only raised during a pass: that what the repeat read may now die
earlier is seen by the next pass, which measures anew. They end when one removes nothing, or would
raise the peak above both the limit and what it was.

A pass takes O(length of the sequence + length of all stretches) beside a sort; there are at most 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.planning.steps import Steps

PASSES = 8
"""Most passes over a sequence; each makes room for the next."""


def keep_more(steps: Steps, sequence: Sequence[int], limit: int) -> list[int]:
    """Hold values instead of computing them again, dearest bytes first, wherever `limit` allows."""
    best, levels = list(sequence), steps.profile(sequence, steps.held)
    for _ in range(PASSES):
        shorter = _one_pass(steps, best, levels, limit)
        if len(shorter) == len(best):
            break
        measured = steps.profile(shorter, steps.held)
        if max(measured) > max(limit - steps.fixed_bytes, max(levels)):
            break
        best, levels = shorter, measured
    return best


def _one_pass(steps: Steps, sequence: list[int], measured: Sequence[int], limit: int) -> list[int]:
    levels = np.array(measured, np.int64) + steps.fixed_bytes
    previous, ends = _appearances(steps, sequence)
    size = steps.bytes
    # Only repeats are tried, never first appearances, so every step stays in the sequence.
    again = [position for position, before in enumerate(previous) if before >= 0]
    worth = {
        position: steps.cost[sequence[position]]
        / max(steps.total(steps.outputs[sequence[position]]), 1)
        for position in again
    }
    again.sort(key=lambda position: (-worth[position], -position))
    gone: set[int] = set()
    for position in again:
        step, start = sequence[position], previous[position]
        # If the appearance before is gone too, its results come from the one before that.
        while start in gone:
            start = previous[start]
        read = [v for v in steps.outputs[step] if ends[position, v] > position]
        # Each result has to live on from where it would have died; what nobody reads any more does
        # not.
        stretches = [(_free_from(steps, sequence, ends[start, v], v), v) for v in read]
        stretches.sort()
        # Between the ends of two stretches the same is added; most comes last.
        edges = [*(end for end, _ in stretches), position]
        added, parts = 0, list[tuple[int, int, int]]()
        for (begin, value), end in zip(stretches, edges[1:], strict=True):
            added += size[value]
            # Where nothing is added a level may be above the limit: no doing of this repeat.
            if added and begin < end:
                parts.append((begin, end, added))
        # The last place alone tells most repeats that have to stay.
        if parts and levels[parts[-1][1] - 1] + parts[-1][2] > limit:
            continue
        if any(levels[begin:end].max() + more > limit for begin, end, more in parts):
            continue
        for begin, end, more in parts:
            levels[begin:end] += more
        gone.add(position)
        for value in read:
            # From now on the earlier appearance is what these readers read.
            ends[start, value] = ends[position, value]
    return [step for position, step in enumerate(sequence) if position not in gone]


def _free_from(steps: Steps, sequence: list[int], end: int, value: int) -> int:
    """The position from which on a value has no bytes, if position `end` reads it last."""
    # What was overwritten there took no bytes beside the output; to hold it undoes that at `end`.
    overwritten = (operand for _, operand in steps.overwrites[sequence[end]])
    return end if value in overwritten else end + 1


def _appearances(
    steps: Steps, sequence: Sequence[int]
) -> tuple[list[int], dict[tuple[int, int], int]]:
    """The appearance of each step before, or -1; the last reader of each (appearance, value)."""
    latest: dict[int, int] = {}
    previous: list[int] = []
    ends: dict[tuple[int, int], int] = {}
    maker = steps.maker
    for position, step in enumerate(sequence):
        for value in steps.inputs[step]:
            if maker[value] >= 0:
                ends[latest[maker[value]], value] = position
        previous.append(latest.get(step, -1))
        # Set behind the reads: a step reads what ran before it.
        latest[step] = position
        for value in steps.outputs[step]:
            ends[position, value] = position
    for value in steps.held:
        if maker[value] >= 0:
            ends[latest[maker[value]], value] = len(sequence)
    return previous, ends
