"""Requests to cuDNN and the binding, on a stand-in that computes on the CPU."""

import gc
import sys
from dataclasses import replace

import numpy as np
import pytest
from codegen.cases import drawn, in_dtype
from codegen.on_cpu import Library, aligned, places_of
from ops.samples import SAMPLES
from ops.test_strides import run as run_numpy
from runtime.emulated_gpu import fake_cudnn
from runtime.emulated_gpu.cudnn_calls import (
    CONVOLUTIONS,
    STREAM,
    WORKSPACE_BYTES,
    arrays_of,
    attention_samples,
    channels_last,
    heads_inside,
    library_call,
    run,
    simple,
    simple_call,
)
from runtime.forked import in_child
from runtime.garbage import own_garbage

import graphc as g
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.text.operands import Place, in_one_piece
from graphc.errors import DependencyError
from graphc.ir.builder import apply, trace
from graphc.runtime.gpu.cudnn import Cudnn, CudnnError, load_cudnn, signature

ROUNDING = {"float64": 1e-12, "float32": 1e-6, "float16": 6e-4, "bfloat16": 4.5e-3}


def in_float64(node, feeds):
    """What graphc's CPU kernel says."""
    inputs = [g.input(f"x{i}", v.shape, "float64") for i, v in enumerate(node.inputs)]
    wide = apply(type(node.op), *inputs, attributes=node.attributes)
    arrays = {x: feeds[v].astype(np.float64) for x, v in zip(inputs, node.inputs, strict=True)} | {
        v: np.empty(v.shape) for v in wide.outputs
    }
    return run_numpy(wide, arrays)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("laid", [aligned, channels_last], ids=["channels first", "channels last"])
@pytest.mark.parametrize("sample", CONVOLUTIONS, ids=lambda sample: sample.name)
def test_convolutions_equal_the_cpu_kernels(sample, laid, dtype, cudnn):
    node, feeds = drawn(in_dtype(sample, dtype))
    arrays = arrays_of(node, feeds, laid)
    call = library_call(node, places_of(arrays))
    assert set(call.values.values()) == {*node.inputs[:2], *node.outputs}
    run(cudnn, call, arrays)
    after = NodeCalls(call.after)
    assert len(after.calls) == (len(node.inputs) == 3)
    if after.calls:
        Library(after.kernels).run(after, arrays)
    (expected,) = in_float64(node, feeds)
    tolerance = ROUNDING[dtype] * max(1, np.abs(expected).max())
    found = arrays[node.output].astype(np.float64)
    # a bias is added to a rounded product
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * (1 + len(after.calls)))
    for value, given in feeds.items():
        np.testing.assert_array_equal(arrays[value], given)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("laid", [aligned, heads_inside], ids=["heads outside", "heads inside"])
@pytest.mark.parametrize("sample", attention_samples(), ids=lambda sample: sample.name)
def test_attention_equals_the_cpu_kernels(sample, laid, dtype, cudnn):
    node, feeds = drawn(in_dtype(sample, dtype))
    arrays = arrays_of(node, feeds, laid)
    call = library_call(node, places_of(arrays))
    assert set(call.values.values()) == {*node.inputs, *node.outputs}
    plan = run(cudnn, call, arrays)
    assert plan.engine == 4  # deterministic, and nothing is rounded further
    for value, expected in zip(node.outputs, in_float64(node, feeds), strict=True):
        tolerance = ROUNDING[dtype] * max(1, np.abs(expected).max())
        found = arrays[value].astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_attention_that_cudnn_is_not_asked_for():
    def call(shape, dtype, move=0, stride=None, keys=None, mask=None, causal=False):
        shared = (*shape[:1], *keys, shape[-1]) if keys else shape
        q, k, v = (g.input(n, s, dtype) for n, s in (("q", shape), ("k", shared), ("v", shared)))
        seen = None if mask is None else g.input("mask", mask, "bool")
        node = g.attention(q, k, v, causal, form="fused", mask=seen).node
        while node.op.name != "attention":
            node = node.inputs[0].node
        places = {x: in_one_piece(x.type) for x in (*node.inputs, *node.outputs)}
        first = places[node.inputs[0]]
        strides = first.strides if stride is None else (*first.strides[:2], stride, 2)
        places[node.inputs[0]] = Place(first.address + move, strides)
        return library_call(node, places)

    assert call((2, 2, 5, 8), "bfloat16") is not None
    assert call((2, 2, 5, 8), "bfloat16", stride=32) is not None
    assert call((2, 2, 5, 8), "bfloat16", stride=18) is None
    assert call((2, 2, 5, 8), "bfloat16", move=2) is None
    assert call((2, 2, 5, 12), "bfloat16") is None
    assert call((2, 2, 5, 8), "bfloat16", mask=(5, 5)) is None
    assert call((2, 2, 5, 8), "bfloat16", keys=(1, 5)) is not None
    assert call((2, 2, 5, 8), "bfloat16", keys=(2, 7), causal="first") is None
    assert call((2, 2, 5, 8), "bfloat16", keys=(2, 7), causal="last") is not None
    assert call((2, 2, 5, 8), "bfloat16", causal="first") is not None
    assert call((2, 2, 5, 8), "float32") is None


