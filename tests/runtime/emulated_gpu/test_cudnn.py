"""Requests to cuDNN and the binding, on a stand-in that computes on the CPU."""

import gc
import inspect
import json
import sys
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest
from codegen.cases import drawn, in_dtype
from codegen.on_cpu import Library, aligned, places_of
from ops.samples import SAMPLES
from ops.samples.attention import attention_samples as attention_rows
from ops.test_strides import run as run_numpy
from runtime.emulated_gpu import fake_cudnn
from runtime.forked import in_child

import graphc as g
from graphc.codegen.cudnn_request import library_call
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.text.operands import Place, in_one_piece
from graphc.errors import DependencyError
from graphc.ir.builder import apply
from graphc.ops.conv import Conv2d, Conv2dAttributes
from graphc.runtime.gpu.cudnn import Cudnn, CudnnError, _graph_of, load_cudnn, signature

CONVOLUTIONS = [
    s
    for s in SAMPLES
    if s.op.startswith("conv2d") and "accumulate" not in s.label
]  # fmt: skip
ROOM = 1 << 22
STREAM = 5
ROUNDING = {"float64": 1e-12, "float32": 1e-6, "float16": 6e-4, "bfloat16": 4.5e-3}


@pytest.fixture
def cudnn():
    handle = Cudnn(fake_cudnn)
    yield handle
    handle.close()
    assert not fake_cudnn.HANDLES


def channels_last(array):
    return aligned(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def arrays_of(node, feeds, laid):
    fresh = {v: np.full(v.shape, 77, v.type.dtype.numpy) for v in node.outputs}
    every = {**feeds, **fresh}
    return {v: laid(a) if a.ndim == 4 else aligned(a) for v, a in every.items()}


def in_float64(node, feeds):
    """What graphc's CPU kernel says."""
    inputs = [g.input(f"x{i}", v.shape, "float64") for i, v in enumerate(node.inputs)]
    wide = apply(type(node.op), *inputs, attributes=node.attributes)
    arrays = {x: feeds[v].astype(np.float64) for x, v in zip(inputs, node.inputs, strict=True)} | {
        v: np.empty(v.shape) for v in wide.outputs
    }
    return run_numpy(wide, arrays)


def run(cudnn, call, arrays, room=ROOM):
    """Run a call of the library; bytes behind the plan's workspace must stay."""
    plan = cudnn.build(call.request, room)
    workspace = aligned(np.full(room + 64, 7, np.uint8))
    addresses = {role: arrays[value].ctypes.data for role, value in call.values.items()}
    cudnn.run(plan, addresses, workspace.ctypes.data, STREAM)
    assert (workspace[plan.workspace_bytes :] == 7).all()
    return plan


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("laid", [aligned, channels_last], ids=["channels first", "channels last"])
@pytest.mark.parametrize("sample", CONVOLUTIONS, ids=lambda sample: sample.name)
def test_convolutions_equal_the_cpu_kernels(sample, laid, dtype, cudnn, tmp_path):
    node, feeds = drawn(in_dtype(sample, dtype))
    arrays = arrays_of(node, feeds, laid)
    call = library_call(node, places_of(arrays))
    assert set(call.values.values()) == {*node.inputs[:2], *node.outputs}
    run(cudnn, call, arrays)
    after = NodeCalls(call.after)
    assert len(after.calls) == (len(node.inputs) == 3)
    if after.calls:
        Library(after.kernels, tmp_path).run(after, arrays)
    (expected,) = in_float64(node, feeds)
    tolerance = ROUNDING[dtype] * max(1, np.abs(expected).max())
    found = arrays[node.output].astype(np.float64)
    # a bias is added to a rounded product
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * (1 + len(after.calls)))
    for value, given in feeds.items():
        np.testing.assert_array_equal(arrays[value], given)


def attention_samples():
    """With rows of whole packs, as cuDNN wants them."""
    shapes = {
        "": ((2, 2), 5, 5, 8, 16, False),
        " causal": ((2, 3), 6, 6, 16, 8, True),
        " causal, more columns": ((1, 2), 3, 7, 8, 8, True),
    }
    return [s for label, extents in shapes.items() for s in attention_rows(label, *extents)]


