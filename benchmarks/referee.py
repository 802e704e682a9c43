"""The cheapest sequence of few steps that CP-SAT of OR-tools proves, in the order of the steps.

A referee for planners: see tests/planner/given/test_cp_sat.py and small_lstm.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass

from ortools.sat.python import cp_model

from graphc.planner.problem import Problem


@dataclass(frozen=True)
class Verdict:
    """What was found, and what is proven: the cost of all runs; infinite where there is none."""

    cost: float
    proven: float

    @property
    def is_optimal(self) -> bool:
        """Whether the two are the same."""
        return self.cost == self.proven


class Referee:
    """Sequences that run each step for the first time in the order given (stages as in Checkmate:
    Jain et al., 2020).

    In stage t steps 0, ..., t run in their order: t for the first time, the others again or not.
    `runs[t, i]` says whether i does, `kept[t, v]` whether value v is there when the stage begins.
    It is in the way from the moment it is there until its last reader of the stage has run, or to
    the end where it is kept; an operand that dies may be overwritten. Only steps in `again` run
    again, or all where it is not given. Costs are whole numbers, nothing with bytes may come from
    outside, and each output has at most one operand to overwrite. A plan may be cheaper: in another
    order, or where a stage runs a step twice.
    """

    def __init__(
        self,
        steps: Problem,
        budget: int,
        most: int,
        again: Collection[int] | None = None,
    ) -> None:
        if any(steps.bytes[v] for v, producer in enumerate(steps.producer) if producer < 0):
            raise ValueError("what no step makes takes bytes")
        if any(cost != int(cost) for cost in steps.cost):
            raise ValueError("costs are whole numbers here")
        for pairs in steps.overwrites:
            if any(len({pair[side] for pair in pairs}) < len(pairs) for side in (0, 1)):
                raise ValueError("an output has one operand to overwrite here, and that is its own")
        self.model = cp_model.CpModel()
        self.steps, self.budget = steps, budget
        count = len(steps)
        repeated = set(range(count) if again is None else again) - steps.once
        self.runs: dict[tuple[int, int], cp_model.IntVar] = {}
        self.kept: dict[tuple[int, int], cp_model.IntVar] = {}
        self.consumers: dict[int, list[int]] = {v: [] for v in range(len(steps.bytes))}
        for step, inputs in enumerate(steps.inputs):
            for value in inputs:
                self.consumers[value].append(step)
        for t in range(count):
            self.runs[t, t] = self.model.new_constant(1)
            for i in repeated.intersection(range(t)):
                self.runs[t, i] = self.model.new_bool_var("")
        for value, producer in enumerate(steps.producer):
            last, is_live_out = max(self.consumers[value], default=-1), value in steps.live_out
            may_be_read = is_live_out or not repeated.isdisjoint(self.consumers[value])
            for t in range(producer + 1, count + is_live_out) if producer >= 0 else ():
                # What is made once has to stay for its last reader.
                if producer not in repeated and (is_live_out or t <= last):
                    self.kept[t, value] = self.model.new_constant(1)
                elif may_be_read or t <= last:
                    self.kept[t, value] = self.model.new_bool_var("")
        for t in range(count):
            self._stage(t)
        for value in steps.live_out:
            self.model.add(self.kept[count, value] == 1)
        cost = sum(int(steps.cost[i]) * run for (_, i), run in self.runs.items())
        self.model.add(cost <= most)
        self.model.minimize(cost)

    def _stage(self, t: int) -> None:
        """What holds in a stage: steps run on what is there, and fit with what is in the way."""
        steps, model = self.steps, self.model
        running = [i for i in range(t + 1) if (t, i) in self.runs]
        for value, producer in enumerate(steps.producer):
            if (t + 1, value) in self.kept:
                model.add(self.kept[t + 1, value] <= self._there(t, value, producer))
        made = [value for value, producer in enumerate(steps.producer) if 0 <= producer <= t]
        for i in running:
            for value in steps.inputs[i]:
                if steps.producer[value] >= 0:
                    model.add(self.runs[t, i] <= self._there(t, value, steps.producer[value]))
            size = steps.total(steps.outputs[i]) + steps.workspace[i] + steps.fixed_bytes
            taken = {operand for _, operand in steps.overwrites[i]}
            for value in made:
                if steps.bytes[value] and value not in steps.outputs[i]:
                    size += steps.bytes[value] * self._in_the_way(t, i, value, value in taken)
            model.add(size <= self.budget).only_enforce_if(self.runs[t, i])

    def _there(self, t: int, value: int, producer: int) -> cp_model.LinearExprT:
        """How often a value is there in a stage: kept from before, or made."""
        return self.runs.get((t, producer), 0) + self.kept.get((t, value), 0)

    def _in_the_way(self, t: int, i: int, value: int, is_overwritten: bool) -> cp_model.IntVar:
        """Whether a value takes bytes of its own while step i runs in stage t."""
        producer, found = self.steps.producer[value], self.model.new_bool_var("")
        there = [self.kept[t, value]] if (t, value) in self.kept else []
        there += [self.runs[t, producer]] if producer < i and (t, producer) in self.runs else []
        first = i + 1 if is_overwritten else i
        asking = [
            self.runs[t, k] for k in self.consumers[value] if first <= k and (t, k) in self.runs
        ]
        asking += [self.kept[t + 1, value]] if (t + 1, value) in self.kept else []
        for is_there, asks in itertools.product(there, asking):
            self.model.add_bool_or(is_there.negated(), asks.negated(), found)
        return found

    def verdict(self, seconds: float, workers: int = 0) -> Verdict:
        """What is found and proven in so many seconds; all of the machine's cores without a
        number of workers."""
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            return Verdict(math.inf, math.inf)
        is_found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        cost = round(solver.objective_value) if is_found else math.inf
        return Verdict(cost, math.ceil(solver.best_objective_bound - 1e-6))
