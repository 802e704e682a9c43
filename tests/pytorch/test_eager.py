"""Functions that torch cannot trace run in eager mode inside a plan, against eager torch."""

import copy
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import TorchError  # noqa: E402


def matched(cost):
    """Return which column each row gets, by NumPy, which torch cannot trace."""
    rows = np.argsort(-np.asarray(cost.detach().tolist()).max(axis=1))
    return torch.as_tensor(rows[: cost.shape[1]].copy())


def loss_of(found, target, *, scale=1.0, **names):
    """Match rows to targets, and draw random numbers of three libraries."""
    rows = matched(torch.cdist(found, target["points"]))
    noise = random.random() + np.random.rand()
    distance = torch.dropout(found[rows], 0.5, True) - target["points"]
    return {"loss": distance.square().sum() * scale * noise, "parts": [distance, None, "l2"]}


class Matching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)), 2.0

    def forward(self, x, target):
        found = loss_of(self.inner(x), target, scale=self.scale, kind="l2")
        return {**found, "rows": x}


def arguments(rows=12, points=5):
    made = torch.Generator().manual_seed(rows)
    points = torch.randn(points, 8, generator=made)
    return torch.randn(rows, 8, generator=made), {"points": points}


def results(call, module, given):
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(3)
    module.zero_grad()
    found = call(*given)
    (found["loss"] / 3).backward()
    drawn = [torch.rand(1), torch.tensor(np.random.rand()), torch.tensor(random.random())]
    return [found["loss"], found["parts"][0], *(p.grad for p in module.parameters()), *drawn]


def check(step, given):
    found, wanted = (results(each, step.module, given) for each in (step, step.module))
    assert all(map(torch.equal, found, wanted))


def test_results_are_those_of_eager_for_all_values_shapes_and_numbers():
    given = arguments()
    step = graphc.torch.plan(Matching(), given, "knee", loss="loss")
    check(step, given)
    check(step, (given[0] * 2, given[1]))
    assert len(step.plans) == 1
    check(step, arguments(9, 4))
    check(step, given)


@pytest.mark.filterwarnings("ignore:this step has been planned again")
def test_another_number_is_planned_again():
    given = arguments()
    step = graphc.torch.plan(Matching(), given, "knee", loss="loss")
    step.module.scale = 5.0
    check(step, given)


def test_the_peak_counts_the_function():
    given = arguments(4096, 64)
    step = graphc.torch.plan(Matching(), given, "knee", loss="loss")
    found = step.verify()
    assert found.same_bits
    assert found.held
    (row,) = step.report.json["eager"]
    assert row["function"].endswith("loss_of")
    assert row["peak_bytes"] > 4096 * 64 * 4  # the distances
    assert "loss_of" in str(step.report)


def test_a_copied_step_plans_anew():
    given = arguments()
    step = copy.deepcopy(graphc.torch.plan(Matching(), given, "knee", loss="loss"))
    check(step, given)


class Hidden(nn.Module):
    """Calls a function with a fault."""

    def __init__(self, function):
        super().__init__()
        self.inner, self.function = nn.Linear(8, 8), function

    def forward(self, x):
        return self.function(self.inner(x))


WEIGHT = nn.Parameter(torch.ones(8))


def reads_a_parameter(x):
    return (x.detach()[matched(x)] * WEIGHT).sum()


def changes_its_argument(x):
    matched(x)
    with torch.no_grad():
        x.mul_(2)
    return x.sum()


def returns_an_object(x):
    matched(x)
    return {x.sum()}


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (reads_a_parameter, "reads_a_parameter runs in eager mode.*reads parameters"),
        (changes_its_argument, "changes its arguments; compute with copies"),
        (returns_an_object, "returns a set; return tensors"),
    ],
)
def test_faults_of_such_functions_are_refused(function, fault):
    with pytest.raises(TorchError, match=fault):
        graphc.torch.plan(Hidden(function), (torch.randn(8, 8),))


def test_a_part_with_parameters_that_cannot_be_traced_is_refused():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return (x * self.weight)[torch.as_tensor(np.argsort(x.detach().tolist()))].sum()

    with pytest.raises(TorchError, match="cannot trace the module as one graph"):
        graphc.torch.plan(Part(), (torch.randn(8),))
