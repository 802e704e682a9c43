"""A step is a training step, and what runs in it are nodes, in sentences of explain."""

import re

import pytest
from view.networks import EACH_SMALL_PLAN, small_plan

from graphc.view.explain import explain_value
from graphc.view.peak import explain_kept, explain_peak
from graphc.view.scopes import explain_scopes

NODE_AS_STEP = re.compile(r"\b(at|from|to|in|step) steps? ?\d|\bsteps? \d", re.IGNORECASE)


@pytest.mark.parametrize("name", EACH_SMALL_PLAN)
def test_explain_calls_no_node_a_step(name):
    plan = small_plan(name)
    values = list(plan.graph.values)[:: max(1, len(plan.graph.values) // 40)]
    told = [line for value in values for line in explain_value(plan, value)]
    told += [*explain_peak(plan), *explain_kept(plan), *explain_scopes(plan)]
    assert [line for line in told if NODE_AS_STEP.search(line)] == []
    assert any(re.search(r"\bnode \d", line) for line in told)