def heads_inside(array):
    """(batch, heads, positions, width) where heads lie inside of positions."""
    return aligned(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


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
    assert call((2, 2, 5, 8), "bfloat16", keys=(1, 5)) is None
    assert call((2, 2, 5, 8), "bfloat16", keys=(2, 7), causal="first") is None
    assert call((2, 2, 5, 8), "bfloat16", keys=(2, 7), causal="last") is not None
    assert call((2, 2, 5, 8), "bfloat16", causal="first") is not None
    assert call((2, 2, 5, 8), "float32") is None


def test_attention_signatures_tell_requests_apart():
    requests = []
    for sample in attention_samples()[:2]:
        node, feeds = drawn(in_dtype(sample, "float16"))
        for laid in (aligned, heads_inside):
            request = library_call(node, places_of(arrays_of(node, feeds, laid))).request
            requests += [request, replace(request, scale=0.5), replace(request, causal=True)]
    assert [request.kind for request in requests] == ["forward"] * 6 + ["backward"] * 6
    assert len({signature(request, ROOM) for request in requests}) == len(requests)


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


def test_what_cudnn_is_not_asked_for():
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


def test_engines_are_deterministic_and_precise(cudnn):
    """The first engines of the stand-in round, or are not deterministic."""
    assert cudnn.build(simple_call().request, ROOM).engine == 7
    assert cudnn.build(simple_call(tf32=True).request, ROOM).engine == 1
    assert cudnn.build(simple_call("bfloat16", tf32=True).request, ROOM).engine == 4
    assert cudnn.build(simple_call("float64").request, ROOM).engine == 4


def test_engines_keep_within_the_workspace(cudnn):
    call = simple_call()
    plans = [cudnn.build(call.request, room) for room in (fake_cudnn.LARGE, fake_cudnn.LARGE - 1)]
    assert [(p.engine, p.workspace_bytes, p.knobs) for p in plans] == [
        (7, fake_cudnn.LARGE, {"TILE_SIZE": 3, "EDGE": 1}),
        (9, fake_cudnn.SMALL, {"TILE_SIZE": 2}),
    ]
    assert cudnn.build(call.request, fake_cudnn.SMALL - 1) is None


def test_what_cudnn_declines(cudnn, monkeypatch):
    call = simple_call()
    repeated = replace(call.request, x=replace(call.request.x, strides=(0, 36, 6, 1)))
    assert cudnn.build(repeated, ROOM) is None
    monkeypatch.setattr(fake_cudnn, "ENGINES", [])
    assert cudnn.build(call.request, ROOM) is None


FAULTS = (RuntimeError, ValueError, NotImplementedError, IndexError, KeyError)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "function", ["get_engine_and_knobs_at_index", "get_workspace_size_plan_at_index"]
)
def test_an_engine_that_fails_is_passed_over(cudnn, monkeypatch, fault, function):
    """Whatever it raises; the next one is taken."""
    own = getattr(fake_cudnn.pygraph, function)
    engine_of = fake_cudnn.pygraph.get_engine_and_knobs_at_index
    usual = cudnn.build(simple_call().request, ROOM).engine
    failed = []

    def failing(graph, index):
        if engine_of(graph, index)[0] == usual:
            failed.append(index)
            raise fault("CUDNN_STATUS_INTERNAL_ERROR")
        return own(graph, index)

    monkeypatch.setattr(fake_cudnn.pygraph, function, failing)
    other = Cudnn(fake_cudnn)
    assert (usual, other.build(simple_call().request, ROOM).engine) == (7, 9)
    assert failed
    other.close()


@pytest.mark.parametrize("fault", FAULTS[:3])
@pytest.mark.parametrize("function", ["create_execution_plans", "deselect_numeric_notes"])
def test_a_request_that_fails_is_left_to_kernels(cudnn, monkeypatch, fault, function):
    def failing(*arguments):
        raise fault("CUDNN_STATUS_BAD_PARAM")

    monkeypatch.setattr(fake_cudnn.pygraph, function, failing)
    assert cudnn.build(simple_call().request, ROOM) is None


def test_a_record_makes_the_same_plans(cudnn, monkeypatch):
    """Also where cuDNN's own order has changed."""
    call = simple_call()
    rooms = (ROOM, fake_cudnn.SMALL, 0)
    first = [cudnn.build(call.request, room) for room in rooms]
    record = json.loads(json.dumps(cudnn.record))
    monkeypatch.setattr(fake_cudnn, "ENGINES", fake_cudnn.ENGINES[::-1])
    fresh, again = Cudnn(fake_cudnn), Cudnn(fake_cudnn, record)
    changed = [fresh.build(call.request, room) for room in rooms]
    second = [again.build(call.request, room) for room in rooms]
    assert [p and (p.engine, p.knobs) for p in second] == [p and (p.engine, p.knobs) for p in first]
    assert changed[0].engine == 11
    assert again.record == record
    fresh.close()
    again.close()


def test_a_recorded_engine_runs(cudnn):
    node, arrays = simple()
    call = library_call(node, places_of(arrays))
    run(cudnn, call, arrays)
    wanted = arrays[node.output].copy()
    arrays[node.output][...] = 77
    again = Cudnn(fake_cudnn, cudnn.record)
    run(again, call, arrays)
    again.close()
    np.testing.assert_array_equal(arrays[node.output], wanted)


def test_a_record_of_another_cudnn_is_refused(cudnn, monkeypatch):
    call = simple_call()
    cudnn.build(call.request, ROOM)
    record = cudnn.record
    monkeypatch.setattr(fake_cudnn, "VERSION", [91_200])
    with pytest.raises(CudnnError, match=r"cuDNN 91100, this is 91200.*drop the record"):
        Cudnn(fake_cudnn, record)


