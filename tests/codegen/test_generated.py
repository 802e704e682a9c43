"""Generated kernels, run on the CPU, against graphc's NumPy kernels in float64."""

import functools

import loops
import numpy as np
import pytest
from codegen.cases import H200, all_cases, by_op
from codegen.checks import check, check_that_they_are_found
from codegen.on_cpu import Library, channels_last, generated, kernels_in

import graphc as g
from graphc.codegen.text.kernel import module_text
from graphc.codegen.workspace import gpu_workspace
from graphc.ir.types import memory_order, outer_axes

CASES = {case.name: case for case in all_cases()}


def kind(case):
    """Return the op, the layout, the dtypes, and whether the sample is a long one."""
    words = case.name.split()
    dtypes = sorted({"float64", "float32", "float16", "bfloat16"} & {*words})
    return case.node.op.name, case.layout, *dtypes, "long" in words


FIRST_OF_KIND = {kind(case): case for case in reversed(CASES.values())}


def is_slow(case):
    """Return True if another case covers this one, or if it has 9,001 rows, a second each.

    float64 and float16 have the kernels of float32 and bfloat16 but for the types. Strides of one
    case show how an op reads those of others.
    """
    if {"float64", "float16", "9001"} & {*case.name.split()}:
        return True
    return case.layout not in ("dense", "over") and case is not FIRST_OF_KIND[kind(case)]


@functools.cache
def prepared(name):
    """The arrays of a case, and its kernels."""
    arrays = CASES[name].arrays()
    return arrays, generated(CASES[name].node, arrays)


@functools.cache
def library(slow):
    """The kernels of all slow cases, or of all others."""
    return Library(
        kernels_in([prepared(name)[1] for name, case in CASES.items() if is_slow(case) == slow])
    )


def checked(case, cublas):
    return check(case, *prepared(case.name), library(is_slow(case)), cublas)


@pytest.mark.parametrize("cases", by_op(CASES.values(), is_slow))
def test_kernels_of_an_op_equal_numpy(cases, cublas):
    """And strides change no bit of their results."""
    results = {}
    for case in cases:
        with loops.case(case.name):
            found = checked(case, cublas)
            if case.layout == "dense":
                results[case.node] = found
            if has_bits_of_dense(case):
                if case.node not in results:
                    other = CASES[case.name.removesuffix(case.layout) + "dense"]
                    results[case.node] = checked(other, cublas)
                for dense, result in zip(results[case.node], found, strict=True):
                    np.testing.assert_array_equal(result, dense, strict=True)


def has_bits_of_dense(case):
    """Return True for cuts of all ops but products, whose bits depend on the alignment of rows.

    Of products no plan makes parts that are less aligned than the whole
    (tests/memory/test_padded_rows.py).
    """
    op = case.node.op
    return case.layout.startswith("axis") and not (op.multiplies or op.convolves)


BREAKS = {
    "a sum instead of a maximum": ("Max::combine(peak", "Sum::combine(peak"),
    "no barriers": ("__syncthreads();", ""),
    "a first element is left out": ("first + rank", "first + rank + 1"),
    "division by the maximum": ("/ total_value", "/ peak_value"),
    "the neighbour is written": ("y_out.lane[lane]", "y_out.lane[lane ^ 1]"),
}


@pytest.mark.parametrize(("right", "wrong"), BREAKS.values(), ids=BREAKS)
def test_a_broken_kernel_is_found(right, wrong):
    """The checks above can fail."""
    case = next(c for c in CASES.values() if c.name == "softmax long (3, 2112) float32 dense")
    arrays = case.arrays()
    found = generated(case.node, arrays)
    kernels = kernels_in([found])
    check(case, arrays, found, Library(kernels))
    assert right in module_text(kernels)
    broken = Library(kernels, lambda text: text.replace(right, wrong))
    with pytest.raises(AssertionError):
        check(case, case.arrays(), found, broken)


RESAMPLING = {
    "the edge's share": ("adaptive_average_pool2d", "row < bottom", "row < bottom - 1"),
    "another share": ("adaptive_average_pool2d_gradient", "/ float(", "/ float(1 + "),
    "centres by half an element": ("upsample_bilinear2d", "+ 0.5)", "+ 0.0)"),
    "too short a reach": ("upsample_bilinear2d_gradient", "+ 3) *", "+ 2) *"),
}


def test_broken_resampling_is_found():
    cases = {
        op: next(c for n, c in CASES.items() if n.startswith(op + " long") and "float32 dense" in n)
        for op, _, _ in RESAMPLING.values()
    }
    check_that_they_are_found(
        {name: (cases[op], right, wrong) for name, (op, right, wrong) in RESAMPLING.items()}
    )


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_scratch_depends_on_shapes_and_the_order_of_axes_alone(slow):
    """A plan gives scratch its bytes before anything has a place."""
    by_order = {}
    for case in CASES.values():
        if is_slow(case) != slow:
            continue
        arrays, found = prepared(case.name)
        orders = tuple(memory_order(a.shape, a.strides) for a in arrays.values())
        assert by_order.setdefault((case.node, orders), found.scratch) == found.scratch
        strided = {v: a.strides for v, a in arrays.items() if outer_axes(v.type, a.strides)}
        assert gpu_workspace(case.node, H200, strided).scratch == found.scratch


def test_maps_are_reduced_by_columns_where_they_lie_channels_last():
    """Consecutive threads take consecutive channels, and sums run over places."""
    found = {
        case.layout: generated(case.node, case.arrays()).kernels[0].text
        for case in CASES.values()
        if case.name.startswith("batch_norm long (2, 5, 13, 11) float32 ")
    }
    assert "across_column" in found["channels-last"]
    assert "across_column" not in found["dense"]
    assert "across_row" in found["dense"]


def test_threads_follow_the_memory_of_maps():
    """A map's neighbours in memory are the neighbours of a thread: channels, then columns."""
    x = g.input("x", (2, 8, 6, 6))
    node = g.max_pool2d(x, 2).node
    maps = {v: channels_last(np.zeros(v.shape, v.type.dtype.numpy)) for v in (x, *node.outputs)}
    (kernel,) = generated(node, maps).kernels
    assert "const Index o3 = item % 8u;" in kernel.text
    assert "const Index c = o3;" in kernel.text


def test_texts_are_deterministic():
    for name in [name for name, case in CASES.items() if not is_slow(case)][::7]:
        arrays, found = prepared(name)
        assert generated(CASES[name].node, arrays) == found
