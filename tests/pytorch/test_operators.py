"""Operators of torch: values, and gradients of all inputs and parameters, in float64 to 1e-9."""

import itertools
from pathlib import Path

import loops
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_cases.comparison import agrees, each_agrees  # noqa: E402 - these need torch
from torch_cases.operators import FAMILIES, case  # noqa: E402

from graphc.torch.importing.calls import RULES  # noqa: E402

CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases]
REDUNDANT = (Path(__file__).parents[1] / "torch_cases" / "redundant.txt").read_text().splitlines()
"""Slow tests: cases that run no line of graphc that another case does not run.

Elementwise operators and reductions are quick, since each is an entry of a table.
"""


ALONE = {
    ("elementwise", "sgn"),
    ("indexing", "assign by a mask"),
    ("indexing", "take along"),
    ("products", "linear of a vector"),
    ("reduce", "extremes"),
}
"""Cases that torch, or a version of it, does not export as a part of a larger module."""
ALONE_FAMILIES = {"recurrent", "sizes"}
MOST = 10


def groups():
    """Yield lists of at most `MOST` cases of one family, the redundant ones apart."""

    def kind(case):
        family, name = case
        is_alone = case in ALONE or family in ALONE_FAMILIES
        return f"{family}: {name}" in REDUNDANT, family, name if is_alone else ""

    for (is_redundant, family, name), cases in itertools.groupby(sorted(CASES, key=kind), kind):
        of_kind = list(cases)
        for first in range(0, len(of_kind), MOST):
            label = f"{family}-{name or first}" + " redundant" * is_redundant
            marks = pytest.mark.slow if is_redundant else ()
            yield pytest.param(of_kind[first : first + MOST], id=label, marks=marks)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("group", list(groups()))
def test_it_is_what_torch_computes(group):
    try:
        each_agrees([case(*each) for each in group])
    except Exception:
        for each in group:
            with loops.case(each):
                module, args = case(*each)
                agrees(module, *args)
        raise


def test_redundant_cases_are_cases():
    assert set(REDUNDANT) < {f"{family}: {name}" for family, name in CASES}


def test_extremes_beside_nan_are_the_numbers():
    """Values alone, since versions of torch differ in the gradients at ties and beside NaN."""

    class Extremes(torch.nn.Module):
        def forward(self, x, y):
            return torch.fmax(x, y).detach(), torch.fmin(x, y).detach()

    x = torch.tensor([1.0, torch.nan, 2, torch.nan, 3])
    y = torch.tensor([2, 1.0, torch.nan, torch.nan, 3])
    agrees(Extremes(), x, y)


def test_a_rule_is_for_an_operator_that_there_is():
    assert all(
        name in dir(torch.ops.aten) or hasattr(torch.ops.aten, name) for name in RULES.operators
    )
