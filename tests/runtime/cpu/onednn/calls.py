"""Nodes run by oneDNN on arrays, in a workspace of the bytes that planners give it."""

import ctypes
from collections.abc import Mapping

import numpy as np
import pytest

from graphc import Node, Value
from graphc.codegen.text.operands import Place
from graphc.ir.types import bfloat16, outer_axes
from graphc.runtime.cpu.onednn.library import load_onednn
from graphc.runtime.cpu.onednn.nodes import executions
from graphc.runtime.cpu.onednn.primitive import Execution

needs_library = pytest.mark.skipif(load_onednn() is None, reason="onednn-cpu-gomp is not installed")

EXECUTE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
)
GUARD, MARK = 4096, 0xFF  # NaN, where it is read as floats


def has_avx512(feature: str = "avx512bw") -> bool:
    with open("/proc/cpuinfo") as lines:
        return any(feature in line.split() for line in lines if line.startswith("flags"))


def call(execution: Execution) -> None:
    status = EXECUTE(execution.function)(
        execution.primitive,
        execution.stream,
        execution.count,
        ctypes.addressof(execution.arguments),
    )
    assert status == 0


def run(
    node: Node, arrays: Mapping[Value, np.ndarray], room: int, threads: int = 2
) -> list[Execution] | None:
    """What runs the node on the arrays of its values, and writes nothing around its workspace."""
    workspace = np.full(room + 2 * GUARD, MARK, np.uint8)
    places = {value: Place(array.ctypes.data, array.strides) for value, array in arrays.items()}
    found = executions(node, places, workspace.ctypes.data + GUARD, room, threads)
    for each in found or ():
        call(each)
    assert (workspace[:GUARD] == MARK).all()
    assert (workspace[-GUARD:] == MARK).all()
    return found


def drawn(value: Value, seed: int = 0) -> np.ndarray:
    """Normal numbers of the value's type."""
    rng = np.random.default_rng([seed, *value.shape])
    return rng.standard_normal(value.shape).astype(value.type.dtype.numpy)


def strided_of(arrays: Mapping[Value, np.ndarray]) -> dict[Value, tuple[int, ...]]:
    """The strides of values that do not lie row-major in one piece."""
    return {v: a.strides for v, a in arrays.items() if outer_axes(v.type, a.strides)}


def moved(array: np.ndarray, offset: int) -> np.ndarray:
    """A copy that lies alike, `offset` bytes behind a multiple of 4096."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    held = np.empty(array.nbytes + 8192, np.uint8)
    first = -held.ctypes.data % 4096 + offset
    flat = held[first : first + array.nbytes].view(array.dtype)
    copy = flat.reshape([array.shape[axis] for axis in order]).transpose(np.argsort(order))
    copy[...] = array
    return copy


def assert_close(found: np.ndarray, expected: np.ndarray, terms: int, scale: float) -> None:
    """Sums of so many products in float32, rounded once more in bfloat16.

    `scale` is the largest sum of magnitudes.
    """
    assert np.isfinite(found.astype(np.float64)).all()
    unit = 2.0**-8 if found.dtype == bfloat16.numpy else 0.0
    bound = scale * (terms + 2) * 2.0**-24 + unit * np.abs(expected) + 1e-30
    assert (np.abs(found.astype(np.float64) - expected) <= bound).all()
