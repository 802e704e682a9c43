"""Small networks that meet every kind of call."""

import functools

import numpy as np
from runtime.emulated_gpu.emulated import EmulatedDevice

import graphc as g
from graphc import Program
from graphc.memory.streams import on_streams
from graphc.models import gpt2, mobilenet_v2, preact_resnet, resnet, unet
from graphc.plans.cost_model import CostModel
from graphc.runtime.feeds import random_feeds
from graphc.runtime.gpu.backend import GpuBackend

SEED = 3


def small_gpt2(dtype="float64", **options):
    sizes = {"layers": 2, "width": 16, "heads": 2, "seq_len": 8, "batch": 2, "vocab": 11}
    return gpt2(**sizes, dtype=dtype, **options)


def fused_gpt2(dtype="float64", drop=0.0):
    return small_gpt2(dtype, attention="fused", drop=drop)


def small_mlp(dtype="float64"):
    x, t = g.input("x", (6, 5), dtype), g.input("t", (6,), "int32")
    h = g.batch_norm(g.relu(g.linear(x, 8, name="a")))
    h = g.concat([g.tanh(g.linear(h, 4, name="b")), g.gelu(g.linear(h, 3, name="c"))], 1)
    return g.softmax_cross_entropy(g.linear(g.dropout(h, 0.3), 4, name="d"), t)


def branches(dtype="float64"):
    """Four branches that do not read each other, as parts of a concatenation."""
    x, t = g.input("x", (6, 8), dtype), g.input("t", (6,), "int32")
    parts = [g.tanh(g.linear(g.relu(g.linear(x, 6, name=f"a{i}")), 3, name=f"b{i}"))
             for i in range(4)]  # fmt: skip
    return g.softmax_cross_entropy(g.linear(g.concat(parts, 1), 5, name="last"), t)


def masked_heads():
    """Padded sequences: heads share keys, attention is masked, padding has no label."""
    x, t = g.input("x", (2, 5, 8), "float64"), g.input("t", (2, 5), "int32")
    h = g.layer_norm(g.linear(x, 16, name="qkv"))
    counts = g.constant(np.arange(5) < np.array([3, 5])[:, None])
    mask = g.reshape(counts, (2, 1, 1, 5))
    h = g.multi_head_attention(h, 4, True, form="fused", key_heads=2, mask=mask)
    logits = g.linear(h, 6, name="head")
    smooth = {"ignore_index": 2, "label_smoothing": 0.1, "weights": g.constant(np.arange(1.0, 7))}
    other = g.binary_cross_entropy_with_logits(logits[..., 0], g.cast(counts, "float64"))
    return g.softmax_cross_entropy(logits, t, **smooth) + other + g.huber(h, x)


def experts():
    """A mixture of experts with the best two of four, and masked attention over a running sum."""
    x, t = g.input("x", (6, 8), "float64"), g.input("t", (6,), "int32")
    chosen, places = g.top_k(g.linear(x, 4, name="router"), 2)
    weights = g.take(g.parameter("experts", (4, 8, 5), "float64", g.Initial("normal", 0.3)), places)
    h = g.einsum("td,tkde,tk->te", x, weights, g.softmax(chosen))
    seen = g.less(g.cumsum(h, 0), 1.0)
    h = h * g.masked_softmax(h, seen) + g.scatter_elements(h, places, chosen, 1, "max")
    return g.softmax_cross_entropy(h, t) + g.mean(g.logsumexp(h, 1)) + g.std(g.min(h, 0))


def small_autoencoder():
    """Noise of two kinds, a stopped gradient, masked bits, and functions that are fused."""
    dtype = "float64"
    x = g.input("x", (6, 8), dtype)
    h = g.elu(g.linear(x, 8, name="encoder"))
    spread = g.softplus(g.linear(h, 8, name="deviation"))
    z = h + spread * g.normal((6, 8), dtype=dtype) + g.uniform((6, 1), -0.1, 0.1, dtype)
    y = g.sin(g.linear(z, 8, name="decoder"))
    coarse = g.bitcast(g.bitcast(x * 3.0, "int64") & -(2**50), dtype)
    known = g.stop_gradient(g.round(g.clip(coarse, -1.0, 1.0)))
    return g.mean(g.abs(y - known)) + g.mean(g.power(spread, g.erf(h)))


def small_resnet(dtype="float64"):
    return preact_resnet(depth=11, batch=3, image=8, classes=5, dtype=dtype)