def test_a_recorded_engine_that_is_gone_is_an_error(cudnn, monkeypatch):
    """A rerun is the same, or it is an error: never quietly another engine."""
    call = simple_call()
    cudnn.build(call.request, ROOM)
    monkeypatch.setattr(fake_cudnn, "ENGINES", [e for e in fake_cudnn.ENGINES if e.number != 7])
    again = Cudnn(fake_cudnn, cudnn.record)
    with pytest.raises(CudnnError, match=r"engine 7 of the record.*another GPU"):
        again.build(call.request, ROOM)
    again.close()


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
    texts = {signature(each, ROOM) for each in (request, *others)} | {signature(request, 1)}
    assert len(texts) == len(others) + 2
    assert signature(simple_call().request, ROOM) == signature(request, ROOM)


def test_the_handle_is_given_back_once(monkeypatch):
    """By hand, or with the last one who uses it; a forked child leaves it to its parent."""
    for ends in (lambda handle: handle.close(), lambda handle: None):
        handle = Cudnn(fake_cudnn)
        plan = handle.build(simple_call().request, ROOM)
        assert len(fake_cudnn.HANDLES) == 1
        ends(handle)
        del handle, plan
        gc.collect()
        assert not fake_cudnn.HANDLES
    handle = Cudnn(fake_cudnn)

    def child():
        nonlocal handle
        del handle
        gc.collect()
        return len(fake_cudnn.HANDLES)

    assert in_child(child) == 1
    handle.close()


def test_each_tensor_needs_an_address(cudnn):
    plan = cudnn.build(simple_call().request, ROOM)
    with pytest.raises(CudnnError, match=r"\['w', 'x', 'y'\]"):
        cudnn.run(plan, {"x": 256}, 256, STREAM)


def test_a_call_that_fails_names_the_engine(cudnn, monkeypatch):
    node, arrays = simple()
    call = library_call(node, places_of(arrays))

    def broken(*arguments, **options):
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    monkeypatch.setattr(fake_cudnn.pygraph, "execute", broken)
    with pytest.raises(CudnnError, match=r"engine 7 does not run convolution fprop.*FAILED"):
        run(cudnn, call, arrays)


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


# --- the real package, where it is installed ---


@pytest.fixture
def real():
    return pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed")


@pytest.mark.parametrize("name", ["conv2d", "conv2d_input_gradient", "conv2d_weight_gradient"])
def test_the_package_takes_a_graph(name, real):
    """Every name and keyword of the stand-in is the package's; a GPU is needed only after that."""
    node, feeds = drawn(next(s for s in CONVOLUTIONS if s.op == name))
    request = library_call(node, places_of(arrays_of(node, feeds, channels_last))).request
    check_described(real, request)


@pytest.mark.parametrize("sample", attention_samples(), ids=lambda sample: sample.name)
def test_the_package_takes_a_graph_of_attention(sample, real):
    node, feeds = drawn(in_dtype(sample, "bfloat16"))
    request = library_call(node, places_of(arrays_of(node, feeds, heads_inside))).request
    check_described(real, request)
    assert {"TOP_LEFT", "BOTTOM_RIGHT"} <= set(real.diagonal_alignment.__members__)


def check_described(real, request):
    graph = _graph_of(real, None, request)
    assert [t.uid for t in graph.get_inputs()] + [t.uid for t in graph.get_outputs()]
    by_uid = {t.uid: t for t in (*graph.get_inputs(), *graph.get_outputs())}
    assert len(by_uid) == len(request.tensors)
    for number, tensor in enumerate(request.tensors.values(), 1):
        assert tuple(by_uid[number].dim) == tensor.shape
        assert tuple(by_uid[number].stride) == tensor.strides
    for names in ("heur_mode.A", "heur_mode.FALLBACK", "numerical_note.NONDETERMINISTIC",
                  "numerical_note.TENSOR_CORE", "numerical_note.DOWN_CONVERT_INPUTS",
                  "numerical_note.REDUCED_PRECISION_REDUCTION", "cudnnGraphNotSupportedError",
                  "create_handle", "destroy_handle", "set_stream", "backend_version"):  # fmt: skip
        attrgetter(names)(real)
    for method in (
        "validate", "build_operation_graph", "create_execution_plans", "create_execution_plan",
        "deselect_numeric_notes", "deselect_workspace_greater_than", "get_execution_plan_count",
        "get_engine_and_knobs_at_index", "build_plan_at_index", "execute",
        "get_workspace_size_plan_at_index",
    ):  # fmt: skip
        ours = inspect.signature(getattr(fake_cudnn.pygraph, method)).parameters
        theirs = inspect.signature(getattr(real.pygraph, method)).parameters
        assert list(ours) == list(theirs)[: len(ours)]
    assert {knob.name for knob in fake_cudnn.knob_type} <= set(real.knob_type.__members__)
