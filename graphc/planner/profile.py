"""Steps as arrays in compressed rows, for compiled loops that search over sequences. problem.py
defines sequences. `live_levels` computes `Problem.profile` of a whole sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from graphc.jit import compiled

if TYPE_CHECKING:
    from graphc.planner.problem import Problem

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Booleans: TypeAlias = NDArray[np.bool_]


class StepArrays(NamedTuple):
    """The fields of `Problem` as arrays.

    Rows of different lengths are concatenated, as in compressed sparse rows (CSR). The inputs of
    step s are `inputs[first_input[s] : first_input[s + 1]]`; outputs and overwrites are alike.
    `is_droppable` is true for values that may be dropped and recomputed; no output of their
    producer is in `live_out`.
    """

    cost: Floats
    workspace: Integers
    first_input: Integers
    inputs: Integers
    first_output: Integers
    outputs: Integers
    first_overwrite: Integers
    overwriting: Integers
    overwritten: Integers
    bytes: Integers
    producer: Integers
    is_live_out: Booleans
    is_droppable: Booleans


def arrays_of(steps: Problem) -> StepArrays:
    """Return the fields of a problem as arrays."""
    first_input, inputs = rows_of(steps.inputs)
    first_output, outputs = rows_of(steps.outputs)
    first_overwrite, _ = rows_of([[0] * len(pairs) for pairs in steps.overwrites])
    pairs = np.array([pair for row in steps.overwrites for pair in row], np.int64).reshape(-1, 2)
    is_live_out = np.zeros(len(steps.bytes), bool)
    is_live_out[list(steps.live_out)] = True
    return StepArrays(
        cost=np.array(steps.cost, np.float64),
        workspace=np.array(steps.workspace, np.int64),
        first_input=first_input,
        inputs=inputs,
        first_output=first_output,
        outputs=outputs,
        first_overwrite=first_overwrite,
        overwriting=np.ascontiguousarray(pairs[:, 0]),
        overwritten=np.ascontiguousarray(pairs[:, 1]),
        bytes=np.array(steps.bytes, np.int64),
        producer=np.array(steps.producer, np.int64),
        is_live_out=is_live_out,
        is_droppable=_droppable(steps),
    )


def _droppable(steps: Problem) -> Booleans:
    found = np.zeros(len(steps.bytes), bool)
    for run in steps.runs:
        for value in steps.droppable(run):
            found[value] = steps.live_out.isdisjoint(steps.outputs[steps.producer[value]])
    return found


def rows_of(rows: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    """Return the start of each row and the concatenation of all rows (CSR)."""
    first = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=first[1:])
    return first, np.array([each for row in rows for each in row], np.int64)


@compiled
def live_levels(table: StepArrays, sequence: Integers) -> Integers:
    """Return the bytes live during each step of a whole sequence, without `fixed_bytes`."""
    live = table.is_live_out.copy()
    level = 0
    for value in range(len(live)):
        if live[value]:
            level += table.bytes[value]
    levels = np.zeros(len(sequence), np.int64)
    for position in range(len(sequence) - 1, -1, -1):
        step = sequence[position]
        inputs = table.inputs[table.first_input[step] : table.first_input[step + 1]]
        here = level + table.workspace[step] - overwritten_bytes(table, step, live)
        dying = 0
        for value in inputs:
            if not live[value]:
                dying += table.bytes[value]
        for value in table.outputs[table.first_output[step] : table.first_output[step + 1]]:
            if live[value]:  # before this execution it is older or does not exist
                live[value] = False
                level -= table.bytes[value]
            else:
                here += table.bytes[value]
        for value in inputs:
            live[value] = True
        level += dying
        levels[position] = here + dying
    return levels


@compiled
def overwritten_bytes(table: StepArrays, step: int, live: Booleans) -> int:
    """Return the bytes of operands that a step's outputs overwrite; operands in `live` stay live
    after it."""
    first, last = table.first_overwrite[step], table.first_overwrite[step + 1]
    if first == last:
        return 0
    saved = 0
    is_taken = np.zeros(last - first, np.bool_)
    for pair in range(first, last):
        output, operand = table.overwriting[pair], table.overwritten[pair]
        is_free = not live[operand]
        for other in range(first, pair):
            if is_taken[other - first] and (
                table.overwriting[other] == output or table.overwritten[other] == operand
            ):
                is_free = False
        if is_free:
            is_taken[pair - first] = True
            saved += table.bytes[output]
    return saved
