"""Kernels on arrays with more than 2³¹ elements from end to end: offsets in 32 bits would wrap.

The memory is reserved, not taken: pages that nobody touches are never there.
"""

import mmap

import numpy as np
import pytest
from codegen.cases import all_cases
from codegen.checks import TOLERANCE, in_float64
from codegen.fake_cublas import StandIn
from codegen.on_cpu import Library, generated, kernels_in

from graphc.codegen.strides import takes_strides

pytestmark = pytest.mark.slow

FAR = 2**31 + 64
"""Elements from one place of an axis to the next, an aligned number of bytes for every dtype."""

UNRESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's number; Python has it from 3.13 on

LONGEST = 16
"""The most places of an axis that are so far apart."""


def far_strides(node, name, type):
    """Byte strides with one axis spread out; None where the kernel takes none such."""
    extents = [(extent, axis) for axis, extent in enumerate(type.shape) if 1 < extent <= LONGEST]
    for _, axis in sorted(extents, reverse=True):
        strides = list(np.empty(type.shape, type.dtype.numpy).strides)
        strides[axis] = FAR * type.dtype.itemsize
        if takes_strides(node, name, type, tuple(strides)):
            return tuple(strides)
    return None


def names(node):
    """(name, value) of the operands."""
    outputs = [(node.op.output_name(i), v) for i, v in enumerate(node.outputs)]
    return [*((node.op.input_name(i), v) for i, v in enumerate(node.inputs)), *outputs]


def spread(node):
    """Strides of the operands that may lie so."""
    found = {value: far_strides(node, name, value.type) for name, value in names(node)}
    return {value: strides for value, strides in found.items() if strides is not None}


def is_plain(case):
    return case.layout == "dense" and "float32" in case.name.split()


def chosen():
    """Of every op the first row that has an operand that may lie so."""
    found = {}
    for case in all_cases():
        if case.node.op.name not in found and is_plain(case) and spread(case.node):
            found[case.node.op.name] = case
    return found


CASES = chosen()


def laid(array, strides):
    """The same numbers with these strides, in memory of its own."""
    span = sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True)) + array.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | UNRESERVED
    memory = np.frombuffer(mmap.mmap(-1, span, flags=flags), np.uint8)
    spread = np.ndarray(array.shape, array.dtype, memory.data, 0, strides)
    spread[...] = array
    return spread


@pytest.fixture(scope="module")
def prepared():
    found = {}
    for name, case in CASES.items():
        arrays = {
            value: laid(array, spread(case.node)[value]) if value in spread(case.node) else array
            for value, array in case.arrays().items()
        }
        found[name] = arrays, generated(case.node, arrays)
    return found


@pytest.fixture(scope="module")
def library(prepared):
    calls = [calls for _, calls in prepared.values()]
    return Library(kernels_in(calls))


@pytest.mark.parametrize("name", CASES)
def test_offsets_do_not_wrap(name, prepared, library):
    case, (arrays, calls) = CASES[name], prepared[name]
    library.run(calls, arrays, cublas=StandIn())
    for value, expected in zip(case.node.outputs, in_float64(case), strict=True):
        tolerance = TOLERANCE.get(value.type.dtype.name, 0)
        reach = tolerance * max(1, np.abs(expected).max())
        found = arrays[value].astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=reach)


def test_most_ops_are_here():
    assert len(CASES) > 100