def wide_resnet():
    return resnet(batch=3, image=32, classes=5, units=(1, 1, 1, 1), dtype="float64")


def small_unet(dtype="float64"):
    return unet(batch=2, image=16, channels=2, classes=3, width=4, depth=2, dtype=dtype)


def small_mobilenet(dtype="float64"):
    # at 32 pixels its last maps are one pixel: norms over 3 numbers, which double each rounding
    return mobilenet_v2(batch=4, image=64, classes=5, width=0.1, dtype=dtype)


def small_convolutions(dtype="float64"):
    x, t = g.input("x", (4, 3, 9, 8), dtype), g.input("t", (4,), "int32")
    h = g.relu(g.batch_norm(g.conv2d(x, 8, 3, 2, padding=1, name="a")))
    h = g.relu(g.batch_norm(g.conv2d(h, 8, 3, padding=1, groups=8, name="b"), name="n"))
    h = g.conv2d(h, 6, 1, name="c")
    return g.softmax_cross_entropy(g.mean(h, (2, 3)), t)


def resampled():
    x, t = g.input("x", (2, 3, 9, 7), "float64"), g.input("t", (2,), "int32")
    h = g.relu(g.conv2d(x, 4, 3, (2, 1), padding=1, name="a"))
    h = g.adaptive_average_pool2d(g.upsample2d(h, 2, "bilinear"), (4, 5))
    h = h[:, :, ::-1, [4, 0, 2, 1, -1]] * g.constant(np.sin(np.arange(80.0)).reshape(4, 4, 5))
    h = h + g.constant(np.cos(np.arange(160.0)).reshape(2, 4, 4, 5))
    h = g.max_pool2d(g.conv_transpose2d(h, 3, 3, 2, name="b"), 2)
    return g.softmax_cross_entropy(g.mean(h, (2, 3)), t)


def remapped():
    """Volumes, and maps brought to other places: windows, edges, interpolation."""
    x, t = g.input("x", (2, 2, 4, 6, 5), "float64"), g.input("t", (2,), "int32")
    h = g.relu(g.conv3d(x, 3, 2, (2, 1, 1), padding=((1, 0), (0, 1), (0, 0)), name="a"))
    h = g.max_pool3d(h, (1, 2, 2), 1, ceil_mode=True)
    h = g.reshape(h, (2, -1, *h.shape[3:]))
    h = g.pad(g.resize(h, (*h.shape[:2], 7, 4), form="linear"), ((0, 0), (0, 0), (1, 2), 1), "wrap")
    h = g.grid_sample(h, g.tanh(g.parameter("grid", (2, 4, 4, 2), "float64")), "cubic")
    regions = g.constant(np.array([[-1.0, 0.5, 3.2, 4.0], [0.3, 0.1, 4.9, 2.7]]))
    h = g.roi_align(h, regions, g.constant(np.array([1, 0])), 4, mode="max")
    h = g.average_pool2d(h, 3, 2, 1, count_include_pad=False)
    return g.softmax_cross_entropy(g.mean(h, (2, 3)), t)


def on_gpu(plan, seed=0, streams=None, **options):
    """A program of a plan on an emulated GPU, and that GPU; with `streams` the nodes are spread
    over so many, whatever the plan says."""
    device = EmulatedDevice(seed)
    if streams is not None:
        plan = on_streams(plan, CostModel.of(plan), streams)
    return Program(plan, SEED, backend=GpuBackend(plan, device, **options)), device


def fed(plan, seed=1):
    """Random feeds by name."""
    return {source.name: array for source, array in random_feeds(plan.graph, seed).items()}


def bits(program):
    """All states as bytes."""
    return {name: np.ascontiguousarray(array).tobytes() for name, array in program.states.items()}


@functools.cache
def plan_of(network=branches, **options):
    """The plan of a network, made once for all tests."""
    return g.plan(network(), optimizer=g.optim.Adam(1e-2), device="cuda", **options)


def trained(plan, steps=3, seed=0, **options):
    """Losses and states after some steps."""
    program, device = on_gpu(plan, seed, **options)
    return *stepped(program, steps), device


def stepped(program, steps=3):
    """Losses and states after some steps."""
    plan = program.plan
    losses = [program.step(fed(plan, step))["loss"].tobytes() for step in range(steps)]
    return losses, bits(program)


def trained_each(plans, steps=3, **options):
    """Losses and states of each plan after some steps; kernels of all are compiled together."""
    programs = [on_gpu(plan, **options)[0] for plan in plans]
    return [stepped(program, steps) for program in programs]
