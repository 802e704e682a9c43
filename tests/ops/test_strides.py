"""Kernels give the same bits wherever their operands and outputs lie."""

import numpy as np
import pytest
from ops.samples import SAMPLES
from ops.test_every_op import build, draw, find_node

import graphc as g
from graphc.devices.device import CPU
from graphc.ir.op import REGISTRY
from graphc.ir.types import outer_axes
from graphc.runtime.cpu.bind import bind_node, numpy_settings


def apart(array, axis):
    """The same elements as a part of a larger array, cut along `axis`."""
    shape = list(array.shape)
    shape[axis] = 2 * shape[axis] + 3
    large = np.full(shape, 77, array.dtype)
    inside = large[(*(slice(None),) * axis, slice(2, 2 + array.shape[axis]))]
    inside[...] = array
    return inside


def run(node, arrays):
    strides = {v: arrays[v].strides for v in (*node.inputs, *node.outputs)}
    strided = {value: given for value, given in strides.items() if outer_axes(value.type, given)}
    workspace = [
        np.empty(type.shape, type.dtype.numpy) for type in node.op.workspace(node, CPU, strided)
    ]
    with numpy_settings():
        for call in bind_node(node, arrays, workspace, strided):
            call()
    return [arrays[value].copy() for value in node.outputs]


def placed(node, value, name, array, axis):
    """`array` cut along `axis`, if the op takes that."""
    fits = 1 <= axis < array.ndim and axis <= node.op.free_axes(node, name)
    return apart(array, axis) if fits else array.copy()


def compare(node, feeds):
    """All inputs and outputs apart along each axis against all in one piece."""
    fresh = {v: np.empty(v.shape, v.type.dtype.numpy) for v in node.outputs}
    wanted = run(node, {v: a.copy() for v, a in feeds.items()} | fresh)
    for axis in range(1, max((v.type.rank for v in (*node.inputs, *node.outputs)), default=0)):
        arrays = {}
        for names, values in (
            (node.op.input_name, node.inputs),
            (node.op.output_name, node.outputs),
        ):
            for index, value in enumerate(values):
                array = feeds.get(value, fresh.get(value))
                arrays[value] = placed(node, value, names(index), array, axis)
        for found, expected in zip(run(node, arrays), wanted, strict=True):
            np.testing.assert_array_equal(found, expected, strict=True)


RUNNABLE = [s for s in SAMPLES if hasattr(REGISTRY[s.op], "kernel") and not REGISTRY[s.op].awaits]


@pytest.mark.parametrize("sample", RUNNABLE, ids=lambda sample: sample.name)
def test_strides_change_no_bit(sample):
    _, _, outputs = build(sample)
    node = find_node(sample, outputs)
    if node.op.must_overwrite:
        pytest.skip("a state lies in one piece")
    rng = np.random.default_rng(5)
    given = {v: draw(rng, sample, v.shape, v.type.dtype.name) for v in node.inputs}
    compare(node, given)


LARGE = (3, 5, 33, 37)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "function",
    [
        g.tanh, g.sigmoid, g.exp, g.gelu, g.silu, g.relu, g.sqrt, g.log,
        lambda x: g.max_pool2d(x, 3, 2, 1),
        lambda x: g.average_pool2d(x, 2),
        lambda x: g.conv2d(x, 7, 3, padding=1),
        lambda x: g.conv2d(x, 8, 1),
        lambda x: g.batch_norm(x),
        lambda x: x * g.sigmoid(x),
    ],
)  # fmt: skip
def test_strides_change_no_bit_of_large_tensors(function, dtype):
    """Sizes at which NumPy takes vector instructions and libraries block their loops."""
    x = g.input("x", LARGE, dtype)
    y = function(x)
    (dx,) = g.gradient(g.sum(y * y), [x])
    plan = g.plan(outputs={"y": y, "dx": dx}, training=True)
    rng = np.random.default_rng(1)
    found = [
        node
        for node in plan.graph.nodes
        if hasattr(node.op, "kernel") and not node.op.must_overwrite and node.op.inputs
    ]
    assert {node.phase for node in found} == {"forward", "gradient"}
    for node in found:
        compare(
            node,
            {
                v: rng.integers(0, 4, v.shape).astype(v.type.dtype.numpy)
                if v.type.dtype.kind != "float"
                else rng.uniform(0.1, 2, v.shape).astype(v.type.dtype.numpy)
                for v in node.inputs
            },
        )
