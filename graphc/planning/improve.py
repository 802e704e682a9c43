"""Local search on a sequence: leave out what need not be computed again."""

from __future__ import annotations

import numpy as np

from graphc.planning.problem import Problem


def without_needless(problem: Problem, sequence: list[int], budget: int) -> list[int]:
    """Keep values instead of computing them again, dearest first, wherever the budget allows."""
    while True:
        shorter = _one_pass(problem, sequence, budget)
        if len(shorter) == len(sequence):
            return sequence
        sequence = shorter


def _one_pass(problem: Problem, sequence: list[int], budget: int) -> list[int]:
    """Leave out as many appearances as fit, with the profile kept up to date."""
    size = np.array(problem.bytes, np.int64)
    previous, ends = _lifetimes(problem, sequence)
    profile = _profile(problem, sequence, ends)
    again = [step for step, before in enumerate(previous) if before >= 0]
    again.sort(key=lambda step: (-problem.cost[sequence[step]], step))
    gone: set[int] = set()
    for step in again:
        node, start = sequence[step], previous[step]
        while start in gone:
            start = previous[start]
        span = slice(ends[start] + 1, step)
        room = budget - size[node]
        if span.start < span.stop and profile[span].max() > room:
            continue
        gone.add(step)
        profile[span] += size[node]
        profile[step] -= problem.workspace[node]
        ends[start] = max(ends[start], ends[step])
    return [node for step, node in enumerate(sequence) if step not in gone]


def _lifetimes(problem: Problem, sequence: list[int]) -> tuple[list[int], list[int]]:
    """For each step: the appearance of its node before, or -1; and its last reader."""
    made: dict[int, int] = {}
    previous, ends = [], list(range(len(sequence)))
    for step, node in enumerate(sequence):
        for source in problem.inputs[node]:
            ends[made[source]] = step
        previous.append(made.get(node, -1))
        made[node] = step
    for node in problem.outputs | problem.pinned:
        ends[made[node]] = len(sequence)
    return previous, ends


def _profile(problem: Problem, sequence: list[int], ends: list[int]) -> np.ndarray:
    change = np.zeros(len(sequence) + 2, np.int64)
    for step, node in enumerate(sequence):
        change[step] += problem.bytes[node]
        change[ends[step] + 1] -= problem.bytes[node]
    live = np.cumsum(change)[: len(sequence)] + problem.fixed_bytes
    return live + np.array([problem.workspace[node] for node in sequence], np.int64)
