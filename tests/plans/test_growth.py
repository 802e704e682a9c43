"""How bytes grow, as the paper states, and the numbers that others need for the same work."""

import pytest

import graphc as g
from graphc.models import mlp


def chain_logits(depth, width=32, batch=16):
    h = g.input("x", (batch, width))
    for number in range(depth):
        with g.scope(f"layer{number}"):
            h = g.relu(g.linear(h, width))
    return h


@pytest.mark.parametrize("strategy", ["sharing", "packed"])
def test_inference_feature_maps_do_not_grow_with_depth(strategy):
    """Sec. 3: prediction needs nearly O(1) feature maps."""
    measured = {}
    for depth in (10, 40, 400):
        plan = g.plan(outputs=[g.sum(chain_logits(depth))], allocate=strategy)
        measured[depth] = (plan.feature_map_bytes, plan.arena_bytes - plan.state_bytes)
    assert measured[10] == measured[40] == measured[400]
    assert measured[10][0] == 2 * 16 * 32 * 4


def test_training_feature_maps_grow_linearly_without_recomputation():
    sizes = [
        g.plan(g.mean(chain_logits(depth)), optimizer=g.optim.SGD()).feature_map_bytes
        for depth in (10, 20, 40)
    ]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])


def test_mlp_of_50_layers_against_torch():
    """reference figures: torch eager peaks at 104 MiB of intermediates on this network."""
    plans = {
        strategy: g.plan(
            mlp(layers=50, hidden=1024, batch=512), optimizer=g.optim.SGD(), allocate=strategy
        )
        for strategy in ("none", "sharing", "packed")
    }
    assert plans["sharing"].arena_bytes <= 0.6 * plans["none"].arena_bytes
    assert plans["sharing"].feature_map_bytes <= 0.6 * plans["none"].feature_map_bytes
    assert plans["packed"].feature_map_bytes <= 104 * 2**20
    assert plans["packed"].arena_bytes == plans["packed"].live_bytes


def test_marked_segments_keep_sublinear_feature_maps():
    """The zoo's mlp marks √n segments with mirror counts: Alg. 1's O(√n)."""
    sizes = {}
    for layers in (16, 64, 256):
        loss = mlp(layers=layers, hidden=64, inputs=64, batch=64)
        plan = g.plan(loss, optimizer=g.optim.SGD(), recompute="mirror")
        one_map = 64 * 64 * 4
        sizes[layers] = plan.feature_map_bytes / one_map
        assert sizes[layers] <= 2 * layers**0.5 + 4
        assert 0 < plan.recomputation.extra_flops_fraction < 1 / 3
    assert sizes[256] < 4.4 * sizes[16]
