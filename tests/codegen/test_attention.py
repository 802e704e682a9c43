"""Kernels of fused attention: broken ones are found, and how operands lie changes no bit."""

import ctypes
import mmap

import ml_dtypes
import numpy as np
import pytest
from codegen.cases import all_cases
from codegen.checks import check_that_they_are_found
from codegen.on_cpu import Library, aligned, generated
from runtime.forked import in_child

import graphc as g

CASES = [case for case in all_cases() if "attention" in case.node.op.name]

BROKEN_ATTENTION = {
    "no barriers": ("attention", "__syncthreads();", ""),
    "earlier tiles are not corrected": ("attention", "result[i][t] *= kept", "result[i][t] *= 1"),
    "sums are not corrected": ("attention", "total[i] * kept", "total[i]"),
    "one more column is seen": ("attention", "column <= row +", "column <= 1 + row +"),
    "a chunk is left out": ("attention", "chunk < 72u", "chunk < 64u"),
    "the last tile is left out": ("attention_gradient", "at < 37u", "at < 32u"),
    "no sum along rows": ("attention_gradient", "(reach[i] -", "(reach[i] - 0 *"),
    "the first tile is left out": (
        "attention_gradient",
        "(base > 64u ?",
        "(base < 101u ? 32u : base > 64u ?",
    ),
}


def first_case(start, words):
    return next(c for c in CASES if c.name.startswith(start) and words in c.name)


def test_broken_attention_is_found():
    check_that_they_are_found({
        name: (first_case(f"{op} long ", "causal float32 dense"), right, wrong)
        for name, (op, right, wrong) in BROKEN_ATTENTION.items()
    })  # fmt: skip


BROKEN_ON_TENSOR_CORES = {
    "earlier tiles are not corrected": (
        "attention", "result[t][2u * i] *= kept", "result[t][2u * i] *= 1"
    ),
    "sums are not corrected": ("attention", "total[i] *= kept;", ""),
    "shares of one thread": ("attention", "total[i] = across_quad<Sum>(total[i]);", ""),
    "one more column is seen": ("attention", "column <= row +", "column <= 1 + row +"),
    "all is seen": ("attention", "if (!(", "if (!(true || "),
    "the same tile again": ("attention", "stage ^= 1u;", ""),
    "the last tile is left out": ("attention", "base + 64u : 130u", "base + 64u : 66u"),
    "halves of a pair change places": (
        "attention", "[0], score[2u * c + 0u][1]", "[1], score[2u * c + 0u][0]"
    ),
    "rows as columns": ("attention", "load_transposed", "load_fragments"),
    "logarithms to the base of two": ("attention", "+ logf(", "+ log2f("),
    "no barriers": ("attention", "__syncthreads();", ""),
    "no barrier when a tile is there": (
        "attention", "copies_arrived<1>();\n        __syncthreads();", "copies_arrived<1>();"
    ),
    "no barrier when a tile has been read": (
        "attention", "__syncthreads();\n        stage ^= 1u;", "stage ^= 1u;"
    ),
    "copies are not waited for": ("attention", "copies_arrived<1>", "copies_arrived<2>"),
    "the last copies are not waited for": ("attention", "else copies_sent();", ""),
    "no barrier between tiles of the gradient": (
        "attention_gradient", "__syncthreads();\n        stage ^= 1u;", "stage ^= 1u;"
    ),
    "no sum along rows": ("attention_gradient", "- own_along[", "- 0 * own_along["),
    "no sum along columns": ("attention_gradient", "- along_tile[", "- 0 * along_tile["),
    "no scale of gradients": ("attention_gradient", "reach[j][e] * 0.05", "reach[j][e] * 0.06"),
    "sums of another row": ("attention_gradient", "own_stats[e / 2u]", "own_stats[1u - e / 2u]"),
    "numbers of another row": (
        "attention_gradient", "stats_tile[stage][j * 8u + pair + e % 2u]",
        "stats_tile[stage][j * 8u + pair]",
    ),
    "no gradient of keys": ("attention_gradient", "narrow(dk_sum", "narrow(0 * dk_sum"),
}  # fmt: skip


