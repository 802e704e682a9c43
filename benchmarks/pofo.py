"""POFO, a dynamic program for chains that recomputes and copies to the host: a baseline.

Beaumont, Eyraud-Dubois and Shilova, "Efficient Combination of Rematerialization and Offloading for
Training DNNs" (NeurIPS 2021). The program goes through the first forward pass from the first stage
on. A state is a stage with

    kept      the bytes that stay on the device until their backward
    leaving   the bytes that the link still has to copy to the host when the stage starts
    due       the bytes that the link must have copied back when the backward of the stage ends

and whether the stage before saved all of its values. From a state there are two moves, each with
the input of the stage kept or copied to the host:

    keep      F and B of one stage, which saves all of its values
    segment   F of the stages i to j, of which nothing is saved. The backward pass of the segment
              recomputes them, within the bytes that are left (rotor.py)

The paper's assumptions: only the inputs of such moves are copied to the host, in the first forward
pass, in the order of production. They come back in reverse order. The link frees and takes bytes
of the device at a constant rate, in both directions at the same time. Where the bytes do not
suffice, computation waits.

The text of the paper was not at hand. States, moves and waits follow the implementation in
ColossalAI (colossalai/fx/passes/algorithms/ckpt_solver_pofo.py), which follows the paper's own. The
code here is new. Deviations, and points that may differ from the paper:

  - The paper rounds states up to a grid. Here states have exact numbers, and of those in one cell
    of the grid the fastest is continued, so no rounding adds up over the stages. This is done for
    a coarse and for a finer grid. The schedules of the best last states are measured, and the
    fastest is taken, since whole values do not move at a constant rate.
  - Whether the paper also copies the input of the network is not known; here it does not count.
  - During the backward pass of a segment, the paper computes how many bytes can come back beside
    recomputation; ColossalAI estimates it. Here 1, 1/2 or none of the due bytes have a reserved
    place, and the rest are copied after the segment. The fastest choice is taken.
  - At the end of the forward pass, what has not left and what is due are the same values. So only
    the difference is waited for. ColossalAI waits for the sum.
  - F computes what its stage saves even if a segment throws it away, as problems of graphc do.
  - Latency, a limit of host memory and links that run one way at a time are not modeled.

The schedule is then written as events with copies of whole values (chain_copies.py): a value frees
its bytes only when all of it has left. `graphc.planner.given.measure` gives the real seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from chain_copies import placed
from chains import Chain
from rotor import Rotor

from graphc.planner.given import Event, GivenProblem, HostLink, Timing, measure

GRIDS = (16, 48)
"""Cells of the grid of states in each of its three directions. A finer grid extends only
states that may end before the best one of the grid before."""

MEASURED = 20
"""Number of the best last states whose schedules are measured."""

SLOTS = 300
"""Steps of the grid of bytes of rotor."""

RESERVED = np.array([1.0, 0.5, 0.0])
"""Parts of the due bytes that have a place during the backward pass of a segment."""

STATE = np.dtype(
    [
        ("kept", float), ("leaving", float), ("due", float), ("seconds", float),
        ("parent", int), ("start", int), ("saved", bool), ("copied", bool), ("reserved", float),
    ]
)  # fmt: skip
"""A state with its seconds so far, and the move to it: the index, stage and `saved` of the state
before, whether its input is copied, and the bytes reserved."""


@dataclass(frozen=True, slots=True)
class Move:
    """Stages that are kept (if `is_kept`, one) or a segment whose backward takes a rotor slot.

    `values` of the input of the first stage are copied to the host.
    """

    first: int
    last: int
    is_kept: bool
    slot: int
    copies_input: bool
    input_is_saved: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of POFO: its events, their measures, and the seconds that POFO expects."""

    events: list[Event]
    timing: Timing
    expected_seconds: float


def plan(chain: Chain, link: HostLink, budget: int) -> Schedule | None:
    """Return the schedule of POFO within `budget` bytes, or None if it finds none."""
    problem, rotor = chain.problem(link), Rotor(chain, budget, SLOTS)
    ends: list[tuple[float, list[Move]]] = []
    for cells in GRIDS:
        limit = min((seconds for seconds, _ in ends), default=math.inf)
        ends += _Search(chain, link, budget, rotor, cells, limit).run()
    found = []
    for seconds, moves in sorted(ends, key=lambda end: end[0])[:MEASURED]:
        sequence = _sequence(chain, rotor, moves)
        copied = [value for move in moves if move.copies_input for value in _input(problem, move)]
        events = placed(problem, link, sequence, copied, budget)
        found.append(Schedule(events, measure(problem, events, budget), seconds))
    return min(found, key=lambda schedule: schedule.timing.seconds, default=None)


