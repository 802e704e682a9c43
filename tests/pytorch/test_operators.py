"""Operators of torch: values, and gradients of all inputs and parameters, in float64 to 1e-9."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_cases.comparison import agrees  # noqa: E402 - these need torch
from torch_cases.operators import FAMILIES, case  # noqa: E402

from graphc.torch.importing.calls import RULES  # noqa: E402

CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases]
REDUNDANT = (Path(__file__).parents[1] / "torch_cases" / "redundant.txt").read_text().splitlines()
"""Cases that run no line of graphc that another case does not run: they are slow tests."""


def marked(family, name):
    is_redundant = f"{family}: {name}" in REDUNDANT
    return pytest.param(family, name, marks=pytest.mark.slow if is_redundant else ())


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(
    ("family", "name"), [marked(*each) for each in CASES], ids=lambda part: part
)
def test_it_is_what_torch_computes(family, name):
    module, args = case(family, name)
    agrees(module, *args)


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
