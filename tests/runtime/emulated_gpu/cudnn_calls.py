"""Requests to cuDNN of samples of ops, and how tests run them."""

import numpy as np
from codegen.on_cpu import aligned, places_of
from ops.samples import SAMPLES
from ops.samples.attention import attention_samples as attention_rows

import graphc as g
from graphc.codegen.cudnn_calls import library_calls
from graphc.ir.builder import apply
from graphc.ops.conv import Conv2d, Conv2dAttributes

CONVOLUTIONS = [s for s in SAMPLES if s.op.startswith("conv2d") and "accumulate" not in s.label]
WORKSPACE_BYTES = 1 << 22
STREAM = 5


def library_call(node, places, tf32=False):
    """The first form in which cuDNN is asked; None where it is not."""
    return next(library_calls(node, places, tf32), None)


def channels_last(array):
    return aligned(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def arrays_of(node, feeds, laid):
    fresh = {v: np.full(v.shape, 77, v.type.dtype.numpy) for v in node.outputs}
    every = {**feeds, **fresh}
    return {v: laid(a) if a.ndim == 4 else aligned(a) for v, a in every.items()}


def run(cudnn, call, arrays, room=WORKSPACE_BYTES):
    """Run a call of the library; bytes behind the plan's workspace must stay."""
    plan = cudnn.build(call.request, room)
    workspace = aligned(np.full(room + 64, 7, np.uint8))
    addresses = {role: arrays[value].ctypes.data for role, value in call.values.items()}
    cudnn.run(plan, addresses, workspace.ctypes.data, STREAM)
    assert (workspace[plan.workspace_bytes :] == 7).all()
    return plan


def attention_samples():
    """With rows of whole packs, as cuDNN wants them."""
    shapes = {
        "": ((2, 2), 5, 5, 8, 16, False),
        " causal": ((2, 3), 6, 6, 16, 8, True),
        " causal, more columns": ((1, 2), 3, 7, 8, 8, True),
        " shared keys": ((1, 4), 2, 3, 8, 8, False, False, 2),
        " one head of keys, causal": ((1, 2), 3, 3, 8, 8, True, False, 1),
    }
    return [s for label, extents in shapes.items() for s in attention_rows(label, *extents)]


def heads_inside(array):
    """(batch, heads, positions, width) where heads lie inside of positions."""
    return aligned(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def simple(dtype="float32", **options):
    """A node and its places."""
    x, w = g.input("x", (2, 8, 6, 6), dtype), g.input("w", (4, 8, 3, 3), dtype)
    node = apply(Conv2d, x, w, attributes=Conv2dAttributes(**options))
    rng = np.random.default_rng(0)
    feeds = {v: rng.standard_normal(v.shape).astype(v.type.dtype.numpy) for v in (x, w)}
    return node, arrays_of(node, feeds, aligned)


def simple_call(dtype="float32", tf32=False):
    node, arrays = simple(dtype)
    return library_call(node, places_of(arrays), tf32)
