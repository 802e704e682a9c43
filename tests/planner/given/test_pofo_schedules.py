"""Chains on which POFO, a dynamic program, has found faster schedules than graphc did.

`pofo_schedules.json` has the problems, in the format of `graphc remat`, and POFO's schedules. It
was written from losses of benchmarks/offload_chains.py.
"""

import json
from pathlib import Path

import pytest

from graphc.planner.given import measure, solve
from graphc.planner.given.problem import parse_problem

CASES = json.loads(Path(__file__).with_name("pofo_schedules.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_the_schedules_are_legal_and_fit(case):
    problem = parse_problem(case["problem"])
    measured = measure(problem, case["events"], problem.budget)
    assert measured.seconds == pytest.approx(case["seconds"])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_plans_are_nearly_as_fast(case):
    """Up to 3.4 % slower: no dynamic program chooses copies, as POFO's does."""
    found = solve(parse_problem(case["problem"]), seconds=8)
    assert found.cost <= 1.035 * case["seconds"]
