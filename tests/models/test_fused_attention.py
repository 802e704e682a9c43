"""Transformers with fused attention train like those that keep the weights."""

import functools
import gc
import tracemalloc

import numpy as np
import pytest

import graphc as g
from graphc import Program
from graphc.errors import OptionError
from graphc.models import bert, gpt2, vit
from graphc.runtime.feeds import random_feeds

SMALL = {"layers": 2, "width": 16, "heads": 2, "drop": 0.0, "dtype": "float64"}
NETWORKS = {
    "gpt2": lambda **o: gpt2(seq_len=9, batch=2, vocab=11, **SMALL, **o),
    "bert": lambda **o: bert(seq_len=9, batch=2, vocab=11, masked=3, **SMALL, **o),
    "vit": lambda **o: vit(image=8, patch=4, classes=5, batch=2, **SMALL, **o),
}
SEED = 4


def trained(plan, steps=4, **options):
    """Losses and parameters after a few steps."""
    program = Program(plan, SEED, **options)
    feeds = random_feeds(plan.graph, 1)
    named = {source.name: array for source, array in feeds.items()}
    losses = [program.step(named)["loss"] for _ in range(steps)]
    return losses, {name: array.copy() for name, array in program.parameters.items()}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_fused_trains_like_composed(network):
    composed, fused = (
        g.plan(network(attention=form), optimizer=g.optim.AdamW(1e-2))
        for form in ("composed", "fused")
    )
    names = [node.op.name for node in fused.graph.nodes]
    assert names.count("attention") == names.count("attention_gradient") == 2
    assert "softmax_gradient" not in names
    (losses, parameters), (own_losses, own_parameters) = trained(composed), trained(fused)
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(own_losses, losses, rtol=1e-9)
    for name, array in parameters.items():
        np.testing.assert_allclose(own_parameters[name], array, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [{"recompute": "sublinear"}, {"recompute": "mirror"}, {"allocate": "none"}],
    ids=lambda options: next(iter(options.values())),
)
def test_strategies_give_the_same_bits(options):
    network = NETWORKS["gpt2"]
    plain = g.plan(network(attention="fused"), optimizer=g.optim.AdamW(1e-2))
    with g.mirror(1):
        loss = network(attention="fused")
    other = g.plan(loss, optimizer=g.optim.AdamW(1e-2), **options)
    losses, parameters = trained(plain)
    own_losses, own_parameters = trained(other, poison=True)
    assert own_losses == losses
    for name, array in parameters.items():
        np.testing.assert_array_equal(own_parameters[name], array)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision(precision):
    small = {**SMALL, "dtype": "float32"}
    loss = gpt2(seq_len=9, batch=2, vocab=11, attention="fused", **small)
    plan = g.plan(loss, optimizer=g.optim.AdamW(1e-2), precision=precision)
    found = {node.op.name: node for node in plan.graph.nodes}
    y, stats = found["attention"].outputs
    assert (y.type.dtype.itemsize, stats.type.dtype.name) == (2, "float32")
    losses, _ = trained(plan)
    wide = g.plan(gpt2(seq_len=9, batch=2, vocab=11, **small), optimizer=g.optim.AdamW(1e-2))
    np.testing.assert_allclose(losses, trained(wide)[0], rtol=2e-2)


def test_long_sequences_need_less():
    sizes = {"layers": 2, "width": 64, "heads": 4, "batch": 1, "vocab": 100, "drop": 0.0}

    def maps(form, length):
        loss = gpt2(seq_len=length, positions=length, attention=form, **sizes)
        return g.plan(loss, optimizer=g.optim.SGD(), allocate="inplace").feature_map_bytes

    fused = [maps("fused", length) for length in (512, 1024, 2048)]
    # what does not depend on the length is a loss and the like
    assert 1.99 * fused[0] < fused[1] <= 2 * fused[0]
    assert 1.99 * fused[1] < fused[2] <= 2 * fused[1]
    assert maps("composed", 2048) > 3 * maps("composed", 1024)
    assert maps("composed", 2048) > 6 * fused[2]


@pytest.mark.parametrize("causal", [False, True])
def test_a_step_allocates_nothing(causal):
    """Heads lie inside positions, so that operands and gradients have strides."""
    x = g.parameter("x", (2, 300, 96), initial=g.Initial("normal", 1.0))
    loss = g.mean(g.multi_head_attention(x * 1.5, 2, causal, form="fused"))
    program = g.compile(loss, optimizer=g.optim.SGD())
    program.step()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        program.step()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**10


DROPPING = {**SMALL, "drop": 0.3}


@pytest.mark.parametrize("kernels", ["numpy", "native"])
def test_both_forms_drop_the_same(kernels):
    """To float64's digits: they draw the same elements in every step."""
    composed, fused = (
        g.plan(
            gpt2(seq_len=9, batch=2, vocab=11, attention=form, **DROPPING),
            optimizer=g.optim.AdamW(1e-2),
            kernels=kernels,
        )
        for form in ("composed", "fused")
    )
    names = [node.op.name for node in fused.graph.nodes]
    assert names.count("dropped_attention") == names.count("dropped_attention_gradient") == 2
    (losses, parameters), (own_losses, own_parameters) = (
        trained(plan) for plan in (composed, fused)
    )
    np.testing.assert_allclose(own_losses, losses, rtol=1e-9)
    for name, array in parameters.items():
        np.testing.assert_allclose(own_parameters[name], array, rtol=1e-9, atol=1e-9)
    without = g.plan(gpt2(seq_len=9, batch=2, vocab=11, **SMALL), optimizer=g.optim.AdamW(1e-2))
    assert abs(trained(without)[0][0] - losses[0]) > 1e-3


@pytest.mark.parametrize("recompute", ["sublinear", "mirror"])
def test_strategies_drop_the_same(recompute):
    network = functools.partial(gpt2, seq_len=9, batch=2, vocab=11, attention="fused", **DROPPING)
    plain = g.plan(network(), optimizer=g.optim.AdamW(1e-2))
    with g.mirror(1):
        loss = network()
    other = g.plan(loss, optimizer=g.optim.AdamW(1e-2), recompute=recompute)
    (losses, parameters), (own_losses, own_parameters) = trained(plain), trained(other, poison=True)
    assert own_losses == losses
    for name, array in parameters.items():
        np.testing.assert_array_equal(own_parameters[name], array)


def test_nothing_is_dropped_in_inference():
    x = g.input("x", (2, 9, 48))
    y = g.multi_head_attention(x, 2, True, 0.5, form="fused")
    kept = g.multi_head_attention(x, 2, True, form="fused")
    program = g.compile(outputs={"y": y, "kept": kept})
    assert not [node for node in program.graph.nodes if "dropped" in node.op.name]
    found = program.step(x=np.random.default_rng(0).standard_normal(x.shape).astype(np.float32))
    np.testing.assert_array_equal(found["y"], found["kept"])


def test_forms_are_these():
    with pytest.raises(OptionError, match="composed, fused"):
        gpt2(layers=1, drop=0.0, attention="flash")
