"""Lower bounds: on bytes by the widest step, and on cost under a budget by minimum cuts.

Bytes. In every sequence, while a step w runs, its inputs and outputs are live, less what its
outputs may overwrite of its operands. So are its workspace and all values without a producer that
something after w reads. The largest sum over the widest steps bounds the peak (`least_bytes`).

Cost. Take a step w in any sequence whose peak is at most B. While w first runs, nothing that
depends on it has run. So each value that w depends on and that a successor of w reads is either
live, or recomputed later. Recomputing it costs its step and poses the same choice for the step's
inputs. The live values have at most the capacity

    R = B - fixed bytes - what w reads, which is live for sure - w's workspace
          - outputs of w that overwrite no operand - values from outside that are still used

Steps that w does not depend on and that do not depend on w may or may not have run. Outputs of
those that have run count in the same way, and the choice is part of the minimum. Take layers that
recur over time, while the first gradient of a parameter is produced. What another gradient step
could free is then still live, or that step's gradient is live instead; the parameter's sum comes on
top.

This choice is a saved set of min_cut.py under one constraint on bytes. With a price λ ≥ 0 for the
constraint, recomputation costs at least

    g(λ) = min over saved sets of (cost + λ · bytes) - λ R

by weak duality, for every order of execution; the minimum is one minimum cut. g is concave and
piecewise linear in λ, and is maximized by its tangents (Kelley 1960). At the price where a set
above R and a set below R have equal value, a better set replaces one of them, until there is none.
`least_extra_cost` is the best over up to 5 steps w, with at most 16 cuts each.

With a link of rate r to the host, values may also be copied to the host before w and fetched after
it. Let O be their bytes, W the cost of all steps but w that do not depend on w, and E the seconds
of recomputation and stalls. The copies have ended when w starts, so O / r ≤ W + (E before w), and

    E ≥ recomputation after w + max(0, O / r - W)

With a multiplier μ ≤ 1 of the last term, a byte on the host costs μ / r. Saved bytes then cost the
same price λ = μ / r on the device and on the host, and

    g(λ) = min over saved sets of (cost + λ · bytes) - λ (R + r W)     for 0 ≤ λ ≤ 1 / r

is a lower bound on E. If the host has H bytes, so is g for any λ with R + H in place of R + r W.

The bound is loose if several passes must be recomputed, since each w considers one moment only.
tests/planner/recompute/test_lower_bound.py checks both bounds against brute force over all
sequences.
"""

from __future__ import annotations

import itertools
import math

from graphc.planner.host_link import HostLink
from graphc.planner.problem import Problem
from graphc.planner.recompute.min_cut import CAPACITY, Choice

LARGEST = 30_000
"""Maximum number of steps of a problem for which the bound on cost is computed."""

PLACES = 5
"""Maximum number of steps at which bounds are computed; they are far apart from each other."""

PRICES = 16
"""Maximum number of prices of a byte, and so of minimum cuts, tried for one step."""


def least_bytes(steps: Problem) -> int:
    """Return a lower bound on peak bytes, the maximum over the steps with the most working bytes. A
    step adds to its working bytes the values without a producer that later steps read.
    """
    widest = sorted(range(len(steps)), key=lambda step: (-_working_bytes(steps, step), step))
    at_end = steps.total(steps.live_out)
    # Every step gives a bound. Only the widest are tried, as outlasting values take a whole walk.
    needs = (_working_bytes(steps, step) + _outside_bytes(steps, step) for step in widest[:PLACES])
    return steps.fixed_bytes + max([at_end, *needs])


def _working_bytes(steps: Problem, step: int) -> int:
    """Return the bytes of inputs, outputs and workspace, less what outputs may take over from
    inputs."""
    values = {*steps.inputs[step], *steps.outputs[step]}
    return steps.total(values) - _shared(steps, step) + steps.workspace[step]


def _shared(steps: Problem, step: int) -> int:
    """Return an upper bound on the bytes that outputs can take over from operands."""
    # Each output counts once, as if its operand died, which is never too little.
    return steps.total({output for output, _ in steps.overwrites[step]})


