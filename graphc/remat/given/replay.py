"""The checker: runs a sequence over a problem and measures it. It shares nothing with planners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.errors import ProblemError
from graphc.remat.given.problem import Problem


@dataclass(frozen=True, slots=True)
class Replay:
    """What a sequence costs, the most bytes that it needs at one step, and that step."""

    cost: float
    peak_bytes: int
    peak_step: int


def replay(problem: Problem, sequence: Sequence[int]) -> Replay:
    """Measure a sequence of positions; raises `ProblemError` where it is not legal.

    A value is live from the step that computes it to its last reader before it is computed again;
    outputs and pinned values to the end.
    """
    last_made: dict[int, int] = {}
    ends: list[int] = list(range(len(sequence)))
    for step, node in enumerate(sequence):
        if not 0 <= node < len(problem):
            raise ProblemError(f"step {step} names node {node}, which does not exist")
        for source in problem.inputs[node]:
            if source not in last_made:
                raise ProblemError(
                    f"step {step} computes node {problem.ids[node]} before node "
                    f"{problem.ids[source]}, which it reads"
                )
            ends[last_made[source]] = step
        if node in problem.pinned and node in last_made:
            raise ProblemError(f"step {step} computes the pinned node {problem.ids[node]} again")
        last_made[node] = step
    for node in sorted(problem.outputs | problem.pinned):
        if node not in last_made:
            raise ProblemError(f"node {problem.ids[node]} is an output or pinned, but not computed")
        ends[last_made[node]] = len(sequence)
    freed: list[int] = [0] * (len(sequence) + 1)
    live = peak = problem.fixed_bytes
    at = 0
    cost = 0.0
    for step, node in enumerate(sequence):
        live += problem.bytes[node]
        if live + problem.workspace[node] > peak:
            peak, at = live + problem.workspace[node], step
        cost += problem.cost[node]
        freed[ends[step]] += problem.bytes[node]
        live -= freed[step]
    return Replay(cost, peak, at)


def live_during(problem: Problem, sequence: Sequence[int], step: int) -> set[int]:
    """The nodes whose values are live at a step of a legal sequence."""
    needed = set(problem.outputs | problem.pinned)
    for node in reversed(sequence[step + 1 :]):
        needed.discard(node)
        needed.update(problem.inputs[node])
    made = set(sequence[: step + 1])
    return (needed & made) | {sequence[step], *problem.inputs[sequence[step]]}
