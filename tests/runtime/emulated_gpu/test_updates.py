"""Whole steps whose small updates run in common launches: the same bits as one by one."""

import pytest
from runtime.emulated_gpu.networks import bits, fed, on_gpu, small_gpt2, small_mlp

import graphc as g
from graphc.runtime.gpu import backend
from graphc.runtime.gpu.bind import bind


@pytest.mark.parametrize(
    ("network", "optimizer", "options"),
    [
        (small_gpt2, g.optim.AdamW(1e-2), {"recompute": "sublinear"}),
        (lambda: small_mlp("float32"), g.optim.Adam(1e-2), {"precision": "fp16"}),
    ],
    ids=["adamw", "fp16"],
)
def test_updates_in_one_launch_give_the_same_bits(network, optimizer, options, monkeypatch):
    """Against a plan whose updates run where their gradients are, one by one."""
    loss = network()
    plan = g.plan(loss, optimizer=optimizer, device="cuda", **options)
    with monkeypatch.context() as patch:
        patch.setattr("graphc.compiler.pipeline.updates_together", lambda graph, *_: graph)
        apart = g.plan(loss, optimizer=optimizer, device="cuda", **options)
    assert [n.label for n in plan.graph.nodes] != [n.label for n in apart.graph.nodes]
    with monkeypatch.context() as patch:
        patch.setattr(
            backend,
            "bind",
            lambda *given, together, **options: bind(*given, together=False, **options),
        )
        expected, alone = on_gpu(apart)
    found, together = on_gpu(plan)
    for step in range(3):
        assert found.step(fed(plan, step))["loss"] == expected.step(fed(apart, step))["loss"]
    assert bits(found) == bits(expected)
    assert together.counts["calls"] < alone.counts["calls"]
