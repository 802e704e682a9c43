"""Small networks that meet every kind of call."""

import numpy as np
from runtime.gpu.emulated import EmulatedDevice

import graphc as g
from graphc.models import gpt2
from graphc.runtime.feeds import random_feeds
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.program import Program

SEED = 3


def small_gpt2(dtype="float64"):
    sizes = {"layers": 2, "width": 16, "heads": 2, "seq_len": 8, "batch": 2, "vocab": 11}
    return gpt2(**sizes, dtype=dtype)


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


def on_gpu(plan, folder, seed=0, **options):
    """A program of a plan on an emulated GPU, and that GPU."""
    device = EmulatedDevice(folder, seed)
    return Program(plan, SEED, backend=GpuBackend(plan, device, **options)), device


def fed(plan, seed=1):
    """Random feeds by name."""
    return {source.name: array for source, array in random_feeds(plan.graph, seed).items()}


def bits(program):
    """All states as bytes."""
    return {name: np.ascontiguousarray(array).tobytes() for name, array in program.states.items()}