@pytest.mark.parametrize(
    ("rows", "columns", "causal", "is_asked"),
    [
        (64, 64, False, False), (64, 64, True, True), (320, 320, False, False),
        (5, 192, False, False), (5, 192, True, True), (64, 128, False, True),
        (64, 63, False, True), (256, 256, False, True), (1, 128, False, False),
        (1, 128, True, False), (2, 128, False, True),
    ],
)  # fmt: skip
def test_gradients_that_may_be_nan_are_not_asked_for(rows, columns, causal, is_asked):
    """See pytorch issue 196678 and cudnn-frontend issue 1072."""
    q = g.input("q", (1, 2, rows, 8), "bfloat16")
    k, v = (g.input(name, (1, 2, columns, 8), "bfloat16") for name in "kv")
    y = g.attention(q, k, v, causal)
    (dq,) = g.gradient(g.mean(y), [q])
    nodes = {node.op.name: node for node in trace({"dq": dq}).nodes}
    asked = {}
    for name in ("attention", "attention_gradient"):
        node = nodes[name]
        places = {x: in_one_piece(x.type) for x in (*node.inputs, *node.outputs)}
        asked[name] = library_call(node, places) is not None
    assert asked == {"attention": True, "attention_gradient": is_asked}


def test_attention_signatures_tell_requests_apart():
    requests = []
    for sample in attention_samples()[:2]:
        node, feeds = drawn(in_dtype(sample, "float16"))
        for laid in (aligned, heads_inside):
            request = library_call(node, places_of(arrays_of(node, feeds, laid))).request
            requests += [request, replace(request, scale=0.5), replace(request, causal=True)]
    assert [request.kind for request in requests] == ["forward"] * 6 + ["backward"] * 6
    assert len({signature(request, WORKSPACE_BYTES) for request in requests}) == len(requests)


def test_parts_of_larger_arrays_are_read_where_they_lie(cudnn):
    node, arrays = simple()
    x = node.inputs[0]
    whole = aligned(np.full((2, 24, 6, 6), np.nan, np.float32))
    part = whole[:, 8:16]
    part[...] = arrays[x]
    wanted = np.full(node.output.shape, 77, np.float32)
    run(cudnn, library_call(node, places_of(arrays)), arrays)
    wanted[...] = arrays[node.output]
    arrays[x], arrays[node.output][...] = part, 77
    call = library_call(node, places_of(arrays))
    assert call.request.x.strides == (24 * 36, 36, 6, 1)
    run(cudnn, call, arrays)
    np.testing.assert_array_equal(arrays[node.output], wanted)


def test_nodes_outside_cudnns_scope_make_no_request():
    node, arrays = simple()
    places = places_of(arrays)
    x, _ = node.inputs
    assert library_call(node, places) is not None
    moved = replace(places[x], address=places[x].address + 8)
    assert library_call(node, {**places, x: moved}) is None
    repeated = Place(places[x].address, (0, *places[x].strides[1:]))
    assert library_call(node, {**places, x: repeated}) is None
    running = next(
        s for s in SAMPLES if s.op == "conv2d_weight_gradient" and "accumulate" in s.label
    )
    node, feeds = drawn(running)
    assert library_call(node, places_of(arrays_of(node, feeds, aligned))) is None
    y = g.tanh(x)
    assert library_call(y.node, {x: places[x], y: places[x]}) is None


def test_signatures_tell_requests_apart():
    request = simple_call().request
    others = [
        replace(request, stride=(1, 2)),
        replace(request, padding=(2, 1)),
        replace(request, padding=(1, 1, 2, 1)),
        replace(request, dilation=(1, 2)),
        replace(request, groups=2),
        replace(request, tf32=True),
        replace(request, kind="wgrad"),
        replace(request, x=replace(request.x, strides=(288, 1, 48, 8))),
        simple_call("bfloat16").request,
    ]
    texts = {signature(each, WORKSPACE_BYTES) for each in (request, *others)} | {
        signature(request, 1)
    }
    assert len(texts) == len(others) + 2
    assert signature(simple_call().request, WORKSPACE_BYTES) == signature(request, WORKSPACE_BYTES)


def test_the_handle_is_given_back_once(monkeypatch):
    """By hand, or with the last one who uses it; a forked child leaves it to its parent."""

    def child():
        nonlocal handle
        del handle
        gc.collect()
        return len(fake_cudnn.HANDLES)

    with own_garbage():
        for ends in (lambda handle: handle.close(), lambda handle: None):
            handle = Cudnn(fake_cudnn)
            plan = handle.build(simple_call().request, WORKSPACE_BYTES)
            assert len(fake_cudnn.HANDLES) == 1
            ends(handle)
            del handle, plan
            gc.collect()
            assert not fake_cudnn.HANDLES
        handle = Cudnn(fake_cudnn)
        assert in_child(child) == 1
        handle.close()


def test_each_tensor_needs_an_address(cudnn):
    plan = cudnn.build(simple_call().request, WORKSPACE_BYTES)
    with pytest.raises(CudnnError, match=r"\['w', 'x', 'y'\]"):
        cudnn.run(plan, {"x": 256}, 256, STREAM)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(DependencyError, match=r"'\.\[cudnn\]'.*generated kernels"):
        load_cudnn()


def test_without_the_library(monkeypatch):
    def missing():
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    monkeypatch.setattr(fake_cudnn, "backend_version", missing)
    monkeypatch.setitem(sys.modules, "cudnn", fake_cudnn)
    with pytest.raises(DependencyError, match="Unable to find symbol"):
        load_cudnn()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cudnn", fake_cudnn)
    assert load_cudnn() is fake_cudnn
    monkeypatch.setattr(fake_cudnn, "__version__", "1.14.0")
    with pytest.raises(DependencyError, match=r"frontend must be 1\.32 or later, got 1\.14\.0"):
        load_cudnn()
