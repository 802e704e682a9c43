"""Networks with convolutions on channels-last maps: by oneDNN, and by NumPy where it is missing."""

import tracemalloc

import numpy as np
import pytest
from runtime.cpu.onednn.calls import assert_close, drawn
from runtime.cpu.onednn.convolutions import by_definition, lying, nodes

import graphc as g
from graphc.devices.device import CPU
from graphc.ir.types import outer_axes
from graphc.runtime.cpu import native
from graphc.runtime.cpu.bind import bind_node, numpy_settings

FEEDS = {
    "x": np.random.default_rng(0).standard_normal((3, 3, 12, 12)),
    "t": np.array([1, 0, 2]),
}


def losses(dtype="float32", **options):
    """The losses of two steps; every kind of convolution runs, and maps are joined."""
    x, t = g.input("x", (3, 3, 12, 12), dtype), g.input("t", (3,), "int64")
    h = g.relu(g.conv2d(x, 8, 3, padding=1, name="first"))
    h = g.concat([h, g.relu(g.conv2d(h, 8, 3, padding=1, name="second"))], 1)
    h = g.relu(g.conv2d(h, 16, 3, stride=2, padding=1, name="apart"))
    h = g.relu(g.conv2d(h, 16, 3, padding=1, groups=16, name="depthwise"))
    h = g.conv_transpose2d(g.conv2d(h, 12, 1, name="pointwise"), 4, 2, stride=2, name="up")
    loss = g.softmax_cross_entropy(g.linear(g.mean(h, (2, 3)), 3, name="head"), t)
    program = g.compile(loss, optimizer=g.optim.SGD(0.1), **options)
    feeds = {**FEEDS, "x": FEEDS["x"].astype(dtype)}
    return np.array([next(iter(program.step(feeds).values())) for _ in range(2)])


@pytest.fixture(params=["library", "no library"])
def library(request, monkeypatch):
    if request.param == "no library":
        monkeypatch.setattr(native, "executions", lambda *_: None)


@pytest.mark.usefixtures("library")
def test_losses_are_those_of_float64_and_equal_under_every_strategy():
    exact = losses("float64", kernels="numpy")
    found = [losses(allocate=strategy) for strategy in ("none", "sharing", "packed")]
    np.testing.assert_allclose(found[0], exact, rtol=1e-5)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_float64_runs_on_channels_last_maps_too():
    np.testing.assert_allclose(losses("float64"), losses("float64", kernels="numpy"), rtol=1e-12)


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize(
    "case",
    [
        {"x": (2, 8, 30, 31), "w": (12, 8, 3, 3), "padding": (1, 1)},
        {"x": (2, 8, 30, 31), "w": (12, 4, 1, 1), "groups": 2},
    ],
    ids=["3x3", "1x1"],
)
def test_numpy_reads_and_writes_channels_last_maps_without_a_copy(case, which):
    node = nodes(**case)[which]
    arrays = {v: lying(drawn(v, seed)) for seed, v in enumerate((*node.inputs, node.output))}
    strided = {v: a.strides for v, a in arrays.items() if outer_axes(v.type, a.strides)}
    types = node.op.workspace(node, CPU, strided)
    assert not any(type.shape in (case["x"], node.op.geometry(node).y) for type in types)
    workspace = [np.empty(type.shape, type.dtype.numpy) for type in types]
    calls = bind_node(node, arrays, workspace, strided)
    with numpy_settings():
        tracemalloc.start()
        for call in calls:
            call()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 2 * 30 * 31 * 8 * 4 / 4
    expected, scale, terms = by_definition(node, arrays)
    assert_close(arrays[node.output], expected, terms, scale)
