"""What no plan can go below: bytes of the widest step, and minimum cuts for cost under a budget.

Take a step w. While it runs for the first time, at most the budget is live. Each value that w
depends on and that something behind w reads is then either live, which takes bytes, or made again
later, which costs its step and asks the same of what that step reads. With a price for the one row
of bytes, the least of that is a minimum cut; every price gives a bound, for every order of
execution.
"""

from __future__ import annotations

import itertools

from graphc.planning.keep_sets import CAPACITY, Choice
from graphc.planning.steps import Tape

LARGEST = 30_000
"""Steps up to which cuts take little time."""

PLACES = 5
"""Steps w that are tried, apart from one another."""

PRICES = 16
"""Most prices tried at one place."""


def least_bytes(tape: Tape) -> int:
    """Bytes that the widest step needs: what it reads and makes, and what must outlast it."""
    widest = sorted(range(len(tape)), key=lambda step: (-_working_bytes(tape, step), step))
    at_end = tape.total(tape.held)
    needs = (_working_bytes(tape, step) + _outlasting(tape, step) for step in widest[:PLACES])
    return tape.fixed_bytes + max([at_end, *needs])


def _working_bytes(tape: Tape, step: int) -> int:
    """What is read and made, less the most that may share bytes, and the workspace."""
    values = {*tape.inputs[step], *tape.outputs[step]}
    return tape.total(values) - _shared(tape, step) + tape.workspace[step]


def _shared(tape: Tape, step: int) -> int:
    """The most bytes that outputs can take over from operands."""
    return tape.total({output for output, _ in tape.overwrites[step]})


def _outlasting(tape: Tape, step: int) -> int:
    """Bytes from outside that something behind the step reads, and the step itself does not."""
    read = {v for later in _behind(tape, step) for v in tape.inputs[later] if tape.maker[v] < 0}
    return tape.total(read - set(tape.inputs[step]))


def extra_cost(tape: Tape, budget: int) -> float:
    """A lower bound on the cost of repeats in any sequence whose peak is at most the budget."""
    if len(tape) > LARGEST:
        return 0.0
    return max((_at(tape, step, budget) for step in _places(tape)), default=0.0)


def _places(tape: Tape) -> list[int]:
    """Where backward passes begin to read, and steps during which the most is live, apart."""
    levels = tape.profile(range(len(tape)), tape.held)
    chosen: list[int] = []
    for run in tape.runs[:PLACES]:
        made = {value for step in range(run.start, run.turn) for value in tape.outputs[step]}
        backward = range(run.turn, run.stop)
        reading = (step for step in backward if not made.isdisjoint(tape.inputs[step]))
        chosen += itertools.islice(reading, 1)
    apart = len(tape) // (4 * PLACES)
    for step in sorted(range(len(tape)), key=lambda step: (-levels[step], step)):
        if len(chosen) >= PLACES:
            break
        if all(abs(step - other) > apart for other in chosen):
            chosen.append(step)
    return chosen


def _at(tape: Tape, w: int, budget: int) -> float:
    ancestors = tape.missing(tape.inputs[w], frozenset())
    made = {value for step in ancestors for value in tape.outputs[step]}
    behind = _behind(tape, w)
    read = {value for step in behind for value in tape.inputs[step]} | tape.held
    outside = {v for v in (*read, *tape.inputs[w]) if tape.maker[v] < 0}
    taken = tape.total({*tape.outputs[w], *outside}) - _shared(tape, w) + tape.workspace[w]
    room = budget - tape.fixed_bytes - taken
    return _best(Choice(tape, ancestors, read & made, ()), room) if room >= 0 else 0.0


def _best(choice: Choice, room: int) -> float:
    """The best of all prices: where the two sides of the hull meet at `room` bytes."""
    more, less = choice.cheapest(choice.least_price), choice.cheapest(choice.highest_price)
    bound = 0.0
    for _ in range(PRICES):
        if more.bytes <= room or less.bytes > room or less.cost <= more.cost:
            break
        price = (less.cost - more.cost) / (more.bytes - less.bytes)
        between = choice.cheapest(price)
        value = between.cost + price * (between.bytes - room)
        # Capacities are whole numbers: each may have been rounded by one.
        slack = len(choice.costs) * choice.total(price) / CAPACITY
        bound = max(bound, value - slack)
        if between.bytes in (more.bytes, less.bytes):
            break
        if between.bytes > room:
            more = between
        else:
            less = between
    return bound


def _behind(tape: Tape, w: int) -> list[int]:
    """Steps that depend on what `w` makes."""
    reached = set(tape.outputs[w])
    found: list[int] = []
    for step in range(w + 1, len(tape)):
        if not reached.isdisjoint(tape.inputs[step]):
            found.append(step)
            reached.update(tape.outputs[step])
    return found
