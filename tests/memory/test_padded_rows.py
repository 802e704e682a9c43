"""Rows of 16-bit products on a GPU begin at multiples of 16 bytes, and nothing else sees it."""

import functools

import pytest

import graphc as g
from graphc.codegen.node_calls import Gemm
from graphc.ir.types import contiguous_strides, padded_extent
from graphc.models import densenet121, gpt2, mlp
from graphc.plans.check.check_figures import check_figures
from graphc.plans.check.check_plan import check_plan
from graphc.runtime.gpu.bind import BoundGemm, bind
from graphc.runtime.gpu.cublaslt import MatrixPlacement, aligned, located
from graphc.runtime.gpu.products import in_one_piece, is_as_aligned, signature

ADDRESS = 0x7F00_0000_0000
WORDS = 1001


def small_gpt2(attention="fused"):
    sizes = {"layers": 1, "width": 64, "heads": 2, "seq_len": 32, "batch": 2, "vocab": WORDS}
    return gpt2(**sizes, drop=0.0, attention=attention)


def composed_gpt2():
    """Without fused attention, whose heads have strides for another reason."""
    return small_gpt2("composed")


def planned(network=small_gpt2, precision="bf16", **options):
    return g.plan(
        network(), optimizer=g.optim.Adam(1e-3), precision=precision, **{"device": "cuda"} | options
    )


@pytest.mark.parametrize(
    ("extent", "itemsize", "padded"),
    [(64, 2, 64), (65, 2, 72), (50257, 2, 50264), (63, 2, 63), (50257, 4, 50260), (1001, 8, 1002)],
)
def test_extents(extent, itemsize, padded):
    assert padded_extent(extent, itemsize) == padded
    assert padded * itemsize % 16 == 0 or extent * itemsize < 128
    assert 0 <= padded - extent <= extent / 8


