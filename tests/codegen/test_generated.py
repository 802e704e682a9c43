"""Generated kernels, run on the CPU, against graphc's NumPy kernels in float64."""

import ml_dtypes
import numpy as np
import pytest
from codegen.cases import all_cases
from codegen.fake_cublas import stand_in
from codegen.on_cpu import Library, generated, kernels_in, surroundings
from ops.test_strides import run as run_numpy

import graphc as g
from graphc.codegen.kernel import module_text
from graphc.ir.builder import apply

CASES = all_cases()


@pytest.fixture(scope="module")
def prepared():
    """Of each case its arrays and its kernels."""
    arrays = [case.arrays() for case in CASES]
    return [(a, generated(case.node, a)) for case, a in zip(CASES, arrays, strict=True)]


@pytest.fixture(scope="module")
def library(prepared, tmp_path_factory, request):
    kernels = kernels_in([found for _, found in prepared])
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if hasattr(request.config, "workerinput") else own  # by all workers
    return Library(kernels, shared)


@pytest.fixture(scope="module")
def cublas(tmp_path_factory):
    handle = stand_in(tmp_path_factory.mktemp("cublas"))
    yield handle
    handle.close()


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


TOLERANCE = {"float64": 1e-12, "float32": 4e-6, "float16": 6e-4, "bfloat16": 4.5e-3}


def check(case, arrays, found, library, cublas=None):
    """The library's results against NumPy's in float64, with the threads in both orders."""
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


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: CASES[number].name)
def test_kernel_equals_numpy(number, prepared, library, cublas):
    check(CASES[number], *prepared[number], library, cublas)


BREAKS = {
    "a sum instead of a maximum": ("Max::combine(peak", "Sum::combine(peak"),
    "no barriers": ("__syncthreads();", ""),
    "a first element is left out": ("first + rank", "first + rank + 1"),
    "division by the maximum": ("/ total_value", "/ peak_value"),
    "the neighbour is written": ("y_out.lane[lane]", "y_out.lane[lane ^ 1]"),
}


@pytest.mark.parametrize(("right", "wrong"), BREAKS.values(), ids=BREAKS)
def test_a_broken_kernel_is_found(right, wrong, tmp_path):
    """The checks above can fail."""
    case = next(c for c in CASES if c.name == "softmax long (3, 2112) float32 dense")
    arrays = case.arrays()
    found = generated(case.node, arrays)
    kernels = kernels_in([found])
    check(case, arrays, found, Library(kernels, tmp_path))
    assert right in module_text(kernels)
    broken = Library(kernels, tmp_path, lambda text: text.replace(right, wrong))
    with pytest.raises(AssertionError):
        check(case, case.arrays(), found, broken)


RESAMPLING = {
    "the edge's share": ("adaptive_average_pool2d", "row < bottom", "row < bottom - 1"),
    "another share": ("adaptive_average_pool2d_gradient", "/ float(", "/ float(1 + "),
    "centres by half an element": ("upsample_bilinear2d", "+ 0.5)", "+ 0.0)"),
    "too short a reach": ("upsample_bilinear2d_gradient", "+ 3) *", "+ 2) *"),
}


@pytest.mark.parametrize(("op", "right", "wrong"), RESAMPLING.values(), ids=RESAMPLING)
def test_broken_resampling_is_found(op, right, wrong, tmp_path):
    case = next(c for c in CASES if c.name.startswith(op + " long") and "float32 dense" in c.name)
    arrays = case.arrays()
    found = generated(case.node, arrays)
    kernels = kernels_in([found])
    assert right in module_text(kernels)
    broken = Library(kernels, tmp_path, lambda text: text.replace(right, wrong))
    with pytest.raises(AssertionError):
        check(case, case.arrays(), found, broken)


STRIDED = [
    c for c in CASES if c.layout.startswith("axis") and {"float32", "bfloat16"} & {*c.name.split()}
]


@pytest.mark.parametrize("case", STRIDED, ids=lambda case: case.name)
def test_strides_change_no_bit(case, prepared, library, cublas):
    dense = next(
        i for i, c in enumerate(CASES) if c.name == case.name.replace(case.layout, "dense")
    )
    cut = CASES.index(case)
    results = []
    for number in (dense, cut):
        case, (_, found) = CASES[number], prepared[number]
        arrays = case.arrays()
        library.run(found, arrays, cublas=cublas)
        results.append([arrays[value].copy() for value in case.node.outputs])
    for expected, result in zip(*results, strict=True):
        np.testing.assert_array_equal(result, expected, strict=True)


def test_scratch_depends_on_shapes_alone(prepared):
    """A plan gives scratch its bytes before anything has a place."""
    by_node = {}
    for case, (_, found) in zip(CASES, prepared, strict=True):
        assert by_node.setdefault(case.node, found.scratch) == found.scratch


def test_texts_are_deterministic(prepared):
    for case, (arrays, found) in zip(CASES[::7], prepared[::7], strict=True):
        assert generated(case.node, arrays) == found
