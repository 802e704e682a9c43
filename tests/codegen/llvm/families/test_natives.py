"""Native kernels of op families on the cases of generated kernels, against NumPy in float64."""

import ml_dtypes
import numpy as np
import pytest
from codegen.cases import LAST, all_cases
from codegen.llvm.native import run
from codegen.on_cpu import places_of, surroundings
from codegen.test_generated import TOLERANCE, in_float64

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


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] * is_shown_by_others(case))
        for case in CASES
    ],
)
def test_kernel_equals_numpy(case):
    arrays = case.arrays()
    before = {value: array.copy() for value, array in arrays.items()}
    around = {value: surroundings(array).copy() for value, array in arrays.items()}
    found = native_rule_of(case.node.op)(case.node, places_of(arrays))
    run(found.calls, arrays, found.scratch)
    results = [arrays[value].copy() for value in case.node.outputs]
    for value, array in before.items():
        if value in case.node.inputs and case.layout != "over":
            np.testing.assert_array_equal(arrays[value], array)
        arrays[value][...] = array
        np.testing.assert_array_equal(surroundings(arrays[value]), around[value])
    run(found.calls, arrays, found.scratch, backwards=True)
    for value, result in zip(case.node.outputs, results, strict=True):
        np.testing.assert_array_equal(arrays[value], result, strict=True)
    for result, expected in zip(results, in_float64(case), strict=True):
        name = ml_dtypes.finfo(result.dtype).dtype.name if result.dtype.kind not in "biu" else ""
        tolerance = TOLERANCE.get(name, 0)
        reach = tolerance * max(1, np.abs(expected).max())  # sums cancel
        wide = result.astype(np.float64)
        np.testing.assert_allclose(wide, expected, rtol=tolerance, atol=reach)
