"""Planned steps are apart from one another, and nothing of them stays when they are gone."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphc  # noqa: E402
from graphc.torch.budget.trace import tracing  # noqa: E402


def planned(*sizes):
    module = torch.nn.Linear(8, 8)
    step = graphc.torch.plan(module, (torch.randn(4, 8),), "knee")
    for size in sizes:
        step(torch.randn(size, 8)).sum().backward()
    return step


def test_a_step_that_is_gone_leaves_neither_module_nor_weights():
    step = planned(4, 5)
    left = [weakref.ref(step), weakref.ref(step.module), weakref.ref(step.module.weight)]
    del step
    gc.collect()
    assert [each() for each in left] == [None, None, None]


def test_a_loss_is_differentiated_when_its_step_is_gone():
    step = planned()
    x = torch.ones(4, 8, requires_grad=True)
    weight = step.module.weight.detach().clone()
    loss = step(x).sum()
    del step
    gc.collect()
    loss.backward()
    torch.testing.assert_close(x.grad, weight.sum(0).expand(4, 8))


def test_the_shapes_of_one_step_do_not_count_for_another(monkeypatch):
    monkeypatch.setitem(tracing.TRACING, "recompile_limit", 3)
    kept = [planned(4, 5) for _ in range(4)]
    assert [len(step.plans) for step in kept] == [2] * 4
