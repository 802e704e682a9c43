"""Convolutions and their gradients in many geometries, layouts, tiles and dtypes."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
from codegen.on_cpu import aligned, generated
from ops.test_strides import run as run_numpy

import graphc as g
from graphc.codegen.convolution import ops as convolution
from graphc.codegen.memo import Memo
from graphc.ir.builder import apply
from graphc.ir.types import as_dtype
from graphc.ops.conv import (
    Conv2d,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    _input_attributes,
    _weight_attributes,
)
from graphc.ops.geometry import Conv2dAttributes

ORDERS = {
    "channels first": ((0, 1, 2, 3),) * 3,
    "channels last": ((0, 2, 3, 1),) * 3,
    "x last": ((0, 2, 3, 1), (0, 1, 2, 3), (0, 1, 2, 3)),
    "y last": ((0, 1, 2, 3), (0, 1, 2, 3), (0, 2, 3, 1)),
    "filters last": ((0, 1, 2, 3), (0, 2, 3, 1), (0, 1, 2, 3)),
    "maps last": ((0, 2, 3, 1), (0, 1, 2, 3), (0, 2, 3, 1)),
    "filters by taps": ((0, 2, 3, 1), (1, 2, 3, 0), (0, 1, 2, 3)),
    "x and y anyhow": ((3, 1, 0, 2), (0, 1, 2, 3), (2, 0, 3, 1)),
    "filters anyhow": ((0, 1, 2, 3), (2, 0, 3, 1), (0, 1, 2, 3)),
    "batch inside": ((1, 0, 2, 3), (0, 1, 2, 3), (1, 0, 2, 3)),
}
"""Axes of x, w and y from the outermost in memory to the innermost."""

A = Conv2dAttributes
GEOMETRIES = {
    "padded": ((5, 3, 7, 6), (4, 3, 3, 3), A((1, 1), (1, 1))),
    "strided": ((5, 8, 9, 8), (16, 8, 3, 3), A((2, 2), (1, 1))),
    "odd": ((5, 2, 9, 5), (3, 2, 3, 2), A((2, 1), (2, 0), (2, 3))),
    "pointwise": ((5, 8, 4, 3), (6, 8, 1, 1), A()),
    "pointwise, strided": ((5, 8, 4, 5), (6, 8, 1, 1), A((2, 2))),
    "grouped": ((5, 8, 5, 4), (12, 2, 3, 3), A((1, 1), (1, 1), groups=4)),
    "grouped pointwise": ((3, 8, 5, 4), (4, 4, 1, 1), A(groups=2)),
    "more groups than images": ((2, 6, 4, 4), (6, 2, 2, 2), A(groups=3)),
    "depthwise": ((11, 40, 9, 8), (40, 1, 3, 3), A((1, 1), (1, 1), groups=40)),
    "depthwise, strided": ((3, 3, 9, 8), (6, 1, 5, 3), A((2, 3), (2, 1), (1, 2), groups=3)),
    "depthwise, wide window": ((3, 3, 9, 8), (3, 1, 7, 6), A((1, 1), (3, 3), groups=3)),
    "one pixel": ((5, 4, 3, 3), (6, 4, 3, 3), A()),
    "pixels of one": ((5, 4, 1, 1), (6, 4, 1, 1), A()),
    "one image": ((1, 3, 8, 8), (4, 3, 3, 3), A((1, 1), (1, 1))),
    "one image, pointwise": ((1, 3, 8, 8), (4, 3, 1, 1), A()),
    "one filter": ((4, 3, 5, 5), (1, 3, 3, 3), A()),
    "one channel": ((4, 1, 5, 5), (3, 1, 3, 3), A((1, 1), (1, 1))),
    "stride above window": ((4, 2, 7, 7), (3, 2, 2, 2), A((3, 3))),
    "one side padded": ((3, 2, 6, 7), (3, 2, 3, 2), A((2, 1), (0, 1, 2, 0))),
    "window above padding": ((4, 2, 3, 9), (3, 2, 5, 1), A((4, 2), (2, 1))),
}


@dataclass(frozen=True)
class Case:
    """A convolution or gradient with its arrays as they lie, and what NumPy gives in float64."""

    name: str
    node: object
    arrays: dict
    expected: np.ndarray
    found: object

    @property
    def tolerance(self):
        name = self.node.output.type.dtype.name
        return {"float64": 1e-12, "float32": 4e-6, "float16": 1e-3, "bfloat16": 8e-3}[name]


def laid(array, order):
    """The same elements with axes in that order in memory."""
    return aligned(array.transpose(order)).transpose(np.argsort(order))


def node_of(op, arrays, attributes, dtype):
    inputs = [g.input(f"x{i}", a.shape, dtype if i < 2 else a.dtype) for i, a in enumerate(arrays)]
    return apply(op, *inputs, attributes=attributes)


def filled(rng, shape, dtype):
    return rng.uniform(-2, 2, shape).astype(as_dtype(dtype).numpy)


def in_float64(op, arrays, attributes):
    attributes = replace(attributes, wide=False) if hasattr(attributes, "wide") else attributes
    node = node_of(op, [a.astype(np.float64) for a in arrays], attributes, "float64")
    feeds = [a.astype(np.float64) for a in arrays]
    given = dict(zip(node.inputs, feeds, strict=True)) | {node.output: np.empty(node.output.shape)}
    return run_numpy(node, given)[0]


def one(name, op, arrays, attributes, dtype, orders):
    """A case whose inputs and output have these orders of axes; a bias or sum is as the last."""
    node = node_of(op, arrays, attributes, dtype)
    expected = in_float64(op, arrays, attributes)
    *of_inputs, of_output = orders
    output = np.full(node.output.shape, np.nan, node.output.type.dtype.numpy)
    placed = {
        value: laid(array, order) if array.ndim == 4 else aligned(array)
        for value, array, order in zip(node.inputs, arrays, of_inputs, strict=True)
    }
    placed[node.output] = laid(output, of_output)
    return Case(name, node, placed, expected, generated(node, placed))


def three(label, geometry, orders, dtype="float64", **weight):
    """The forward case and both gradients."""
    x_shape, w_shape, a = geometry
    rng = np.random.default_rng(3)
    x, w = filled(rng, x_shape, dtype), filled(rng, w_shape, dtype)
    probe = node_of(Conv2d, [x, w], a, dtype)
    dy = filled(rng, probe.output.shape, dtype)
    of_x, of_w, of_y = orders
    to_x = _input_attributes(a, x_shape)
    to_w = replace(_weight_attributes(a, w_shape), **weight)
    sums = []
    if weight.get("accumulate"):
        total = "float32" if weight.get("wide") and as_dtype(dtype).itemsize == 2 else dtype
        sums = [filled(rng, w_shape, total)]
    bias = filled(rng, w_shape[:1], dtype)
    return [
        one(f"{label}: forward", Conv2d, [x, w], a, dtype, (of_x, of_w, of_y)),
        one(f"{label}: bias", Conv2d, [x, w, bias], a, dtype, (of_x, of_w, of_w, of_y)),
        one(f"{label}: dx", Conv2dInputGradient, [dy, w], to_x, dtype, (of_y, of_w, of_x)),
        one(
            f"{label}: dw", Conv2dWeightGradient, [dy, x, *sums], to_w, dtype,
            (of_y, of_x, *[of_w] * len(sums), of_w),
        ),
    ]  # fmt: skip


LIMITS = {"whole": 2**26, "some images": 12_000, "some rows": 1_500, "one row": 1}


ORDERS_OF_DTYPES, SIZES_OF_DTYPES = ("channels first", "channels last"), ("whole", "some images")


def all_cases(monkeypatch):
    found = []
    for (size, limit), (name, geometry) in itertools.product(LIMITS.items(), GEOMETRIES.items()):
        limited(monkeypatch, limit)
        for layout, orders in ORDERS.items():
            if size in ("whole", "some images") or layout in ("channels first", "channels last"):
                found += three(f"{name}, {layout}, {size}", geometry, orders)
    for dtype, wide, accumulate in itertools.product(
        ("float64", "float32", "float16", "bfloat16"), (False, True), (False, True)
    ):
        for layout, size in itertools.product(ORDERS_OF_DTYPES, SIZES_OF_DTYPES):
            limited(monkeypatch, LIMITS[size])
            for name in ("strided", "pointwise", "grouped", "depthwise"):
                label = f"{name}, {layout}, {size}, {dtype}, {wide=}, {accumulate=}"
                cases = three(
                    label, GEOMETRIES[name], ORDERS[layout], dtype, wide=wide, accumulate=accumulate
                )
                found += cases[3:] if wide or accumulate else cases
    return found


def limited(patch, size):
    """Scratch within so many bytes; what was worked out under another limit is not recalled."""
    patch.setattr(convolution, "LIMIT_BYTES", size)
    patch.setattr(Memo, "get", lambda self, key, make: make())
