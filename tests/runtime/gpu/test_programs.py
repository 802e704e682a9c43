"""Whole programs on an emulated GPU: its kernels and products at the addresses of its plan.

The arena starts full of NaN: a kernel that reads what is not there, writes elsewhere, or disagrees
with NumPy's shows in the parameters.
"""

import numpy as np
import pytest
from runtime.gpu.emulated import EmulatedDevice

import graphc as g
from graphc.models import gpt2, mlp
from graphc.runtime.feeds import random_feeds
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.program import Program

SEED = 3


def on_gpu(plan, folder, seed=0, **options):
    """A program of that plan on an emulated GPU."""
    device = EmulatedDevice(folder, seed)
    return Program(plan, SEED, backend=GpuBackend(plan, device, **options)), device


def small_gpt2(dtype="float64"):
    sizes = {"layers": 2, "width": 16, "heads": 2, "seq_len": 8, "batch": 2, "vocab": 11}
    return gpt2(**sizes, dtype=dtype)


def small_mlp(dtype="float64"):
    x, t = g.input("x", (6, 5), dtype), g.input("t", (6,), "int32")
    h = g.batch_norm(g.relu(g.linear(x, 8, name="a")))
    h = g.concat([g.tanh(g.linear(h, 4, name="b")), g.gelu(g.linear(h, 3, name="c"))], 1)
    return g.softmax_cross_entropy(g.linear(g.dropout(h, 0.3), 4, name="d"), t)


CASES = {
    "mlp of the zoo, adam": (
        lambda: mlp(layers=3, hidden=16, inputs=7, classes=3, batch=5), g.optim.Adam(1e-2), {}, 1e-4
    ),
    "mlp, momentum": (small_mlp, g.optim.Momentum(1e-2), {}, 1e-9),
    "mlp, accumulated": (small_mlp, g.optim.SGD(1e-2), {"accumulate": 2}, 1e-9),
    "mlp, fp16": (
        lambda: small_mlp("float32"), g.optim.Adam(1e-2), {"precision": "fp16"}, 2e-2
    ),
    "gpt2, adamw": (small_gpt2, g.optim.AdamW(1e-2), {}, 1e-8),
    "gpt2, clipped, recomputed": (
        small_gpt2, g.optim.AdamW(1e-2), {"clip_norm": 0.1, "recompute": "sublinear"}, 1e-8
    ),
    "gpt2, bf16": (
        lambda: small_gpt2("float32"), g.optim.AdamW(1e-2), {"precision": "bf16"}, 5e-2
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("network", "optimizer", "options", "tolerance"), CASES.values(), ids=CASES
)
def test_steps_equal_the_cpu_program(network, optimizer, options, tolerance, tmp_path):
    loss = network()
    plan = g.plan(loss, optimizer=optimizer, device="cuda", **options)
    emulated, device = on_gpu(plan, tmp_path)
    program = Program(g.plan(loss, optimizer=optimizer, **options), SEED)
    feeds = {source.name: array for source, array in random_feeds(plan.graph, 1).items()}
    for _ in range(3):
        expected, found = program.step(feeds), emulated.step(feeds)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance)
    for name, found in emulated.states.items():
        expected = program.states[name].astype(np.float64)
        found = found.astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)
    assert device.allocations == [plan.arena_bytes]
    assert (device.counts["captures"], device.counts["replays"]) == (1, 2)
