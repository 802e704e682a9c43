"""What a search for a budget reports is what its plan and its certificate say in the end."""

import re

import pytest

import graphc as g
from graphc.byte_sizes import format_bytes
from graphc.errors import BudgetError
from graphc.models import mlp
from graphc.progress import heard_by

SIZES = {"layers": 20, "hidden": 64, "inputs": 64, "batch": 512}


def reports_of(**options):
    heard = []
    plan = None
    with heard_by(heard.append):
        try:
            plan = g.plan(mlp(**SIZES), optimizer=g.optim.SGD(), **options)
        except BudgetError as error:
            plan = error
    return plan, [line for line in heard if "trial" in line]


def test_the_last_report_of_a_budget_is_its_plan_and_its_bound():
    whole = g.plan(mlp(**SIZES), optimizer=g.optim.SGD()).arena_bytes
    plan, heard = reports_of(budget=whole * 3 // 4)
    extra, bound = plan.recomputation.extra_time_fraction, plan.certificate.extra_time_bound
    assert f": {extra:+.1%} time, at least {bound:+.1%}, trial {len(heard)}" in heard[-1]
    assert any("(schedule 1 of at most 4)" in line for line in heard)
    best = [float(re.search(r"([+\d.]+)% time", line)[1]) for line in heard if "% time" in line]
    assert best == sorted(best, reverse=True)


def test_a_budget_that_cannot_be_met_reports_the_least_found_and_the_bound():
    error, heard = reports_of(budget="64KiB")
    assert isinstance(error, BudgetError)
    least, bound = format_bytes(error.least_bytes), format_bytes(error.bound_bytes)
    assert f": {least}, at least {bound}, trial" in heard[-1]


@pytest.mark.parametrize("options", [{"max_extra_flops": 0.3}, {"recompute": "optimal"}])
def test_a_search_for_bytes_reports_the_bytes_of_its_best_trial(options):
    plan, heard = reports_of(**options)
    found = format_bytes(plan.bound_bytes)
    assert heard
    assert all(f"at least {found}, trial" in line for line in heard)


@pytest.mark.slow
def test_a_frontier_reports_its_points():
    heard = []
    with heard_by(heard.append):
        g.frontier(mlp(**SIZES), optimizer=g.optim.SGD())
    text = "\n".join(heard)
    assert [n for n in range(3, 17) if f"point {n} of 16, within " in text] == list(range(3, 17))
