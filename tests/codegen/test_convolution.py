"""Convolution by unfolding and products, on the CPU: layouts, tiles, groups and running sums."""

import itertools
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
from codegen.fake_cublas import stand_in
from codegen.on_cpu import Library, aligned, apart, generated, kernels_in, places_of, surroundings
from ops.test_strides import run as run_numpy

import graphc as g
from graphc.codegen.convolution import ops as convolution
from graphc.codegen.lowering import calls_of
from graphc.codegen.memo import Memo
from graphc.codegen.node_calls import Gemm, Launch
from graphc.codegen.text.kernel import module_text
from graphc.codegen.text.operands import in_one_piece
from graphc.codegen.workspace import gpu_workspace
from graphc.ir.builder import apply
from graphc.ir.device import find_device
from graphc.ir.types import as_dtype
from graphc.ops.conv import (
    Conv2d,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    _input_attributes,
    _weight_attributes,
)
from graphc.ops.geometry import Conv2dAttributes
from graphc.runtime.gpu.nvrtc import compile_cubin, compile_ptx

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


@pytest.fixture(scope="module")
def cases():
    with pytest.MonkeyPatch.context() as monkeypatch:
        return all_cases(monkeypatch)


@pytest.fixture(scope="module")
def cublas(tmp_path_factory):
    handle = stand_in(tmp_path_factory.mktemp("cublas"))
    yield handle
    handle.close()


@pytest.fixture(scope="module")
def library(cases, tmp_path_factory, request):
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if hasattr(request.config, "workerinput") else own
    return Library(kernels_in([case.found for case in cases]), shared)


def check(case, library, cublas):
    before = {value: array.copy() for value, array in case.arrays.items()}
    output, results = case.arrays[case.node.output], []
    for descending in (False, True):
        output[...] = np.nan
        library.run(case.found, case.arrays, descending, cublas)
        results.append(output.copy())
    for value in case.node.inputs:
        np.testing.assert_array_equal(case.arrays[value], before[value])
    np.testing.assert_array_equal(*results)
    reach = case.tolerance * max(1, np.abs(case.expected).max())
    np.testing.assert_allclose(
        results[0].astype(np.float64), case.expected, case.tolerance, reach, err_msg=case.name
    )


@pytest.mark.parametrize("layout", ORDERS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_layouts_and_tiles(name, layout, cases, library, cublas):
    chosen = [
        c for c in cases if c.name.startswith(f"{name}, {layout}, ") and "wide=" not in c.name
    ]
    assert len(chosen) >= 8
    for case in chosen:
        check(case, library, cublas)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES_OF_DTYPES)
def test_dtypes_and_running_sums(size, dtype, cases, library, cublas):
    chosen = [c for c in cases if f" {size}, {dtype}, wide" in c.name]
    assert len(chosen) == 8 * (4 + 3)
    for case in chosen:
        check(case, library, cublas)


def gemms(case):
    return [call for call in case.found.calls if isinstance(call, Gemm)]


def test_products_are_used_where_a_blas_can(cases):
    """And not where it cannot: then the direct kernels are."""
    without = {"x and y anyhow", "filters anyhow"}
    for case in cases:
        name, layout, *_ = case.name.replace("pointwise, ", "").replace("image, ", "").split(", ")
        if layout in without or "depthwise" in name or layout not in ORDERS:
            continue
        assert gemms(case), case.name
    for op in ("forward", "dx", "dw"):
        (case,) = [c for c in cases if c.name == f"padded, filters anyhow, whole: {op}"]
        assert not gemms(case)


@pytest.mark.parametrize("name", ["padded", "strided", "pointwise", "one pixel"])
@pytest.mark.parametrize("op", ["forward", "dx", "dw"])
def test_all_pixels_are_one_matrix_where_channels_come_last(name, op, cases):
    (case,) = [c for c in cases if c.name == f"{name}, channels last, whole: {op}"]
    (call,) = gemms(case)
    n, _, p, q = (case.node.output if op == "forward" else case.node.inputs[0]).shape
    assert n * p * q in (call.m, call.n, call.k)
    assert call.batch == 1
    if name == "pointwise":
        assert len(case.found.calls) == 1  # no byte is moved


@pytest.mark.parametrize("op", ["forward", "dx"])
def test_images_are_a_batch_where_channels_come_first(op, cases):
    (case,) = [c for c in cases if c.name == f"padded, channels first, whole: {op}"]
    (call,) = gemms(case)
    assert call.batch == case.node.output.shape[0]


