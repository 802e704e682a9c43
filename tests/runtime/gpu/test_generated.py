"""Generated kernels, run on the CPU, against graphc's NumPy kernels in float64."""

import ml_dtypes
import numpy as np
import pytest
from ops.test_strides import run as run_numpy
from runtime.gpu.cases import all_cases
from runtime.gpu.on_cpu import Library, generated, kernels_in

import graphc as g
from graphc.ir.builder import apply

CASES = all_cases()


@pytest.fixture(scope="session")
def prepared():
    """Of each case its arrays and its kernels."""
    arrays = [case.arrays() for case in CASES]
    return [(a, generated(case.node, a)) for case, a in zip(CASES, arrays, strict=True)]


@pytest.fixture(scope="session")
def library(prepared, tmp_path_factory):
    kernels = kernels_in([found for _, found in prepared])
    return Library(kernels, tmp_path_factory.getbasetemp())


def in_float64(case):
    """What the NumPy kernel computes from the same numbers in float64."""
    node = case.node
    inputs = [
        g.input(f"x{i}", v.shape, "float64" if v.type.dtype.kind == "float" else v.type.dtype)
        for i, v in enumerate(node.inputs)
    ]
    wide = apply(node.op, *inputs, attributes=node.attributes)
    wide = getattr(wide, "node", wide)
    arrays = {
        x: case.feeds[v].astype(x.type.dtype.numpy)
        for x, v in zip(inputs, node.inputs, strict=True)
    }
    arrays |= {v: np.empty(v.shape, v.type.dtype.numpy) for v in wide.outputs}
    return run_numpy(wide, arrays)


TOLERANCE = {"float64": 1e-12, "float32": 4e-6, "float16": 6e-4, "bfloat16": 4.5e-3}


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: CASES[number].name)
def test_kernel_equals_numpy(number, prepared, library):
    case = CASES[number]
    arrays, found = prepared[number]
    before = {value: array.copy() for value, array in arrays.items()}
    library.run(found, arrays)
    results = [arrays[value].copy() for value in case.node.outputs]
    for result, expected in zip(results, in_float64(case), strict=True):
        name = ml_dtypes.finfo(result.dtype).dtype.name if result.dtype.kind not in "biu" else ""
        tolerance = TOLERANCE.get(name, 0)
        wide = result.astype(np.float64)
        np.testing.assert_allclose(wide, expected, rtol=tolerance, atol=tolerance)
    for value, array in before.items():  # the other order of threads gives the same bits
        arrays[value][...] = array
    library.run(found, arrays, descending=True)
    for value, result in zip(case.node.outputs, results, strict=True):
        np.testing.assert_array_equal(arrays[value], result, strict=True)