def _outside_bytes(steps: Problem, step: int) -> int:
    """Return the bytes of values without a producer that only successors of the step read."""
    read = {
        v
        for later in _dependents(steps, step)
        for v in steps.inputs[later]
        if steps.producer[v] < 0
    }
    # Earlier outputs may be dropped and recomputed; only values without a producer must stay.
    return steps.total(read - set(steps.inputs[step]))


def least_extra_cost(
    steps: Problem, budget: int, link: HostLink | None = None, *, largest: int = LARGEST
) -> float:
    """Return a lower bound on the recompute cost of any sequence within the budget; with a link to
    the host, on the seconds of recomputation and of stalls together. Returns 0 for problems of more
    than `largest` steps."""
    if len(steps) > largest:
        return 0.0
    return max((_at(steps, step, budget, link) for step in _places(steps)), default=0.0)


def _places(steps: Problem) -> list[int]:
    """Return the steps at which to compute bounds: first backward uses, and far-apart steps of high
    peak."""
    levels = steps.levels(range(len(steps))).tolist()
    chosen: list[int] = []
    # At these, a whole forward pass has run and all of its gradients are still to come.
    for run in steps.runs[:PLACES]:
        made = {value for step in range(run.start, run.boundary) for value in steps.outputs[step]}
        backward = range(run.boundary, run.stop)
        reading = (step for step in backward if not made.isdisjoint(steps.inputs[step]))
        chosen += itertools.islice(reading, 1)
    # Neighboring steps have similar live bytes, and so similar bounds.
    apart = len(steps) // (4 * PLACES)
    for step in sorted(range(len(steps)), key=lambda step: (-levels[step], step)):
        if len(chosen) >= PLACES:
            break
        if all(abs(step - other) > apart for other in chosen):
            chosen.append(step)
    return chosen


def _at(steps: Problem, w: int, budget: int, link: HostLink | None) -> float:
    """Return the lower bound on extra cost from the values live while step `w` first runs."""
    ancestors = steps.missing(steps.inputs[w], frozenset())
    made = {value for step in ancestors for value in steps.outputs[step]}
    dependents = _dependents(steps, w)
    read = {value for step in dependents for value in steps.inputs[step]} | steps.live_out
    decided = {*ancestors, *dependents, w}
    undecided = [step for step in range(len(steps)) if step not in decided]
    # Values without a producer cannot be dropped, and inputs of w are live. Neither is a choice,
    # and both reduce the capacity.
    outside = {v for v in read if steps.producer[v] < 0}
    working = {*steps.inputs[w], *steps.outputs[w]}
    taken = steps.total(working | outside) - _shared(steps, w) + steps.workspace[w]
    limit = budget - steps.fixed_bytes - taken
    # A limit below 0 means that nothing fits; 0 is a bound then, too.
    made |= {value for step in undecided for value in steps.outputs[step]}
    choice = Choice(steps, ancestors, read & made, made.intersection(steps.inputs[w]), undecided)
    if limit < 0:
        return 0.0
    if link is None:
        return _best(choice, limit)
    # More bytes than all values have are no capacity that the bound needs.
    most = sum(steps.bytes)
    work = steps.cost_of([*ancestors, *undecided])
    sent = _best(choice, limit + math.ceil(min(link.to_host * work, most)), 1 / link.to_host)
    stored = most if link.host_bytes is None else min(link.host_bytes, most)
    return max(sent, _best(choice, limit + stored))


def _best(choice: Choice, limit: int, highest: float = math.inf) -> float:
    """Return the highest lower bound over the prices tried, which are at most `highest`; saved sets
    have at most `limit` bytes."""
    bound = 0.0
    for price, between in choice.tangents(limit, PRICES, highest):
        value = between.cost + price * (between.bytes - limit)  # g(price)
        # Capacities are integers, so each may be off by one.
        slack = len(choice.costs) * choice.total(price) / CAPACITY
        bound = max(bound, value - slack)
    return bound


def _dependents(steps: Problem, w: int) -> list[int]:
    """Return the steps that depend, directly or indirectly, on outputs of step `w`."""
    reached = set(steps.outputs[w])
    found: list[int] = []
    for step in range(w + 1, len(steps)):
        if not reached.isdisjoint(steps.inputs[step]):
            found.append(step)
            reached.update(steps.outputs[step])
    return found