def test_tiles_bound_the_scratch(cases):
    itemsize = 8
    for size, limit in LIMITS.items():
        chosen = [c for c in cases if c.name.split(": ")[0].endswith(f", {size}")]
        assert len(chosen) > 100
        tiled = 0
        for case in chosen:
            geometry = case.node.op.geometry(case.node)
            row = geometry.attributes.groups * geometry.depth * geometry.y[3] * itemsize
            reach = geometry.attributes.dilation[0] * (geometry.w[2] - 1)
            least = row * min(geometry.y[2], reach // geometry.attributes.stride[0] + 1)
            if not gemms(case):
                continue
            given = sum(type.bytes for type in case.found.scratch)
            assert given <= max(limit, least), case.name
            tiled += len(gemms(case)) > 1
        assert bool(tiled) or size == "whole"


def limited(patch, size):
    """Scratch within so many bytes; what was worked out under another limit is not recalled."""
    patch.setattr(convolution, "LIMIT_BYTES", size)
    patch.setattr(Memo, "get", lambda self, key, make: make())


def test_sums_of_16_bits_are_held_in_float32(monkeypatch):
    """Over tiles, within the same limit."""
    x = g.input("x", (16, 8, 12, 12), "bfloat16")
    dy = g.input("dy", (16, 16, 12, 12), "bfloat16")
    attributes = _weight_attributes(A(padding=(1, 1)), (16, 8, 3, 3))
    node = apply(Conv2dWeightGradient, dy, x, attributes=attributes)
    values = {v: in_one_piece(v.type) for v in (dy, x, node.output)}
    for limit, tiles in ((2**26, 1), (100_000, 6)):
        limited(monkeypatch, limit)
        found = calls_of(node, values)
        calls = [call for call in found.calls if isinstance(call, Gemm)]
        assert [call.beta for call in calls] == [0.0, *[1.0] * (tiles - 1)]
        narrow = "bfloat16" if tiles == 1 else "float32"
        assert {call.c.dtype.name for call in calls} == {narrow}
        assert sum(type.bytes for type in found.scratch) <= limit


def test_tiles_change_no_bit_of_folded_sums(cases, library, cublas):
    """dx has one order of sums, however it is cut."""
    for name in ("padded", "strided", "odd"):
        results = []
        for size in LIMITS:
            (case,) = [c for c in cases if c.name == f"{name}, channels first, {size}: dx"]
            library.run(case.found, case.arrays, cublas=cublas)
            results.append(case.arrays[case.node.output].copy())
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


BREAKS = {
    "an edge is left out": ("inside = row >= 0", "inside = row >= 1"),
    "the next row is read": (
        "const int row = int(first_row + p)",
        "const int row = int(first_row + p + 1)",
    ),
    "a tap is left out": ("for (int s = 0", "for (int s = 1"),
    "the first image again": ("(first_image + n)", "(n)"),
}


@pytest.mark.parametrize(("right", "wrong"), BREAKS.values(), ids=BREAKS)
def test_a_broken_kernel_is_found(right, wrong, cases, cublas, tmp_path):
    names = [f"padded, channels first, some images: {op}" for op in ("forward", "dx")]
    chosen = [case for case in cases if case.name in names]
    kernels = kernels_in([case.found for case in chosen])
    assert right in module_text(kernels)
    broken = Library(kernels, tmp_path, lambda text: text.replace(right, wrong))
    caught = 0
    for case in chosen:
        try:
            check(case, broken, cublas)
        except AssertionError:
            caught += 1
    assert caught


@pytest.mark.parametrize(("right", "wrong"), [
    ("part < ", "part + 1 < "), ("pixel += ", "pixel += 1 + "), ("__syncthreads();", "")
])  # fmt: skip
@pytest.mark.parametrize("layout", ["channels first", "channels last"])
def test_a_broken_depthwise_sum_is_found(right, wrong, layout, cases, cublas, tmp_path):
    (case,) = [c for c in cases if c.name == f"depthwise, {layout}, whole: dw"]
    kernels = kernels_in([case.found])
    assert right in module_text(kernels)
    check(case, Library(kernels, tmp_path), cublas)
    with pytest.raises(AssertionError):
        check(case, Library(kernels, tmp_path, lambda text: text.replace(right, wrong)), cublas)


GPU = find_device("h100")


def test_workspaces_hold_scratch_and_what_the_blas_wants():
    x = g.input("x", (32, 64, 56, 56))
    node = g.conv2d(x, 64, 3, padding=1, bias=False, name="a").node
    found = gpu_workspace(node, GPU, {})
    assert found.copies == ()
    assert found.library_bytes == GPU.blas_workspace_bytes > 0
    (columns,) = found.scratch
    assert 2**25 < columns.bytes <= 2**26
    depthwise = g.conv2d(x, 64, 3, padding=1, groups=64, name="b").node
    assert gpu_workspace(depthwise, GPU, {}).types == ()
    pointwise = g.conv2d(x, 64, 1, name="c").node
    assert [type.bytes for type in gpu_workspace(pointwise, GPU, {}).types] == [
        GPU.blas_workspace_bytes
    ]


def strides_of(value, order):
    return laid(np.empty(value.shape, value.type.dtype.numpy), order).strides


def test_operands_that_no_blas_reads_are_copied():
    x = g.input("x", (2, 4, 5, 6))
    node = g.conv2d(x, 3, 1, bias=False).node
    x, w = node.inputs
    for order in ORDERS["channels first"][0], ORDERS["channels last"][0]:
        assert gpu_workspace(node, GPU, {x: strides_of(x, order)}).copies == ()
    odd = strides_of(x, (0, 3, 1, 2))
    assert gpu_workspace(node, GPU, {x: odd}).copies == (x,)
    broadcast = (96, 24, 0, 0)
    assert gpu_workspace(node, GPU, {x: broadcast}).copies == (x,)
    unfolded = g.conv2d(x, 3, 3, bias=False, name="b").node
    assert gpu_workspace(unfolded, GPU, {x: odd}).copies == ()
    w = unfolded.inputs[1]
    assert gpu_workspace(unfolded, GPU, {w: strides_of(w, (0, 3, 1, 2))}).copies == (w,)


def test_large_tensors_have_wide_offsets():
    for groups, expected in ((1, "unfold"), (64, "conv2d")):
        x = g.input("x", (2**10, 64, 256, 256))
        node = g.conv2d(x, 64, 3, padding=1, groups=groups, bias=False).node
        values = (*node.inputs, *node.outputs)
        launch = next(
            call
            for call in calls_of(node, {v: in_one_piece(v.type) for v in values}).calls
            if isinstance(call, Launch)
        )
        assert launch.kernel.name.startswith(f"graphc_{expected}_")
        assert "Index = unsigned long long;" in launch.kernel.text


def test_sliced_channels_and_sums_in_place(cublas, tmp_path):
    """Parts of larger tensors, and dw over its running sum."""
    x_shape, w_shape, a = GEOMETRIES["strided"]
    rng = np.random.default_rng(9)
    x, w = filled(rng, x_shape, "float64"), filled(rng, w_shape, "float64")
    dy = filled(rng, node_of(Conv2d, [x, w], a, "float64").output.shape, "float64")
    to_w = replace(_weight_attributes(a, w_shape), accumulate=True)
    node = node_of(Conv2dWeightGradient, [dy, x, w], to_w, "float64")
    expected = in_float64(Conv2dWeightGradient, [dy, x, w], to_w)
    last = (0, 2, 3, 1)
    for order in ((0, 1, 2, 3), last):
        parts = [apart(laid(each, order), 1) if order != last else None for each in (dy, x)]
        if order == last:
            whole = [laid(np.repeat(each, 2, axis=1), last) for each in (dy, x)]
            parts = [each[:, : each.shape[1] // 2] for each in whole]
            for part, each in zip(parts, (dy, x), strict=True):
                part[...] = each
        sums = aligned(w)
        arrays = dict(zip(node.inputs, (*parts, sums), strict=True)) | {node.output: sums}
        around = [surroundings(part).copy() for part in parts]
        found = calls_of(node, places_of(arrays))
        Library(found.kernels, tmp_path).run(found, arrays, cublas=cublas)
        np.testing.assert_allclose(sums, expected, rtol=1e-12, atol=1e-11)
        for part, before in zip(parts, around, strict=True):
            np.testing.assert_array_equal(surroundings(part), before)


def test_texts_are_made_once():
    """Equal layers share their kernels, wherever they lie."""
    x = g.input("x", (8, 16, 14, 14))
    first = g.conv2d(x, 16, 3, padding=1, name="a")
    second = g.conv2d(first, 16, 3, padding=1, name="b")
    names = []
    for y, address in ((first, 0), (second, 2**20)):
        values = (*y.node.inputs, y)
        found = calls_of(y.node, {v: in_one_piece(v.type, address) for v in values})
        names.append([kernel.name for kernel in found.kernels])
    assert names[0] == names[1]


@pytest.mark.parametrize(
    "architecture",
    [80, pytest.param(90, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.slow)],
)
def test_kernels_compile(architecture, cases):
    """In all dtypes, and those of all layouts once."""
    names = ("strided", "pointwise", "depthwise")
    chosen = [c for c in cases if c.name.startswith(names) and "some images, " in c.name]
    chosen += [c for c in cases if c.name.startswith("strided") and "whole: " in c.name]
    text = module_text(kernels_in([case.found for case in chosen]))
    assert text.count("__global__") > 40
    assert compile_cubin(text, architecture).startswith(b"\x7fELF")


@pytest.mark.parametrize("op", ["forward", "dx"])
def test_channels_are_read_and_written_by_packs(op, cases):
    """Where they are neighbours in memory."""
    name = "strided, channels last, whole, bfloat16, wide=False, accumulate=False"
    (case,) = [c for c in cases if c.name == f"{name}: {op}"]
    (kernel,) = case.found.kernels
    ptx = compile_ptx(module_text([kernel]), 90)
    for access in ("ld", "st"):
        assert re.search(rf"{access}\.global\.(v4\.[bu]32|v2\.[bu]64)", ptx)
