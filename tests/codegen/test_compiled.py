"""NVRTC compiles generated kernels, and what it makes of them."""

import re

import pytest
from codegen.cases import all_cases
from codegen.checks import ARCHITECTURES, DTYPES, FLOATS
from codegen.on_cpu import generated, kernels_in

import graphc as g
from graphc.codegen.lowering import calls_of
from graphc.codegen.text.kernel import Kernel, module_text
from graphc.codegen.text.operands import Place, in_one_piece
from graphc.ir.ancestors import ancestors
from graphc.ir.types import channels_last_strides
from graphc.runtime.gpu.nvrtc import KernelError, compile_cubin, compile_ptx

KERNELS_OF_A_MODULE = 32
WIDE = r"(v4\.(b32|u32|f32)|v2\.(b64|u64|f64))"
CASES = all_cases()


def text_of(cases):
    return module_text(kernels_in([generated(case.node, case.arrays()) for case in cases]))


def texts_of(cases):
    """Modules of some kernels each: the compiler's time grows faster than a module."""
    found = {k.name: k for k in kernels_in([generated(c.node, c.arrays()) for c in cases])}
    kernels = list(found.values())
    starts = range(0, len(kernels), KERNELS_OF_A_MODULE)
    return [module_text(kernels[start : start + KERNELS_OF_A_MODULE]) for start in starts]


def check_cubin(text, architecture):
    cubin = compile_cubin(text, architecture)
    assert cubin.startswith(b"\x7fELF")
    names = re.findall(r"__global__ void (\w+)", text)
    assert names
    assert all(f".text.{name}\0".encode() in cubin for name in names)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_op_compiles(architecture):
    """One kernel an op: dtypes in turn, so that each is met."""
    ops = {}
    for number, case in enumerate(CASES):
        ops.setdefault(case.node.op.name, []).append((number, case))
    chosen = [own[position % len(own)][1] for position, own in enumerate(ops.values())]
    check_cubin(text_of(chosen), architecture)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kernel_compiles(dtype):
    """All rows and layouts, for one architecture."""
    texts = texts_of([case for case in CASES if dtype in case.name.split()])
    assert len(texts) >= 8
    for text in texts:
        check_cubin(text, 90)


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_attention_of_wide_heads_compiles(architecture, dtype, width):
    """Tiles fit the shared memory that every device has; wide heads cost registers."""
    x = g.parameter("x", (2, 3, 100, width), dtype)
    y = g.attention(x, x, x, causal=True, form="fused")
    (dx,) = g.gradient(g.sum(y), [x])
    found = {node.op.name: node for node in ancestors([dx])}
    kernels = []
    for name in ("attention", "attention_gradient"):
        node = found[name]
        places = {v: in_one_piece(v.type) for v in (*node.inputs, *node.outputs)}
        kernels += calls_of(node, places).kernels
    assert len(kernels) == 4
    check_cubin(module_text(kernels), architecture)


def test_a_broken_kernel_does_not_compile():
    broken = Kernel("broken", 'extern "C" __global__ void broken(float *y) { y[0] = missing; }')
    with pytest.raises(KernelError, match='"missing" is undefined'):
        compile_cubin(module_text([broken]), 90)


@pytest.mark.parametrize("function", [g.tanh, g.softmax, lambda x: g.sum(x, 0)])
def test_large_tensors_have_wide_offsets(function):
    """2³² elements: offsets in 32 bits would wrap around."""
    ptx = ptx_of(function(g.input("x", (2**20, 2**12))))
    assert ".entry" in ptx
    small = function(g.input("x", (2**10, 2**12))).node
    large = function(g.input("x", (2**20, 2**12))).node
    for node, index in ((small, "Index = unsigned;"), (large, "Index = unsigned long long;")):
        values = (*node.inputs, *node.outputs)
        first, *_ = calls_of(node, {v: in_one_piece(v.type) for v in values}).kernels
        assert index in first.text


def ptx_of(y, address=0, place=in_one_piece):
    node = y.node
    values = (*node.inputs, *node.outputs)
    found = calls_of(node, {v: place(v.type, address) for v in values})
    return compile_ptx(module_text(found.kernels), 90)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("function", [g.tanh, g.softmax], ids=lambda f: f.__name__)
def test_accesses_have_16_bytes(function, dtype):
    ptx = ptx_of(function(g.input("x", (8, 64), dtype)))
    assert re.search(rf"ld\.global\.{WIDE}", ptx)
    assert re.search(rf"st\.global\.{WIDE}", ptx)


def channels_last(type, address):
    strides = channels_last_strides(type) if type.rank == 4 else in_one_piece(type).strides
    return Place(address, strides)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_accesses_of_channels_last_maps_have_16_bytes(dtype):
    x, residual = (g.input(name, (2, 24, 5, 7), dtype) for name in ("x", "residual"))
    bias = g.input("bias", (24, 1, 1), dtype)
    for y in (g.tanh(x), g.add(x, residual), g.add(x, bias)):
        ptx = ptx_of(y, place=channels_last)
        assert re.search(rf"ld\.global\.(nc\.)?{WIDE}", ptx)
        assert re.search(rf"st\.global\.{WIDE}", ptx)


def test_maps_that_lie_alike_are_one_line():
    """No index arithmetic is left: the text is that of a flat tensor."""
    flat, x = g.input("x", (2 * 24 * 5 * 7,)), g.input("x", (2, 24, 5, 7))
    texts = []
    for y, place in ((g.tanh(flat), in_one_piece), (g.tanh(x), channels_last)):
        values = (*y.node.inputs, *y.node.outputs)
        (kernel,) = calls_of(y.node, {v: place(v.type, 0) for v in values}).kernels
        texts.append(kernel.text)
    assert texts[0] == texts[1]


def test_accesses_are_no_wider_than_addresses_allow():
    ptx = ptx_of(g.tanh(g.input("x", (8, 64))), address=4)
    assert "ld.global.v" not in ptx
    assert "ld.global" in ptx


def test_products_and_sums_are_not_contracted():
    """Else bits would depend on what the compiler makes of each layout."""
    text = text_of([case for case in CASES if case.name == "adam_update float32 dense"])
    contracted = compile_ptx(text, 90, ("--std=c++17",))
    assert "fma.rn.f32" in contracted
    assert "fma.rn.f32" not in compile_ptx(text, 90)