OPTIONS = [
    {},
    {"allocate": "none"},
    {"allocate": "inplace"},
    {"allocate": "sharing", "recompute": "sublinear"},
    {"recompute": "recursive"},
    {"accumulate": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_logits_and_their_gradients_are_padded_under_every_strategy(options):
    plan = planned(**options)
    check_plan(plan)
    check_figures(plan)
    wide = [v for v in plan.placements if v.node and v.shape[-1:] == (WORDS,) and v.type.rank == 2]
    lying = {v.node.op.name: plan.placements[v].strides for v in wide}
    assert lying == {
        "matmul": (4016, 4),
        "softmax_cross_entropy": (4016, 4),
        "softmax_cross_entropy_gradient": (4016, 4),
        "cast": (2016, 2),
    }
    assert plan.state_bytes == planned(**options, precision="fp32").state_bytes


def test_a_row_more_is_all_that_it_costs():
    """Probabilities and gradients still lie over the logits."""
    plan = planned()
    how = {v.node.op.name: plan.placements[v].how for v in plan.strided if v.node}
    assert how["softmax_cross_entropy"] == how["softmax_cross_entropy_gradient"] == "over"
    (logits,) = [v for v in plan.strided if v.node.op.name == "matmul"]
    buffer = plan.buffers[plan.placements[logits].buffer]
    assert buffer.bytes == 63 * 4016 + WORDS * 4  # the last row needs no padding


@pytest.mark.parametrize(
    ("network", "options"),
    [
        (composed_gpt2, {"precision": "fp32"}),
        (composed_gpt2, {"precision": "tf32"}),
        (composed_gpt2, {"device": "cpu"}),
        (lambda: mlp(layers=2, hidden=31, inputs=17, batch=9), {}),
        (lambda: mlp(layers=2, hidden=64, inputs=128, batch=9), {}),
    ],
)
def test_nothing_is_padded_where_nothing_is_gained(network, options):
    """Other precisions, other devices, short rows, rows that are aligned as they are."""
    plan = planned(network, **options)
    assert not [v for v in plan.strided if plan.placements[v].how not in ("view", "part")]


def products(plan):
    """All products of a plan."""
    calls = [call for work in bind(plan, ADDRESS) for call in work.calls]
    return [call for call in calls if isinstance(call, BoundGemm)]


def unaligned(call: Gemm):
    """The operands of a 16-bit product that tensor cores do not read or write in whole packs."""
    found = []
    for matrix in (call.first, call.second, call.c) if call.first.dtype.itemsize == 2 else ():
        steps = (matrix.leading, matrix.stride if call.batch > 1 else 0)
        if any(step * matrix.dtype.itemsize % 16 for step in steps):
            found.append(matrix)
    return found


ZOO = {
    "gpt2": small_gpt2,
    "composed gpt2": composed_gpt2,
    "mlp": lambda: mlp(layers=3, hidden=136, inputs=72, batch=32, classes=1003),
}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("options", [{}, {"recompute": "sublinear"}], ids=str)
@pytest.mark.parametrize("network", ZOO)
def test_every_product_has_aligned_rows(network, options, precision):
    calls = products(planned(ZOO[network], precision, **options))
    assert sum(call.gemm.first.dtype.itemsize == 2 for call in calls) >= 8
    for call in calls:
        assert not unaligned(call.gemm)
        assert all(address % 16 == 0 for address in call.addresses.values())


def test_without_padding_they_have_not(monkeypatch):
    monkeypatch.setattr("graphc.layouts.padded_strides", contiguous_strides)
    assert any(unaligned(call.gemm) for call in products(planned()))


def dense(width, dtype="float32"):
    """Layers that read all before them, side by side."""
    x, t = g.input("x", (8, width), dtype), g.input("t", (8,), "int32")
    for layer in range(3):
        x = g.concat([x, g.tanh(g.linear(x, width, name=f"layer{layer}"))], 1)
    return g.softmax_cross_entropy(g.linear(x, 91, name="last"), t)


def looked_like_padding():
    """A part as far from row to row as it would be with padding, but not aligned."""
    x, t = g.input("x", (8, 40)), g.input("t", (8,), "int32")
    h = g.concat([g.tanh(g.linear(x, 1, name="a")), g.linear(x, 71, name="b")], 1)
    return g.softmax_cross_entropy(h, t)


def stacked():
    """Parts one below another, of which the second begins 60 bytes in."""
    x, t = g.input("x", (3, 7)), g.input("t", (6,), "int32")
    parts = [g.linear(x, 5, name="a"), g.linear(g.tanh(x), 5, name="b")]
    return g.softmax_cross_entropy(g.concat(parts, 0), t)


def broadcast():
    """A product whose batch has to be cut into calls where its operand is a part."""
    a, b = g.parameter("a", (2, 3, 4, 8, 6)), g.parameter("b", (2, 3, 1, 6, 7))
    h = g.concat([g.tanh(a), g.exp(a)], 2)
    return g.mean(g.matmul(g.split(h, (4, 4), 2)[0], b)) + g.mean(h)


NETWORKS = {
    "gpt2": (small_gpt2, {"precision": "bf16"}),
    "gpt2, odd width": (
        lambda: gpt2(
            layers=1, width=66, heads=2, seq_len=17, batch=2, vocab=101, drop=0.1,
            attention="composed",
        ),
        {"precision": "bf16"},
    ),
    "mlp": (
        lambda: mlp(layers=3, hidden=75, inputs=77, batch=8, classes=91),
        {"precision": "bf16"},
    ),
    "mlp, micro-batches": (
        lambda: mlp(layers=3, hidden=75, inputs=77, batch=8, classes=91),
        {"precision": "fp16", "accumulate": 2},
    ),
    "dense": (lambda: dense(75), {}),
    "dense, bf16": (lambda: dense(75), {"precision": "bf16"}),
    "densenet": (
        lambda: densenet121(growth=6, batch=2, image=32, blocks=(2, 2), classes=5), {}
    ),
    "densenet, bf16": (
        lambda: densenet121(growth=6, batch=2, image=32, blocks=(2, 2), classes=5),
        {"precision": "bf16"},
    ),
    "like padding": (looked_like_padding, {}),
    "stacked": (stacked, {}),
    "broadcast": (broadcast, {}),
}  # fmt: skip

STRATEGIES = [
    {"allocate": "none"}, {"allocate": "inplace"}, {"allocate": "sharing"}, {},
    {"recompute": "sublinear"}, {"recompute": "recursive"},
]  # fmt: skip


def choices(plan):
    """What the choice of each product's algorithm depends on."""
    found = set()
    for bound in products(plan):
        call = bound.gemm
        matrices = (call.first, call.second, call.c)
        placements = [
            MatrixPlacement(m.leading, m.stride, aligned(located(m, bound.addresses)))
            for m in matrices
        ]
        usual = in_one_piece(call)
        # A slice that the network asks for lies as it does under every strategy.
        chosen = usual if is_as_aligned(call, placements, usual) else placements
        found.add(signature(call, chosen, 16, bound.workspace_bytes))
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("densenet", "gpt2") else [])
        for name in NETWORKS
    ],
)
def test_no_strategy_has_another_algorithm_for_a_product(name):
    """So that losses and parameters have the same bits under all of them."""
    network, options = NETWORKS[name]
    found = []
    for strategy in STRATEGIES:
        plan = planned(network, **{"precision": "fp32"} | options, **strategy)
        check_plan(plan)
        found.append(choices(plan))
    assert all(each == found[0] for each in found[1:])


def test_updates_of_weights_of_odd_widths_share_launches():
    """Their gradients lie as they do."""
    plans = [
        planned(functools.partial(mlp, layers=5, hidden=width, inputs=width, batch=8))
        for width in (72, 75)
    ]
    launches = [
        len([work for work in bind(plan, ADDRESS) if work.nodes[0].op.has_effect]) for plan in plans
    ]
    assert launches[0] == launches[1]
