"""A greedy that knows the future: run in order, and where bytes run out, drop what costs least.

The order of nodes is fixed; what is live is not. Before a node is computed, the dropped values that
it needs are computed again, each as what it needs itself may have been dropped. Where the budget
has no room for a result, live values are dropped until it has. As in dynamic tensor
rematerialization (Kirisame et al., 2021) value v is dropped at time t by the least score

    c(v)^a · b(v)^-β · (u(v) - t)^-d

where b is its bytes and u its next use, which is known here where DTR takes the last one, and c
what computing it again would cost now: its own cost and that of the dropped values it reads, as
they were estimated when they were dropped. Belady's rule for caches is a = β = 0. No weights are
best for all graphs, so solve.py tries several, and shakes the scores.

Never dropped are what the chain under way needs (`locked`), pinned values and, unless the weights
say so, outputs (`held`). What has no next use is dropped at once. To make room, all live values are
sorted by score: O(n log n) at each of n nodes at worst. From 4,000 nodes on a little more room than
needed is made, to do so less often.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from graphc.remat.given.problem import Problem

MANY = 4000
"""Nodes from which on a little more than needed is dropped at a time, to sort less often."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Exponents of cost, bytes and distance in the score, and how far scores are shaken."""

    cost: float = 1.0
    bytes: float = 1.0
    distance: float = 1.0
    noise: float = 0.0
    seed: int = 0
    drops_outputs: bool = False


def run_within(problem: Problem, budget: int, weights: Weights) -> list[int] | None:
    """A sequence whose peak is at most `budget`, or None where this greedy finds none."""
    return _Greedy(problem, budget, weights).run()


class _Greedy:
    """One run of the greedy; times are places in the order of the nodes."""

    def __init__(self, problem: Problem, budget: int, weights: Weights) -> None:
        self.problem, self.budget, self.weights = problem, budget, weights
        count = len(problem)
        self.order = problem.needed
        self.consumers: list[list[int]] = [[] for _ in range(count)]
        self.uses: list[list[int]] = [[] for _ in range(count)]
        for time, node in enumerate(self.order):
            # In the order of time, so that each list of uses is sorted for bisection.
            for source in set(problem.inputs[node]):
                self.uses[source].append(time)
                self.consumers[source].append(node)
        # An output is used behind the last node: it may be dropped, but not forgotten.
        never = len(self.order) + 1
        for node in problem.outputs:
            self.uses[node].append(never)
        self.live = np.zeros(count, bool)
        self.locked = np.zeros(count, np.int64)
        self.held = np.zeros(count, bool)
        self.held[list(problem.pinned)] = True
        if not weights.drops_outputs:
            self.held[list(problem.outputs)] = True
        self.next_use = np.full(count, never, np.int64)
        shaken = np.random.default_rng(weights.seed).uniform(1, 1 + weights.noise, count)
        # What it would cost to compute a value again, with the dropped values that it needs.
        self.again = np.maximum(np.array(problem.cost, float), 1e-12)
        self.weight = shaken * np.maximum(np.array(problem.bytes, float), 1) ** -weights.bytes
        self.dropped_cost = np.zeros(count)
        self.used = problem.fixed_bytes
        self.time = 0
        self.sequence: list[int] = []

    def run(self) -> list[int] | None:
        for time, node in enumerate(self.order):
            self.time = time
            if not self.live[node] and not self.make(node):
                return None
            for source in set(self.problem.inputs[node]):
                self.forward_use(source, time + 1)
        return self.sequence if self.restore_outputs() else None

    def restore_outputs(self) -> bool:
        """Compute outputs that were dropped, and hold them to the end."""
        self.time = len(self.order)
        outputs = sorted(self.problem.outputs)
        self.held[outputs] = True
        return all(self.live[node] or self.make(node) for node in outputs)

    def make(self, target: int) -> bool:
        """Compute a node, after the dropped values that it needs."""
        chain = self.missing(target)
        # What the chain reads stays until its reader in the chain has run.
        for node in chain:
            for source in set(self.problem.inputs[node]):
                self.locked[source] += 1
        for node in chain:
            size = self.problem.bytes[node]
            if not self.make_room(size + self.problem.workspace[node]):
                return False
            self.sequence.append(node)
            self.live[node] = True
            self.used += size
            # It is there again, so its readers would no longer have to compute it.
            for consumer in self.consumers[node]:
                self.again[consumer] -= self.dropped_cost[node]
            self.dropped_cost[node] = 0.0
            # What the target needs is read at this very time, the target itself only later.
            self.forward_use(node, self.time + (node == target))
            for source in set(self.problem.inputs[node]):
                self.locked[source] -= 1
                # What the target reads is looked at when its time is over, by `run`.
                if node != target:
                    self.drop_if_dead(source)
            if node != target:
                self.drop_if_dead(node)
        return True

    def missing(self, target: int) -> list[int]:
        """The target and all dropped values that it needs, in order."""
        found = {target}
        pending = [target]
        while pending:
            for source in self.problem.inputs[pending.pop()]:
                if not self.live[source] and source not in found:
                    found.add(source)
                    pending.append(source)
        return sorted(found)

    def forward_use(self, node: int, time: int) -> None:
        """Note when a value is read next, from `time` on; drop it if never."""
        uses = self.uses[node]
        index = bisect.bisect_left(uses, time)
        self.next_use[node] = uses[index] if index < len(uses) else -1
        self.drop_if_dead(node)

    def drop_if_dead(self, node: int) -> None:
        is_free = self.live[node] and not self.locked[node] and not self.held[node]
        if is_free and self.next_use[node] < 0:
            self.drop(node)

    def drop(self, node: int) -> None:
        self.live[node] = False
        self.used -= self.problem.bytes[node]
        # Noted as it is now, so that readers lose just as much when it is made again.
        self.dropped_cost[node] = self.again[node]
        for consumer in self.consumers[node]:
            self.again[consumer] += self.again[node]

    def make_room(self, size: int) -> bool:
        """Drop values until `size` more bytes fit; False where that cannot be."""
        excess = self.used + size - self.budget
        if excess <= 0:
            return True
        # Outputs and pinned values, and what the chain under way is still going to read, are no
        # choice.
        nodes = np.flatnonzero(self.live & ~self.held & (self.locked == 0))
        if not len(nodes):
            return False
        distance = np.maximum(self.next_use[nodes] - self.time, 1) ** -self.weights.distance
        score = self.again[nodes] ** self.weights.cost * self.weight[nodes] * distance
        if len(self.order) >= MANY:
            excess += self.budget // 200
        for index in np.argsort(score, kind="stable"):
            node = int(nodes[index])
            # To drop what has no bytes makes no room, and costs if it is read.
            if self.problem.bytes[node]:
                self.drop(node)
                excess -= self.problem.bytes[node]
                if excess <= 0:
                    return True
        # All is dropped; where more than needed was asked for, there may be enough all the same.
        return self.used + size <= self.budget
