"""Independent checker of schedules: simulates one and measures it. Shares no code with planners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.errors import ProblemError
from graphc.planner.given.names import check_problem, steps_of
from graphc.planner.given.problem import GivenProblem


@dataclass(frozen=True, slots=True)
class Replay:
    """The cost of a schedule, its peak bytes, and the position of the peak in the schedule."""

    cost: float
    peak_bytes: int
    peak_step: int


def replay(problem: GivenProblem, sequence: Sequence[int]) -> Replay:
    """Measure a schedule of node ids, such as `Solution.sequence`; raises `ProblemError` if it is
    not legal.

    A value is live from the position that computes it to its last use before it is computed again.
    Outputs and the values of pinned nodes are live to the end. An output takes the bytes of an
    input that it may overwrite if this is the input's last use; pairs are tried in the order given.
    """
    return replay_steps(problem, steps_of(check_problem(problem), sequence))


def replay_steps(problem: GivenProblem, sequence: Sequence[int]) -> Replay:
    """Measure a schedule of steps, which are numbered from 0; see `replay`."""
    ends = _last_uses(problem, sequence)
    freed = [0] * (len(sequence) + 1)
    live = peak = problem.fixed_bytes
    at = 0
    cost = 0.0
    last_made: dict[int, int] = {}
    for step, node in enumerate(sequence):
        dying = {v for v in problem.inputs[node] if ends[last_made[v], v] == step}
        shared: set[int] = set()
        saved = 0
        for output, operand in problem.overwrites[node]:
            if operand in dying and shared.isdisjoint((output, operand)):
                shared |= {output, operand}
                saved += problem.bytes[output]
        live += sum(problem.bytes[value] for value in problem.outputs[node])
        if live - saved + problem.workspace[node] > peak:
            peak, at = live - saved + problem.workspace[node], step
        cost += problem.cost[node]
        for value in problem.outputs[node]:
            last_made[value] = step
            freed[ends[step, value]] += problem.bytes[value]
        live -= freed[step]
    return Replay(cost, peak, at)


def _last_uses(problem: GivenProblem, sequence: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return the position of the last use, by (position, value) of each computation of a value.
    Raises `ProblemError` if the schedule is not legal.
    """
    ends: dict[tuple[int, int], int] = {}
    last_made: dict[int, int] = {}
    done: set[int] = set()
    for step, node in enumerate(sequence):
        name = problem.ids[node]
        for value in problem.inputs[node]:
            if value not in last_made:
                source = problem.ids[problem.producer[value]]
                raise ProblemError(
                    f"step {step} computes node {name} before node {source}, which it reads"
                )
            ends[last_made[value], value] = step
        for first in problem.after[node]:
            if first not in done:
                raise ProblemError(
                    f"step {step} computes node {name} before node {problem.ids[first]}, which "
                    "must run first"
                )
        if node in problem.once and node in done:
            kind = "pinned node" if node in problem.pinned else "backward node"
            raise ProblemError(f"step {step} recomputes the {kind} {name}, which may run only once")
        done.add(node)
        for value in problem.outputs[node]:
            last_made[value] = step
            ends[step, value] = step
    for node in sorted(problem.pinned - done):
        raise ProblemError(
            f"the sequence does not compute the pinned node {problem.ids[node]}; add it"
        )
    for value in sorted(problem.live_out):
        if value not in last_made:
            raise ProblemError(
                f"the sequence does not compute the output {problem.name(value)}; add its node"
            )
        ends[last_made[value], value] = len(sequence)
    return ends