def test_broken_attention_on_tensor_cores_is_found():
    check_that_they_are_found({
        name: (first_case(f"{op} long (1, 1, 130, ", "bfloat16 dense"), right, wrong)
        for name, (op, right, wrong) in BROKEN_ON_TENSOR_CORES.items()
    })  # fmt: skip


BROKEN_DROPOUT = {
    "another element": ("dropped_attention", "{columns}u + column", "{columns}u + column + 4u"),
    "another row": ("dropped_attention", "u + row) * ", "u + (row ^ 1u)) * "),
    "another stream": ("dropped_attention", ", number, unsigned(", ", 0u * number, unsigned("),
    "another step": ("dropped_attention", "unsigned(step[0])", "0u"),
    "nothing is dropped": ("dropped_attention", "kept = 0;", "kept = 0; kept = ~0u;"),
    "gradients of what was dropped": (
        "dropped_attention_gradient", "(kept >> (j * 4u + e) & 1u ? reach[j][e]",
        "(true ? reach[j][e]",
    ),
    "weights that were dropped": (
        "dropped_attention_gradient", "(kept >> (j * 4u + e) & 1u ? score[j][e]",
        "(true ? score[j][e]",
    ),
}  # fmt: skip
BLOCKS, SINGLE = 152, 91
"""Numbers of columns whose dropout is drawn in blocks of four, and one at a time."""


def dropout_break(op, right, wrong, columns):
    """Return a case with so many columns, the right text, and a wrong one."""
    case = next(
        c for c in CASES
        if c.node.op.name == op and "bfloat16 dense" in c.name and " long " in c.name
        and c.node.named_inputs()["k"].shape[2] == columns
    )  # fmt: skip
    return case, *(t.replace("{columns}", f"{columns}") for t in (right, wrong))


def test_broken_dropout_is_found():
    check_that_they_are_found({
        f"{name}, {columns} columns": dropout_break(*each, columns)
        for name, each in BROKEN_DROPOUT.items() for columns in (BLOCKS, SINGLE)
    })  # fmt: skip


BROKEN_BLOCKS = {
    "bits of the thread alone": ("dropped_attention", "(turn - t)", "0u * (turn - t)"),
    "blocks of one row": ("dropped_attention", "turn * 8u", "0u * turn"),
    "other columns of a block": ("dropped_attention", "other >> pair % 4u", "other"),
    "bits of the other row": ("dropped_attention", "<< t * 2u", "<< (1u - t) * 2u"),
    "bits of the thread that owns columns": (
        "dropped_attention_gradient", "(turn - t) * 4u", "0u * (turn - t)"
    ),
    "blocks of one row of a pair": ("dropped_attention_gradient", "pair + turn % 2u", "pair"),
    "blocks of one group of columns": ("dropped_attention_gradient", "turn / 2u * 8u", "0u"),
    "columns of another thread": ("dropped_attention_gradient", "other >> line % 4u", "other"),
}  # fmt: skip


BROKEN_SINGLES = {
    "another bit": ("dropped_attention", "<< (j * 4u + e)", "<< (j * 4u + (e ^ 1u))"),
}


def test_broken_blocks_and_single_weights_of_dropout_are_found():
    name = "dropped_attention long (1, 2, 70, 16) bfloat16 dense"
    case = next(c for c in CASES if c.name == name)
    check_that_they_are_found(
        {name: dropout_break(*each, BLOCKS) for name, each in BROKEN_BLOCKS.items()}
        | {name: dropout_break(*each, SINGLE) for name, each in BROKEN_SINGLES.items()}
        | {"another head": (case, "2ull + query_head", "2ull + 0u * query_head")}
    )


