"""Workspaces and layouts, which are computed once for a node and its copies."""

import pytest

import graphc as g
from graphc.codegen.native import NativeTarget
from graphc.codegen.target import CudaTarget
from graphc.layouts import layouts
from graphc.memory.allocate import Allocation
from graphc.models import bert, gpt2, lstm, unet
from graphc.target import CPU_TARGET

NETWORKS = {
    "bert": lambda: bert(layers=1, width=64, heads=2, seq_len=32, batch=2, vocab=128),
    "gpt2 composed": lambda: gpt2(
        layers=1, width=64, heads=2, seq_len=32, batch=2, vocab=128, attention="composed"
    ),
    "lstm": lambda: lstm(seq_len=4, layers=2, hidden=64, batch=4),
    "unet": lambda: unet(batch=2, width=8, depth=2, image=32),
}


@pytest.mark.parametrize(
    ("network", "precision", "device"),
    [
        pytest.param(name, precision, device, marks=[pytest.mark.slow] if is_slow else [])
        for number, name in enumerate(NETWORKS)
        for precision in ("fp32", "bf16")
        for device in ("cpu", "cuda")
        for is_slow in [((precision == "bf16") == (device == "cuda")) == bool(number % 2)]
    ],
)
def test_cached_workspaces_and_layouts_equal_those_of_each_copy(network, precision, device):
    plan = g.plan(
        NETWORKS[network](), optimizer=g.optim.Adam(), precision=precision, device=device,
        recompute="sublinear", reorder=False,
    )  # fmt: skip
    once = g.plan(
        NETWORKS[network](), optimizer=g.optim.Adam(), precision=precision, device=device,
        reorder=False,
    )  # fmt: skip
    targets = (
        [CudaTarget(plan.device)] if device == "cuda" else [CPU_TARGET, NativeTarget(plan.device)]
    )
    for target in targets:
        found, asked = Allocation(once.graph, target), 0
        for graph in (once.graph, plan.graph):
            found = found.of(graph)
            assert found.strides == layouts(graph, target)
            for storages in (found.separate, found.merged):
                for node in graph.nodes:
                    types = target.workspace(node, storages.strided)
                    size = sum(
                        -(-type.bytes // found.alignment) * found.alignment for type in types
                    )
                    assert found.workspace_bytes(node, storages) == size
                    asked += size > 0
        assert asked or target is CPU_TARGET
    assert any(node.copy_of is not None for node in plan.graph.nodes)
