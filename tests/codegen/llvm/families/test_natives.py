"""Native kernels of op families on the cases of generated kernels, against NumPy in float64."""

import loops
import pytest
from codegen.cases import LAST, all_cases, by_op
from codegen.checks import check
from codegen.llvm.native import Native
from codegen.on_cpu import places_of

from graphc.codegen.llvm.families import FAMILIES
from graphc.codegen.llvm.rules import native_rule_of

CASES = [case for case in all_cases() if native_rule_of(case.node.op) is not None]
assert FAMILIES


def is_shown_by_others(case):
    """Whether another case says the same of another dtype or layout."""
    if "float64" in case.name:
        return True
    plain = case.layout in ("dense", "over", LAST)
    return not plain if "float32" in case.name else case.layout != LAST


@pytest.mark.parametrize("cases", by_op(CASES, is_shown_by_others))
def test_kernels_of_an_op_equal_numpy(cases):
    for case in cases:
        with loops.case(case.name):
            arrays = case.arrays()
            found = native_rule_of(case.node.op)(case.node, places_of(arrays))
            check(case, arrays, found, Native())
