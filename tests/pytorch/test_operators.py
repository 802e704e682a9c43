"""Operators of torch: values, and gradients of all inputs and parameters, in float64 to 1e-9."""

import pytest

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_cases.comparison import agrees  # noqa: E402 - these need torch
from torch_cases.operators import FAMILIES, case  # noqa: E402

from graphc.torch.importing.calls import RULES  # noqa: E402

CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases]


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(("family", "name"), CASES, ids=lambda part: part)
def test_it_is_what_torch_computes(family, name):
    module, args = case(family, name)
    agrees(module, *args)


def test_a_rule_is_for_an_operator_that_there_is():
    assert all(
        name in dir(torch.ops.aten) or hasattr(torch.ops.aten, name) for name in RULES.operators
    )
