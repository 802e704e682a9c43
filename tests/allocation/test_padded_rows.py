"""Rows of 16-bit products on a GPU begin at multiples of 16 bytes, and nothing else sees it."""

import pytest

import graphc as g
from graphc.codegen.node_calls import Gemm
from graphc.ir.types import contiguous_strides, padded_extent
from graphc.models import gpt2, mlp
from graphc.plans.check_figures import check_figures
from graphc.plans.check_plan import check_plan
from graphc.runtime.gpu.bind import BoundGemm, bind

ADDRESS = 0x7F00_0000_0000
WORDS = 1001


def small_gpt2():
    return gpt2(layers=1, width=64, heads=2, seq_len=32, batch=2, vocab=WORDS, drop=0.0)


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
        (small_gpt2, {"precision": "fp32"}),
        (small_gpt2, {"precision": "tf32"}),
        (small_gpt2, {"device": "cpu"}),
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
    "fused gpt2": lambda: gpt2(
        layers=1, width=64, heads=2, seq_len=32, batch=2, vocab=WORDS, drop=0.0, attention="fused"
    ),
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
    monkeypatch.setattr("graphc.allocation.layout.padded_strides", contiguous_strides)
    assert any(unaligned(call.gemm) for call in products(planned()))
