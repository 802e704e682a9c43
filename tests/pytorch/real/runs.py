"""Training steps of cases: eager, by ``aot_eager``, checkpointed, and planned."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pytorch.real.cases import Case
from torch_cases.steps import SEED, Run

import graphc
from graphc.torch.budget.report.report import Report
from graphc.torch.budget.step import PlannedStep


def new(make: Callable[[], Case]) -> Case:
    """Return the case with the same weights and arguments each time."""
    torch.manual_seed(SEED)
    return make()


def eager(case: Case) -> Run:
    return _run(case, _loss_of(case))


def by_aot_eager(case: Case) -> Run:
    """Return the step whose bits plans must have; its graph may break."""
    return _run(case, torch.compile(_loss_of(case), backend="aot_eager", dynamic=False))


def checkpointed(case: Case) -> Run:
    """Return the step of a model of transformers with its own gradient checkpointing."""
    case.module.gradient_checkpointing_enable()
    return eager(case)


@dataclass(frozen=True)
class PlannedRun(Run):
    """A planned step."""

    step: PlannedStep = field(kw_only=True)

    @property
    def report(self) -> Report:
        return self.step.report


def planned(case: Case, budget: int | str = "knee", **options: Any) -> PlannedRun:
    """Return the planned step."""
    step = graphc.torch.plan(
        case.module, case.args, budget, kwargs=case.kwargs, loss_fn=case.loss_fn, **options
    )
    return PlannedRun(**vars(_run(case, step)), step=step)


def budgets_below(knee: Report) -> Mapping[str, int]:
    """Return two budgets: halfway between the knee and the least plan found, and that plan's."""
    least = knee.least_bytes
    return {"halfway": (knee.peak_bytes + least) // 2, "least": least}


def _loss_of(case: Case) -> Callable[..., Any]:
    if case.loss_fn is None:
        return case.module
    return lambda *args, **kwargs: case.loss_fn(case.module(*args[:-1], **kwargs), args[-1])


def _run(case: Case, call: Callable[..., Any]) -> Run:
    """Return a step that differentiates the loss; random numbers of all libraries are the same."""

    def seeded(*args: Any, **kwargs: Any) -> Any:
        np.random.seed(SEED)
        random.seed(SEED)
        return call(*args, **kwargs)

    return Run(case.module, seeded, case.args, case.kwargs, _backward)


def _backward(found: Any) -> None:
    (found if isinstance(found, torch.Tensor) else found.loss).backward()
