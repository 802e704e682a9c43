"""Local search on a sequence: what the budget lets stay is not computed again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphc.planning.steps import Tape

PASSES = 8
"""Most passes over a sequence; each makes room for the next."""


def keep_more(tape: Tape, sequence: Sequence[int], limit: int) -> list[int]:
    """Hold values instead of computing them again, dearest bytes first, wherever `limit` allows."""
    best = list(sequence)
    for _ in range(PASSES):
        shorter = _one_pass(tape, best, limit)
        if len(shorter) == len(best) or tape.peak(shorter) > max(limit, tape.peak(best)):
            return best
        best = shorter
    return best


def _one_pass(tape: Tape, sequence: list[int], limit: int) -> list[int]:
    levels = np.array(tape.profile(sequence, tape.held), np.int64) + tape.fixed_bytes
    previous, ends = _appearances(tape, sequence)
    size = tape.bytes
    again = [position for position, before in enumerate(previous) if before >= 0]
    worth = {
        position: tape.cost[sequence[position]]
        / max(tape.total(tape.outputs[sequence[position]]), 1)
        for position in again
    }
    again.sort(key=lambda position: (-worth[position], -position))
    gone: set[int] = set()
    for position in again:
        step, start = sequence[position], previous[position]
        while start in gone:
            start = previous[start]
        read = [v for v in tape.outputs[step] if ends[position, v] > position]
        stretches = [(_free_from(tape, sequence, ends[start, v], v), v) for v in read]
        first = min((end for end, _ in stretches), default=position)
        added = np.zeros(position - first, np.int64)
        for end, value in stretches:
            added[end - first :] += size[value]
        if np.any((levels[first:position] + added > limit) & (added > 0)):
            continue
        levels[first:position] += added
        gone.add(position)
        for value in read:
            ends[start, value] = ends[position, value]
    return [step for position, step in enumerate(sequence) if position not in gone]


def _free_from(tape: Tape, sequence: list[int], end: int, value: int) -> int:
    """The position from which on a value has no bytes, if position `end` reads it last."""
    overwritten = (operand for _, operand in tape.overwrites[sequence[end]])
    return end if value in overwritten else end + 1


def _appearances(
    tape: Tape, sequence: Sequence[int]
) -> tuple[list[int], dict[tuple[int, int], int]]:
    """The appearance of each step before, or -1; the last reader of each (appearance, value)."""
    latest: dict[int, int] = {}
    previous: list[int] = []
    ends: dict[tuple[int, int], int] = {}
    maker = tape.maker
    for position, step in enumerate(sequence):
        for value in tape.inputs[step]:
            if maker[value] >= 0:
                ends[latest[maker[value]], value] = position
        previous.append(latest.get(step, -1))
        latest[step] = position
        for value in tape.outputs[step]:
            ends[position, value] = position
    for value in tape.held:
        if maker[value] >= 0:
            ends[latest[maker[value]], value] = len(sequence)
    return previous, ends
