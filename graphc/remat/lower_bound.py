"""What no plan can go below: bytes of the widest step, and minimum cuts for cost under a budget.

Bytes. Whatever the sequence, while a step w runs, what it reads and makes is live, less what its
outputs may take over from its operands; so is its workspace, and all from outside that something
behind w reads. The largest of these, over the widest steps, bounds the peak (`least_bytes`).

Cost. Take a step w in any sequence whose peak is at most B. While it runs for the first time,
nothing that depends on it has run. So each value that w depends on and that something behind w
reads is then either live, or made again later, which costs its step and asks the same of what that
step reads. The live ones have at most the room

    R = B - fixed bytes - what w reads, which is live for sure - w's workspace
          - what w makes and takes over from nothing - what comes from outside and is still read

Steps that neither w depends on nor depend on w may have run or not: what has run counts in the same
way, and the choice is part of the minimum. So of layers over time it is known that what could be
freed by a gradient is still there, or has given way to that gradient, while a parameter's first one
is made: its sum comes on top.

That is a keep set of min_cut.py under one row of bytes. With a price λ ≥ 0 for it, the repeats
cost at least

    g(λ) = min over keep sets of (cost + λ · bytes) - λ R

by weak duality, for every order of execution; the minimum is one minimum cut. g is concave in λ and
piecewise linear, and is climbed by its tangents: at the price where a set above R and a set below R
are worth the same, a better set replaces one of them, until there is none (Kelley 1960).
`extra_cost` is the best of up to 5 steps w, in graphs of up to 5,000 steps of 8 more around the
turn, in at most 16 cuts each.

The bound is loose where several passes must be run more than once, since a w sees one moment only.
tests/remat/test_lower_bound.py holds both bounds against brute force over all sequences.
"""

from __future__ import annotations

import itertools

from graphc.remat.min_cut import CAPACITY, Choice
from graphc.scheduling.problem import Problem

LARGEST = 30_000
"""Steps up to which cuts take little time."""

PLACES = 5
"""Steps w that are tried, apart from one another."""

NEARBY, FEW, NEAR = 8, 5_000, 0.05
"""The widest steps around each turn that are tried as well, in graphs of up to so many steps, and
how far away from it, as a part of all steps."""

PRICES = 16
"""Most prices tried at one place."""


def least_bytes(steps: Problem) -> int:
    """Bytes that the widest step needs: what it reads and makes, and what must outlast it."""
    widest = sorted(range(len(steps)), key=lambda step: (-_working_bytes(steps, step), step))
    at_end = steps.total(steps.live_out)
    # Any one step gives a bound; what outlasts it takes a walk over all, so only the widest are
    # tried.
    needs = (_working_bytes(steps, step) + _outlasting(steps, step) for step in widest[:PLACES])
    return steps.fixed_bytes + max([at_end, *needs])


def _working_bytes(steps: Problem, step: int) -> int:
    """What is read and made, less the most that may share bytes, and the workspace."""
    values = {*steps.inputs[step], *steps.outputs[step]}
    return steps.total(values) - _shared(steps, step) + steps.workspace[step]


def _shared(steps: Problem, step: int) -> int:
    """The most bytes that outputs can take over from operands."""
    # Each output counts once, as if its operand died: at most too much is subtracted, never too
    # little.
    return steps.total({output for output, _ in steps.overwrites[step]})


def _outlasting(steps: Problem, step: int) -> int:
    """Bytes from outside that something behind the step reads, and the step itself does not."""
    read = {
        v for later in _behind(steps, step) for v in steps.inputs[later] if steps.producer[v] < 0
    }
    # What a step made before may be dropped and made again; only what has no maker has to stay.
    return steps.total(read - set(steps.inputs[step]))


def extra_cost(steps: Problem, budget: int) -> float:
    """A lower bound on the cost of repeats in any sequence whose peak is at most the budget."""
    if len(steps) > LARGEST:
        return 0.0
    return max((_at(steps, step, budget) for step in _places(steps)), default=0.0)


def _places(steps: Problem) -> list[int]:
    """Where backward passes begin to read, and steps during which the most is live, apart."""
    levels = steps.levels(range(len(steps))).tolist()
    chosen: list[int] = []
    # There all of a forward pass has run, and all of its gradients are still to come.
    for run in steps.runs[:PLACES]:
        made = {value for step in range(run.start, run.boundary) for value in steps.outputs[step]}
        backward = range(run.boundary, run.stop)
        reading = (step for step in backward if not made.isdisjoint(steps.inputs[step]))
        chosen += itertools.islice(reading, 1)
    # Steps side by side have much the same live bytes, so their bounds would be much the same too.
    apart = len(steps) // (4 * PLACES)
    for step in sorted(range(len(steps)), key=lambda step: (-levels[step], step)):
        if len(chosen) >= PLACES:
            break
        if all(abs(step - other) > apart for other in chosen):
            chosen.append(step)
    return [*chosen, *_around_boundaries(steps)] if len(steps) <= FEW else chosen


def _around_boundaries(steps: Problem) -> list[int]:
    """The steps near the end of a forward pass that read and make the most."""
    reach, found = int(NEAR * len(steps)), list[int]()
    for run in steps.runs[:PLACES]:
        near = range(max(run.start, run.boundary - reach), min(run.stop, run.boundary + reach + 1))
        found += sorted(near, key=lambda step: (-_working_bytes(steps, step), step))[:NEARBY]
    return found


def _at(steps: Problem, w: int, budget: int) -> float:
    """g at its highest for one step w."""
    ancestors = steps.missing(steps.inputs[w], frozenset())
    made = {value for step in ancestors for value in steps.outputs[step]}
    behind = _behind(steps, w)
    read = {value for step in behind for value in steps.inputs[step]} | steps.live_out
    decided = {*ancestors, *behind, w}
    undecided = [step for step in range(len(steps)) if step not in decided]
    # What no step makes cannot be dropped, and what w reads is there: neither is a choice, and both
    # take their bytes from the room.
    outside = {v for v in read if steps.producer[v] < 0}
    working = {*steps.inputs[w], *steps.outputs[w]}
    taken = steps.total(working | outside) - _shared(steps, w) + steps.workspace[w]
    limit = budget - steps.fixed_bytes - taken
    # A room below 0 says that nothing fits; 0 is a bound then, too.
    made |= {value for step in undecided for value in steps.outputs[step]}
    choice = Choice(steps, ancestors, read & made, made.intersection(steps.inputs[w]), undecided)
    return _best(choice, limit) if limit >= 0 else 0.0


def _best(choice: Choice, limit: int) -> float:
    """The best of all prices: where the two sides of the hull meet at `limit` bytes."""
    bound = 0.0
    for price, between in choice.tangents(limit, PRICES):
        value = between.cost + price * (between.bytes - limit)  # g(price)
        # Capacities are whole numbers: each may have been rounded by one.
        slack = len(choice.costs) * choice.total(price) / CAPACITY
        bound = max(bound, value - slack)
    return bound


def _behind(steps: Problem, w: int) -> list[int]:
    """Steps that depend on what `w` makes."""
    reached = set(steps.outputs[w])
    found: list[int] = []
    for step in range(w + 1, len(steps)):
        if not reached.isdisjoint(steps.inputs[step]):
            found.append(step)
            reached.update(steps.outputs[step])
    return found
