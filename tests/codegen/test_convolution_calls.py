"""Which products and kernels a convolution is made of: matrices, tiles, scratch, copies, texts."""

import re

import numpy as np
import pytest
from codegen.checks import ARCHITECTURES
from codegen.convolution_cases import LIMITS, ORDERS, A, laid, limited
from codegen.on_cpu import kernels_in

import graphc as g
from graphc.codegen.lowering import calls_of
from graphc.codegen.node_calls import Gemm, Launch
from graphc.codegen.text.kernel import module_text
from graphc.codegen.text.operands import in_one_piece
from graphc.codegen.workspace import gpu_workspace
from graphc.devices.device import find_device
from graphc.ir.builder import apply
from graphc.ops.conv import (
    Conv2dWeightGradient,
    _weight_attributes,
)
from graphc.runtime.gpu.nvrtc import compile_cubin, compile_ptx


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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
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
