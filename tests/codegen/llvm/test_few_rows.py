"""Products of few rows that read a parameter in place, against float64."""

import numpy as np
import pytest
from codegen.llvm.native import run

import graphc as g
from graphc.codegen.node_calls import Scratch
from graphc.codegen.products.few_rows import LEAST_ELEMENTS, few_rows_calls
from graphc.codegen.products.native import native_bytes
from graphc.codegen.text.operands import Place
from graphc.ir.builder import apply
from graphc.ir.types import TensorType, float32
from graphc.models import lstm
from graphc.ops.matmul import Linear, LinearAttributes, Matmul, MatmulAttributes

ROWS = 64


def linear(rows, inner, columns, activation="none"):
    x, bias = g.input("x", (rows, inner)), g.parameter("bias", (columns,))
    weight = g.parameter("weight", (columns, inner))
    return apply(Linear, x, weight, bias, attributes=LinearAttributes(activation))


def product(rows, inner, columns, **flags):
    shape = (columns, inner) if flags.get("transpose_b") else (inner, columns)
    left = (inner, rows) if flags.get("transpose_a") else (rows, inner)
    operands = [g.input("x", left), g.parameter("weight", shape)]
    if flags.get("accumulate"):
        operands.append(g.input("sum", (rows, columns)))
    return apply(Matmul, *operands, attributes=MatmulAttributes(**flags))


def arrays_of(node, seed=0):
    rng = np.random.default_rng(seed)
    values = (*node.inputs, node.output)
    return {value: rng.standard_normal(value.shape).astype(np.float32) for value in values}


def calls_of(node, arrays, scratch_bytes=None):
    places = {v: Place(0, array.strides) for v, array in arrays.items()}
    size = native_bytes(node, {}) if scratch_bytes is None else scratch_bytes
    return few_rows_calls(node, places, size), size


def computed(node, arrays, scratch_bytes=None, backwards=False):
    """What the kernels write; in scratch of no more bytes than the node's workspace."""
    calls, size = calls_of(node, arrays, scratch_bytes)
    assert calls is not None
    assert {b for call in calls for b in call.pointers if isinstance(b, Scratch)} == {Scratch(0)}
    arrays[node.output][...] = np.nan
    run(calls, arrays, (TensorType((size // 4,), float32),), backwards)
    return arrays[node.output]


def expected(node, arrays):
    a, b, *bias = (arrays[value].astype(np.float64) for value in node.inputs)
    is_turned = node.op.name == "linear" or node.attributes.transpose_b
    return sum(bias, a @ (b.T if is_turned else b))


FORMS = [
    linear(64, 512, 1024), linear(32, 257, 1999), linear(16, 2048, 130), linear(48, 1024, 600),
    product(64, 1024, 1024, transpose_b=True),
    product(64, 4096, 1024), product(64, 5000, 1024), product(16, 1001, 512), product(32, 70, 4096),
    product(48, 1100, 512),
]  # fmt: skip


@pytest.mark.parametrize("node", FORMS, ids=lambda node: str(node.output.type))
def test_products(node):
    arrays = arrays_of(node)
    found = computed(node, arrays)
    terms = node.inputs[0].shape[1]
    np.testing.assert_allclose(found, expected(node, arrays), atol=1e-6 * terms)
    again = computed(node, arrays, backwards=True)
    assert again.tobytes() == found.copy().tobytes()


def test_a_sum_is_in_the_order_of_the_inner_axis():
    """A fused operation rounds once, and so does the reference, but for rare double roundings."""
    node = product(16, 1024, 512)
    arrays = arrays_of(node)
    a, b = (arrays[value].astype(np.float64) for value in node.inputs)
    total = np.zeros((16, 512), np.float32)
    for k in range(1024):  # a product of two float32 is exact in float64
        total = (total + a[:, k, None] * b[k]).astype(np.float32)
    assert np.count_nonzero(computed(node, arrays) != total) < total.size // 1000


@pytest.mark.parametrize("make", [linear, product])
def test_neither_rows_nor_layouts_nor_scratch_change_bits(make):
    node = make(ROWS, 1024, 1024)
    arrays = arrays_of(node)
    whole = computed(node, arrays).copy()
    few = make(16, 1024, 1024)
    part = dict(zip((*few.inputs, few.output), arrays.values(), strict=True))
    part[few.inputs[0]] = part[few.inputs[0]][16:32]
    part[few.output] = np.empty((16, 1024), np.float32)
    assert computed(few, part).tobytes() == whole[16:32].tobytes()
    x, y = node.inputs[0], node.output
    wide = np.full((ROWS, 3000), 7, np.float32)
    lying = {**arrays, x: arrays[x].T.copy().T, y: wide[:, 100:1124]}
    assert computed(node, lying).tobytes() == whole.tobytes()
    assert (wide[:, :100] == 7).all()
    assert (wide[:, 1124:] == 7).all()
    if make is product:
        small = computed(node, arrays, scratch_bytes=ROWS * 4 * 200)
        assert small.tobytes() == whole.tobytes()


def test_other_products_are_left_to_the_library():
    least = LEAST_ELEMENTS // 1024
    for node in (
        linear(ROWS, 1024, 1024, activation="gelu"),
        linear(ROWS + 16, 1024, 1024),
        linear(ROWS - 1, 1024, 1024),
        linear(ROWS, 1024, least - 1),
        product(ROWS, 1024, 1000),
        product(ROWS, 1024, 1024, transpose_a=True),
        product(ROWS, 1024, 1024, accumulate=True),
    ):
        assert calls_of(node, arrays_of(node))[0] is None
    node = product(ROWS, 1024, 1024)
    assert calls_of(node, arrays_of(node), scratch_bytes=0)[0] is None
    x = g.input("x", (ROWS, 1024))
    computed_operand = apply(Matmul, x, g.relu(node.inputs[1]), attributes=MatmulAttributes())
    assert calls_of(computed_operand, arrays_of(computed_operand))[0] is None


def test_strategies_and_threads_change_no_bit():
    """Recurrent weights of a million elements, under every strategy."""
    sizes = {"seq_len": 3, "batch": 32, "layers": 2, "hidden": 512, "inputs": 8, "classes": 600}
    found = set()
    for options in (
        {"allocate": "none"}, {"allocate": "packed"}, {"recompute": "sublinear"},
        {"recompute": "sublinear", "allocate": "sharing"}, {"poison": True}, {"threads": 1},
    ):  # fmt: skip
        program = g.compile(lstm(**sizes), optimizer=g.optim.SGD(0.1), seed=3, **options)
        rng = np.random.default_rng(0)
        feeds = {
            "x": rng.standard_normal((3, 32, 8), dtype=np.float32),
            "labels": rng.integers(0, 600, (3, 32)).astype(np.int32),
        }
        losses = tuple(program.step(feeds)["loss"].tobytes() for _ in range(2))
        found.add((losses, tuple(array.tobytes() for array in program.states.values())))
    assert len(found) == 1