def before_a_guard(array):
    """A copy that ends where memory that must not be read begins."""
    page = mmap.PAGESIZE
    room = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, room + page)
    whole = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert not protect(whole.ctypes.data + room, page, 0)
    copy = whole[room - array.nbytes : room].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.mark.parametrize("op", ["attention", "attention_gradient"])
@pytest.mark.parametrize("sizes", ["(1, 2, 64, 16)", "(1, 1, 130, 16)"])
def test_nothing_is_read_beyond_an_operand(op, sizes):
    """Blocks that own columns to which no row attends read no rows."""
    name = f"{op} long {sizes if op == 'attention' else sizes[:-3] + '24)'} bfloat16 dense"
    case = next(c for c in CASES if c.name == name)

    def work():
        arrays = {value: before_a_guard(array) for value, array in case.arrays().items()}
        found = generated(case.node, arrays)
        Library(list(found.kernels)).run(found, arrays)
        return [arrays[value].tobytes() for value in case.node.outputs]

    arrays = case.arrays()
    found = generated(case.node, arrays)
    Library(list(found.kernels)).run(found, arrays)
    assert in_child(work) == [arrays[value].tobytes() for value in case.node.outputs]


def test_layouts_change_no_bit_of_attention():
    """Rows are copied 16 bytes at a time, or element by element."""
    case = next(c for c in CASES if c.name == "attention long (1, 1, 130, 16) bfloat16 dense")
    apart = next(c for c in CASES if c.name == "attention long (1, 1, 130, 16) bfloat16 axis1")
    results = []
    for each in (case, apart):
        arrays = each.arrays()
        found = generated(each.node, arrays)
        (kernel,) = found.kernels
        Library([kernel]).run(found, arrays)
        results.append([arrays[value].copy() for value in each.node.outputs])
    moved = {v: unaligned(a) for v, a in case.arrays().items()}
    found = generated(case.node, moved)
    (kernel,) = found.kernels
    assert "copy_pack(" not in kernel.text
    Library([kernel]).run(found, moved)
    results.append([moved[value].copy() for value in case.node.outputs])
    for other in results[1:]:
        for one, another in zip(results[0], other, strict=True):
            assert one.tobytes() == another.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_that_a_mask_of_the_lowest_number_hides(dtype):
    """All columns of such a row count alike, as they do in float64."""
    lowest = float(ml_dtypes.finfo(dtype).min)
    q, k, v = (g.input(name, (1, 1, 20, 16), dtype) for name in "qkv")
    node = g.attention(q, k, v, form="fused", mask=g.input("mask", (1, 1, 20, 20), dtype)).node
    while node.op.name != "attention":
        node = node.inputs[0].node
    rng = np.random.default_rng(0)
    arrays = {x: aligned(rng.standard_normal(x.shape).astype(x.type.dtype.numpy)) for x in
              (*node.inputs, *node.outputs)}  # fmt: skip
    mask = arrays[node.inputs[3]]
    mask[...] = 0
    mask[..., 5:, :] = lowest
    mask[..., 10:, 3] = 0
    found = generated(node, arrays)
    Library(found.kernels).run(found, arrays)
    y, stats = (arrays[value].astype(np.float64) for value in node.outputs)
    values = arrays[node.inputs[2]].astype(np.float64)[0, 0]
    np.testing.assert_allclose(y[0, 0, 5:10], np.broadcast_to(values.mean(0), (5, 16)), atol=1e-2)
    np.testing.assert_allclose(y[0, 0, 10:], np.broadcast_to(values[3], (10, 16)), atol=1e-2)
    np.testing.assert_allclose(stats[0, 0, 5:10], lowest, rtol=1e-3)


def unaligned(array):
    """A copy that begins one element behind a multiple of 16 bytes."""
    raw = np.empty(array.nbytes + 256, np.uint8)
    skip = -raw.ctypes.data % 256 + array.itemsize
    copy = raw[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
