"""What the results of generated kernels are held to."""

import loops
import ml_dtypes
import numpy as np
import pytest
from codegen.on_cpu import Library, edited, generated, kernels_in, surroundings
from ops.test_strides import run as run_numpy

import graphc as g
from graphc.ir.builder import apply


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
    return [result.astype(np.float64) for result in run_numpy(wide, arrays)]


DTYPES = ("float32", "bfloat16", "float64", "float16")


def by_night(dtype):
    """The marks of a case that is left to the nightly run if another dtype shows the same."""
    return [] if dtype in ("float32", "bfloat16") else [pytest.mark.slow]


FLOATS = [pytest.param(dtype, marks=by_night(dtype)) for dtype in DTYPES]

ARCHITECTURES = [
    pytest.param(80, marks=pytest.mark.slow),
    90,
    pytest.param(100, marks=pytest.mark.slow),
]
"""Quick tests compile for one architecture, slow tests for all."""

TOLERANCE = {"float64": 1e-12, "float32": 4e-6, "float16": 6e-4, "bfloat16": 4.5e-3}


def check(case, arrays, found, library, cublas=None):
    """The library's results against NumPy's in float64, with the threads in both orders; returns
    them."""
    before = {value: array.copy() for value, array in arrays.items()}
    around = {value: surroundings(array).copy() for value, array in arrays.items()}
    library.run(found, arrays, cublas=cublas)
    results = [arrays[value].copy() for value in case.node.outputs]
    for value, array in before.items():
        if value in case.node.inputs and case.layout != "over":
            np.testing.assert_array_equal(arrays[value], array)
        arrays[value][...] = array
        np.testing.assert_array_equal(surroundings(arrays[value]), around[value])
    library.run(found, arrays, descending=True, cublas=cublas)
    for value, result in zip(case.node.outputs, results, strict=True):
        np.testing.assert_array_equal(arrays[value], result, strict=True)
    for result, expected in zip(results, in_float64(case), strict=True):
        name = ml_dtypes.finfo(result.dtype).dtype.name if result.dtype.kind not in "biu" else ""
        tolerance = TOLERANCE.get(name, 0)
        wide = result.astype(np.float64)
        reach = tolerance * max(1, np.abs(expected).max())  # sums cancel
        np.testing.assert_allclose(wide, expected, rtol=tolerance, atol=reach)
    return results


def check_that_they_are_found(breaks):
    """`check` fails for kernels that have another text in the place of a right one.

    `breaks` maps a name to a case, the right text and a wrong one. One library has all kernels,
    which have other names; with the right text, they pass.
    """
    broken, right_ones = {}, {}
    for number, (name, (case, right, wrong)) in enumerate(breaks.items()):
        with loops.case(name):
            arrays = case.arrays()
            found = generated(case.node, arrays)
            assert any(right in kernel.text for kernel in found.kernels)
            other = edited(found, lambda text, r=right, w=wrong: text.replace(r, w), f"{number}")
            broken[name] = case, arrays, other
            if case.name not in right_ones:
                renamed = edited(found, lambda text: text, f"right_{number}")
                right_ones[case.name] = case, case.arrays(), renamed
    every = (*broken.values(), *right_ones.values())
    library = Library(kernels_in([found for _, _, found in every]))
    for name, given in right_ones.items():
        with loops.case(name):
            check(*given, library)
    for name, given in broken.items():
        with loops.case(name), pytest.raises(AssertionError):
            check(*given, library)