class _Front:
    """States of one stage. `least` has the least seconds by cell."""

    def __init__(self, budget: int, cells: int) -> None:
        self.cells, self.unit = cells, max(1.0, budget / cells)
        self.parts: list[np.ndarray] = []
        self.least = np.full((cells + 1,) * 3, math.inf)

    def add(self, states: np.ndarray) -> None:
        """Add states that are faster than those of their cells."""
        cells = self._cells(states)
        is_faster = states["seconds"] < self.least[cells]
        if is_faster.any():
            states = states[is_faster]
            np.minimum.at(self.least, tuple(cell[is_faster] for cell in cells), states["seconds"])
            self.parts.append(states)

    def states(self) -> np.ndarray:
        """Return the fastest state of each cell, without those that another one dominates."""
        states = np.concatenate([np.empty(0, STATE), *self.parts])
        states = states[states["seconds"] == self.least[self._cells(states)]]
        least = self.least
        for axis in range(3):
            least = np.minimum.accumulate(least, axis)
        # A cell holds sizes up to its bound, so all of a lower cell are less; cell 0 is empty.
        cells = self._cells(states)
        lower = tuple(np.maximum(cell - 1, 0) for cell in cells)
        is_first = (cells[0] + cells[1] + cells[2]) == 0
        states = states[is_first | (states["seconds"] < least[lower])]
        ravelled = np.ravel_multi_index(self._cells(states), least.shape)
        order = np.lexsort((states["due"] + states["leaving"], states["kept"], ravelled))
        _, first = np.unique(ravelled[order], return_index=True)
        return states[order[first]]

    def _cells(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return (
            self._cell(states["kept"]),
            self._cell(states["leaving"]),
            self._cell(states["due"]),
        )

    def _cell(self, size: np.ndarray) -> np.ndarray:
        return np.minimum(np.ceil(size / self.unit), self.cells).astype(np.int64)


class _Search:
    """The dynamic program. `fronts` has the states by stage and by whether its input is saved with
    all values of the stage before. States that cannot end by `limit` seconds are left out."""

    def __init__(
        self, chain: Chain, link: HostLink, budget: int, rotor: Rotor, cells: int, limit: float
    ) -> None:
        self.chain, self.link, self.budget = chain, link, budget
        self.rotor = rotor
        stages = range(len(chain))
        self.fronts = {
            (stage, saved): _Front(budget, cells) for stage in stages for saved in (False, True)
        }
        self.states: dict[tuple[int, bool], np.ndarray] = {}
        once = [f + b for f, b in zip(chain.forward, chain.backward, strict=True)]
        self.limits = [limit - sum(once[stage:]) for stage in stages]

    def run(self) -> list[tuple[float, list[Move]]]:
        """Return the last states, by their expected seconds and their moves."""
        self.fronts[0, False].add(np.zeros(1, STATE))
        last = len(self.chain) - 1
        ends = []
        for (stage, saved), front in self.fronts.items():
            states = self.states[stage, saved] = front.states()
            if stage < last:
                self._keep(stage, saved, states)
                self._segments(stage, saved, states)
            else:
                seconds = self._end(stage, saved, states)
                ends += [(float(x), saved, i) for i, x in enumerate(seconds) if x < math.inf]
        return [(x, self._moves(i, saved)) for x, saved, i in sorted(ends)[:MEASURED]]

    def _room(self, stage: int, saved: bool, states: np.ndarray) -> np.ndarray:
        return self.budget - states["kept"] - self.chain.input_bytes(stage, saved)

    def _kept(
        self, stage: int, saved: bool, states: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return seconds after a stage that saves all, and the bytes copied out and back beside
        it."""
        chain, link = self.chain, self.link
        room = self._room(stage, saved, states)
        forward, backward = chain.forward_bytes[stage], chain.backward_bytes[stage]
        out = np.maximum(0.0, forward - room + states["leaving"])
        back = np.maximum(0.0, backward - room + states["due"])
        seconds = chain.forward[stage] + chain.backward[stage]
        seconds = states["seconds"] + seconds + out / link.to_host + back / link.to_device
        seconds[room < max(forward, backward)] = math.inf
        out += chain.forward[stage] * link.to_host
        back += chain.backward[stage] * link.to_device
        return seconds, out, back

    def _end(self, stage: int, saved: bool, states: np.ndarray) -> np.ndarray:
        seconds, out, back = self._kept(stage, saved, states)
        leaving = np.maximum(0.0, states["leaving"] - out)
        due = np.maximum(0.0, states["due"] - back)
        too_few, too_many = np.maximum(0.0, due - leaving), np.maximum(0.0, leaving - due)
        return seconds + too_few / self.link.to_device + too_many / self.link.to_host

    def _keep(self, stage: int, saved: bool, states: np.ndarray) -> None:
        seconds, out, back = self._kept(stage, saved, states)
        due = np.maximum(0.0, states["due"] - back)
        self._move(stage, saved, (stage + 1, True), states, out, due, seconds, 0.0 * due)

    def _segments(self, stage: int, saved: bool, states: np.ndarray) -> None:
        chain, link = self.chain, self.link
        room = self._room(stage, saved, states)
        forward = 0.0
        need, wait_for = 0, -math.inf
        due = RESERVED[:, None] * states["due"]
        slots = self.rotor.within(room - due)
        for last in range(stage, len(chain) - 1):
            reads = chain.input_bytes(last) if last > stage else 0
            need = max(need, reads + chain.forward_bytes[last])
            wait_for = max(wait_for, reads + chain.forward_bytes[last] - forward * link.to_host)
            forward += chain.forward[last]
            out = np.maximum(0.0, wait_for - room + states["leaving"])
            backward = self.rotor.seconds[stage, last, slots]
            backward[slots < 0] = math.inf
            seconds = states["seconds"] + forward + out / link.to_host + backward
            seconds += (states["due"] - due) / link.to_device
            seconds[:, room < need] = math.inf
            out += forward * link.to_host
            # Without due bytes, all shares are the same.
            seconds[1:, states["due"] == 0] = math.inf
            left = np.maximum(0.0, due - backward * link.to_device)
            for share in range(len(RESERVED)):
                self._move(
                    stage, saved, (last + 1, False), states, out, left[share], seconds[share],
                    due[share],
                )  # fmt: skip

    def _move(
        self,
        stage: int,
        saved: bool,
        to: tuple[int, bool],
        states: np.ndarray,
        out: np.ndarray,
        due: np.ndarray,
        seconds: np.ndarray,
        reserved: np.ndarray,
    ) -> None:
        """Add the states after a move, with the input of the stage kept and copied."""
        size = self.chain.input_bytes(stage, saved)
        index = np.flatnonzero((seconds < math.inf) & (seconds <= self.limits[to[0]]))
        for copied in (False, True) if size else (False,):
            made = np.empty(len(index), STATE)
            size_out, size_kept = (size, 0) if copied else (0, size)
            made["kept"] = states["kept"][index] + size_kept
            made["leaving"] = np.maximum(0.0, states["leaving"][index] + size_out - out[index])
            made["due"] = due[index] + size_out
            made["seconds"] = seconds[index]
            made["parent"] = index
            made["start"], made["saved"], made["copied"] = stage, saved, copied
            made["reserved"] = reserved[index]
            self.fronts[to].add(made)

    def _moves(self, index: int, saved: bool) -> list[Move]:
        """Return the moves to a state of the last stage, and that of this stage."""
        last = stage = len(self.chain) - 1
        moves = [Move(last, last, True, 0, False, saved)]
        while stage:
            state = self.states[stage, saved][index]
            index, start, before = int(state["parent"]), int(state["start"]), bool(state["saved"])
            room = self._room(start, before, self.states[start, before][index : index + 1])
            slot = int(self.rotor.within(room - state["reserved"])[0])
            moves.append(Move(start, stage - 1, saved, slot, bool(state["copied"]), before))
            stage, saved = start, before
        return moves[::-1]


def _sequence(chain: Chain, rotor: Rotor, moves: Sequence[Move]) -> list[int]:
    """Return the nodes of moves in the order in which they run."""
    sequence = list(range(len(chain)))
    for move in reversed(moves):
        if move.is_kept:
            sequence.append(chain.backward_node(move.first))
        else:
            sequence += rotor.sequence(move.first, move.last, move.slot)
    return sequence


def _input(problem: GivenProblem, move: Move) -> tuple[int, ...]:
    """Return the values of the input of a move."""
    values = problem.outputs[move.first - 1]
    return values if move.input_is_saved else values[:1]
