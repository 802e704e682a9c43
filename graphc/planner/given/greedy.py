"""Greedy eviction by next use: run the nodes in order, evict the cheapest values when full.

The order of nodes is fixed; the live values are not. Before a node is computed, the evicted values
that it needs are recomputed, recursively. If a result does not fit the budget, live values are
evicted until it does. As in dynamic tensor rematerialization (Kirisame et al., 2021), the value v
of the least score is evicted at time t:

    c(v)^a · b(v)^-β · (u(v) - t)^-d

where b is its bytes, u its next use (DTR takes the last use) and c the estimated cost of
recomputing it with the evicted values that it reads. Belady's rule for caches is a = β = 0. No
weights are best for all graphs, so solve.py tries several and perturbs the scores.

The outputs of a node count as one value here, and no output overwrites an input. Both make the
search simpler and the peak larger, so the schedules are legal and fit. Never evicted are values
that the recomputation under way needs (`locked`), those of nodes that are computed once and, unless
the weights say otherwise, outputs (`fixed`). Values without a next use are freed at once. To evict,
all live values are sorted by score: O(n log n) at each of n nodes at worst. From 4,000 nodes on,
a little more than needed is evicted, so that this happens less often.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from graphc.planner.given.problem import GivenProblem

MANY = 4000
"""Minimum number of nodes for evicting more than needed at once, which sorts less often."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Exponents of cost, bytes and distance in the score, and the range of its perturbation."""

    cost: float = 1.0
    bytes: float = 1.0
    distance: float = 1.0
    perturbation: float = 0.0
    seed: int = 0
    evicts_outputs: bool = False


def run_within(problem: GivenProblem, budget: int, weights: Weights) -> list[int] | None:
    """Return a schedule of nodes whose peak is at most `budget`, or None if none is found."""
    return _Greedy(problem, budget, weights).run()


class _Greedy:
    """One run of greedy eviction; times are positions in the given order of the nodes."""

    def __init__(self, problem: GivenProblem, budget: int, weights: Weights) -> None:
        self.problem, self.budget, self.weights = problem, budget, weights
        count = len(problem)
        self.order = problem.order
        self.inputs = problem.sources
        self.bytes = [sum(problem.bytes[v] for v in values) for values in problem.outputs]
        self.outputs = sorted({problem.producer[value] for value in problem.live_out})
        self.consumers: list[list[int]] = [[] for _ in range(count)]
        self.uses: list[list[int]] = [[] for _ in range(count)]
        for time, node in enumerate(self.order):
            # In the order of time, so each list of uses is sorted for bisection.
            for source in self.inputs[node]:
                self.uses[source].append(time)
                self.consumers[source].append(node)
        # An output is used after the last node: it may be evicted, but is restored.
        never = len(self.order) + 1
        for node in self.outputs:
            self.uses[node].append(never)
        self.live = np.zeros(count, bool)
        self.locked = np.zeros(count, np.int64)
        self.pinned = np.zeros(count, bool)
        self.pinned[list(problem.pinned)] = True
        self.fixed = np.zeros(count, bool)
        self.fixed[list(problem.once)] = True
        if not weights.evicts_outputs:
            self.fix_outputs()
        self.next_use = np.full(count, never, np.int64)
        perturbed = np.random.default_rng(weights.seed).uniform(1, 1 + weights.perturbation, count)
        # The cost of recomputing a value with the evicted values that it needs.
        self.recompute_cost = np.maximum(np.array(problem.cost, float), 1e-12)
        self.weight = perturbed * np.maximum(np.array(self.bytes, float), 1) ** -weights.bytes
        self.evicted_cost = np.zeros(count)
        self.used = problem.fixed_bytes
        self.time = 0
        self.sequence: list[int] = []

    def run(self) -> list[int] | None:
        for time, node in enumerate(self.order):
            self.time = time
            if not self.live[node] and not self.compute(node):
                return None
            for source in self.inputs[node]:
                self.forward_use(source, time + 1)
        return self.sequence if self.restore_outputs() else None

    def restore_outputs(self) -> bool:
        """Recompute evicted outputs and keep them to the end."""
        self.time = len(self.order)
        self.fix_outputs()
        return all(self.live[node] or self.compute(node) for node in self.outputs)

    def fix_outputs(self) -> None:
        """Exclude outputs from eviction from now on."""
        self.pinned[self.outputs] = self.fixed[self.outputs] = True

    def compute(self, target: int) -> bool:
        """Compute a node after the evicted values that it needs; return True if this fits the
        budget."""
        chain = self.missing(target)
        # The inputs of the chain stay until their use in the chain.
        for node in chain:
            for source in self.inputs[node]:
                self.locked[source] += 1
        for node in chain:
            size = self.bytes[node]
            if not self.evict_for(size + self.problem.workspace[node]):
                return False
            self.sequence.append(node)
            self.live[node] = True
            self.used += size
            # It is live now, so its consumers would no longer have to recompute it.
            for consumer in self.consumers[node]:
                self.recompute_cost[consumer] -= self.evicted_cost[node]
            self.evicted_cost[node] = 0.0
            # The inputs of the target are used at this time, the target itself only later.
            self.forward_use(node, self.time + (node == target))
            for source in self.inputs[node]:
                self.locked[source] -= 1
                # `run` frees the inputs of the target when its time is over.
                if node != target:
                    self.free_if_dead(source)
            if node != target:
                self.free_if_dead(node)
        return True

    def missing(self, target: int) -> list[int]:
        """Return the nodes to run for the target: the target and the producers of evicted values
        that it needs."""
        found = {target}
        pending = [target]
        while pending:
            for source in self.inputs[pending.pop()]:
                if not self.live[source] and source not in found:
                    found.add(source)
                    pending.append(source)
        return sorted(found)

    def forward_use(self, node: int, time: int) -> None:
        """Set the next use of a value from `time` on; free it if there is none."""
        uses = self.uses[node]
        index = bisect.bisect_left(uses, time)
        self.next_use[node] = uses[index] if index < len(uses) else -1
        self.free_if_dead(node)

    def free_if_dead(self, node: int) -> None:
        is_free = self.live[node] and not self.locked[node] and not self.pinned[node]
        if is_free and self.next_use[node] < 0:
            self.evict(node)

    def evict(self, node: int) -> None:
        self.live[node] = False
        self.used -= self.bytes[node]
        # Recorded now, so that consumers lose the same amount when it is recomputed.
        self.evicted_cost[node] = self.recompute_cost[node]
        for consumer in self.consumers[node]:
            self.recompute_cost[consumer] += self.recompute_cost[node]

    def evict_for(self, size: int) -> bool:
        """Evict values until `size` more bytes fit; return False if they cannot."""
        excess = self.used + size - self.budget
        if excess <= 0:
            return True
        nodes = np.flatnonzero(self.live & ~self.fixed & (self.locked == 0))
        if not len(nodes):
            return False
        distance = np.maximum(self.next_use[nodes] - self.time, 1) ** -self.weights.distance
        score = self.recompute_cost[nodes] ** self.weights.cost * self.weight[nodes] * distance
        if len(self.order) >= MANY:
            excess += self.budget // 200
        for index in np.argsort(score, kind="stable"):
            node = int(nodes[index])
            # Evicting a value without bytes frees nothing.
            if self.bytes[node]:
                self.evict(node)
                excess -= self.bytes[node]
                if excess <= 0:
                    return True
        # Everything is evicted. If more than needed was requested, this may still be enough.
        return self.used + size <= self.budget
