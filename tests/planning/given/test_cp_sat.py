"""Plans of 15 to 29 steps against the optima that CP-SAT of OR-tools proves. Run by `make nightly`.

Smaller problems are exact, which other tests compare with an enumeration.
"""

import math

import pytest
from planning.problems import random_training

from graphc.errors import BudgetError
from graphc.planning.given.exact import LARGEST
from graphc.planning.given.replay import replay
from graphc.planning.given.solve import solve

pytestmark = [pytest.mark.peers, pytest.mark.slow]
cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="ortools is not installed")

SECONDS = 60.0
"""What CP-SAT has for a problem."""

PROBLEMS = 48


class Referee:
    """Sequences of a problem that compute each node for the first time in the order given (stages
    as in Checkmate: Jain et al., 2020).

    In stage t nodes 0, ..., t run in their order: t for the first time, the others again or not.
    `runs[t, i]` says whether i does, `kept[t, i]` whether i is there when the stage begins. It is
    in the way from the moment it is there until its last reader of the stage has run, or to the end
    where it is kept. Nothing is pinned. A plan may be cheaper: in another order, or where a stage
    computes a node twice.
    """

    def __init__(self, problem, budget, most):
        self.model = cp_model.CpModel()
        self.nodes = list(problem.needed)
        self.place = {node: place for place, node in enumerate(self.nodes)}
        self.problem, self.budget = problem, budget
        count = len(self.nodes)
        self.readers = [set() for _ in self.nodes]
        for place, node in enumerate(self.nodes):
            for source in problem.inputs[node]:
                self.readers[self.place[source]].add(place)
        self.runs = {
            (t, i): self.model.new_bool_var("") if i < t else self.model.new_constant(1)
            for t in range(count)
            for i in range(t + 1)
        }
        self.kept = {
            (t, i): self.model.new_bool_var("") for t in range(1, count + 1) for i in range(t)
        }
        for t in range(count):
            self.stage(t)
        for node in problem.outputs:
            self.model.add(self.kept[count, self.place[node]] == 1)
        cost = sum(int(problem.cost[self.nodes[i]]) * run for (_, i), run in self.runs.items())
        self.model.add(cost <= most)
        self.model.minimize(cost)

    def stage(self, t):
        """What holds in a stage: nodes run on what is there, and fit with what is in the way."""
        problem, model = self.problem, self.model
        for i, node in enumerate(self.nodes[: t + 1]):
            kept = self.kept.get((t, i), 0)
            model.add(self.kept[t + 1, i] <= self.runs[t, i] + kept)
            for source in problem.inputs[node]:
                j = self.place[source]
                model.add(self.runs[t, i] <= self.runs[t, j] + self.kept.get((t, j), 0))
            others = (j for j in range(t + 1) if j != i)
            size = problem.bytes[node] + problem.workspace[node] + problem.fixed_bytes
            size += sum(
                int(problem.bytes[self.nodes[j]]) * self.in_the_way(t, i, j) for j in others
            )
            model.add(size <= self.budget).only_enforce_if(self.runs[t, i])

    def in_the_way(self, t, i, j):
        """Whether j's value takes bytes while i runs in stage t."""
        found = self.model.new_bool_var("")
        there = [self.kept[t, j]] if (t, j) in self.kept else []
        there += [self.runs[t, j]] if j < i else []
        asking = [self.runs[t, k] for k in self.readers[j] if i <= k <= t]
        for is_there in there:
            for asks in (*asking, self.kept[t + 1, j]):
                self.model.add_bool_or(is_there.negated(), asks.negated(), found)
        return found

    def least_cost(self):
        """The optimum, infinite where nothing here is as cheap as the plan; None if undecided."""
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = SECONDS
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        if status == cp_model.INFEASIBLE:
            return math.inf
        return round(solver.objective_value) if status == cp_model.OPTIMAL else None


def problems():
    """Problems with budgets between the bound and all bytes."""
    for seed in range(PROBLEMS):
        problem = random_training(8 + seed % 8, seed)
        most = replay(problem, problem.needed).peak_bytes
        part = (0.2, 0.4, 0.6, 0.8)[seed // 8 % 4]
        yield problem, int(problem.bound_bytes + part * (most - problem.bound_bytes))


def test_plans_are_as_cheap_as_the_optimum_of_their_order():
    optimal = decided = 0
    for problem, budget in problems():
        assert len(problem.needed) > LARGEST
        try:
            found = solve(problem, budget, seconds=2.0)
        except BudgetError:
            continue
        least = Referee(problem, budget, int(found.cost)).least_cost()
        assert found.peak_bytes <= budget
        if least is not None:
            decided, optimal = decided + 1, optimal + (found.cost <= least)
    assert decided >= 0.8 * PROBLEMS
    assert optimal >= 0.95 * decided
