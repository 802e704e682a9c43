"""Which engines of cuDNN serve a request, what a record keeps of them, and engines that fail."""

import json
from dataclasses import replace

import numpy as np
import pytest
from codegen.on_cpu import places_of
from runtime.emulated_gpu import fake_cudnn
from runtime.emulated_gpu.cudnn_calls import WORKSPACE_BYTES, library_call, run, simple, simple_call

from graphc.runtime.gpu.cudnn import Cudnn, CudnnError


def test_engines_are_deterministic_and_precise(cudnn):
    """The first engines of the stand-in round, or are not deterministic."""
    assert cudnn.build(simple_call().request, WORKSPACE_BYTES).engine == 7
    assert cudnn.build(simple_call(tf32=True).request, WORKSPACE_BYTES).engine == 1
    assert cudnn.build(simple_call("bfloat16", tf32=True).request, WORKSPACE_BYTES).engine == 4
    assert cudnn.build(simple_call("float64").request, WORKSPACE_BYTES).engine == 4


def test_engines_keep_within_the_workspace(cudnn):
    call = simple_call()
    plans = [cudnn.build(call.request, room) for room in (fake_cudnn.LARGE, fake_cudnn.LARGE - 1)]
    assert [(p.engine, p.workspace_bytes, p.knobs) for p in plans] == [
        (7, fake_cudnn.LARGE, {"TILE_SIZE": 3, "EDGE": 1}),
        (9, fake_cudnn.SMALL, {"TILE_SIZE": 2}),
    ]
    assert cudnn.build(call.request, fake_cudnn.SMALL - 1) is None


def test_declined_requests_are_reported(cudnn, monkeypatch):
    call = simple_call()
    repeated = replace(call.request, x=replace(call.request.x, strides=(0, 36, 6, 1)))
    assert cudnn.build(repeated, WORKSPACE_BYTES) is None
    monkeypatch.setattr(fake_cudnn, "ENGINES", [])
    assert cudnn.build(call.request, WORKSPACE_BYTES) is None


FAULTS = (
    RuntimeError,
    ValueError,
    NotImplementedError,
    AttributeError,
    ImportError,
    IndexError,
    KeyError,
)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "function", ["get_engine_and_knobs_at_index", "get_workspace_size_plan_at_index"]
)
def test_an_engine_that_fails_is_passed_over(cudnn, monkeypatch, fault, function):
    """Whatever it raises; the next one is taken."""
    own = getattr(fake_cudnn.pygraph, function)
    engine_of = fake_cudnn.pygraph.get_engine_and_knobs_at_index
    usual = cudnn.build(simple_call().request, WORKSPACE_BYTES).engine
    failed = []

    def failing(graph, index):
        if engine_of(graph, index)[0] == usual:
            failed.append(index)
            raise fault("CUDNN_STATUS_INTERNAL_ERROR")
        return own(graph, index)

    monkeypatch.setattr(fake_cudnn.pygraph, function, failing)
    other = Cudnn(fake_cudnn)
    assert (usual, other.build(simple_call().request, WORKSPACE_BYTES).engine) == (7, 9)
    assert failed
    other.close()


@pytest.mark.parametrize("fault", FAULTS[:5])
@pytest.mark.parametrize("function", ["create_execution_plans", "deselect_numeric_notes"])
def test_a_request_that_fails_is_left_to_kernels(cudnn, monkeypatch, fault, function):
    def failing(*arguments):
        raise fault("CUDNN_STATUS_BAD_PARAM")

    monkeypatch.setattr(fake_cudnn.pygraph, function, failing)
    assert cudnn.build(simple_call().request, WORKSPACE_BYTES) is None


def test_a_record_makes_the_same_plans(cudnn, monkeypatch):
    """Also where cuDNN's own order has changed."""
    call = simple_call()
    rooms = (WORKSPACE_BYTES, fake_cudnn.SMALL, 0)
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


def test_an_engine_that_cannot_be_created_again_is_passed_over(cudnn, monkeypatch):
    """cuDNN 9.19 lists engines whose knobs the frontend rejects in create_execution_plan."""
    request = simple_call().request
    usual = cudnn.build(request, WORKSPACE_BYTES).engine
    own = fake_cudnn.pygraph.create_execution_plan

    def create(graph, engine, knobs=None):
        if engine == usual:
            raise RuntimeError("convert_to_backend_knob_type: CUDNN_STATUS_INVALID_VALUE")
        own(graph, engine, knobs)

    monkeypatch.setattr(fake_cudnn.pygraph, "create_execution_plan", create)
    other = Cudnn(fake_cudnn)
    chosen = other.build(request, WORKSPACE_BYTES)
    again = Cudnn(fake_cudnn, json.loads(json.dumps(other.record)))
    assert chosen.engine != usual
    assert again.build(request, WORKSPACE_BYTES).engine == chosen.engine
    other.close()
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
    cudnn.build(call.request, WORKSPACE_BYTES)
    record = cudnn.record
    monkeypatch.setattr(fake_cudnn, "VERSION", [91_200])
    with pytest.raises(CudnnError, match=r"cuDNN 91100, but version 91200.*delete the record"):
        Cudnn(fake_cudnn, record)


def test_a_recorded_engine_that_is_gone_is_an_error(cudnn, monkeypatch):
    """A rerun is the same, or it is an error: never quietly another engine."""
    call = simple_call()
    cudnn.build(call.request, WORKSPACE_BYTES)
    monkeypatch.setattr(fake_cudnn, "ENGINES", [e for e in fake_cudnn.ENGINES if e.number != 7])
    again = Cudnn(fake_cudnn, cudnn.record)
    with pytest.raises(CudnnError, match=r"recorded engine 7.*another GPU"):
        again.build(call.request, WORKSPACE_BYTES)
    again.close()


def test_a_call_that_fails_names_the_engine(cudnn, monkeypatch):
    node, arrays = simple()
    call = library_call(node, places_of(arrays))

    def broken(*arguments, **options):
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    monkeypatch.setattr(fake_cudnn.pygraph, "execute", broken)
    with pytest.raises(CudnnError, match=r"engine 7 failed to run convolution fprop.*FAILED"):
        run(cudnn, call, arrays)


ROUNDING = ("FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13")


@pytest.mark.parametrize("note", ROUNDING)
def test_engines_that_transform_operands_are_refused(cudnn, monkeypatch, note):
    """Their rounding errors are larger; where TF32 is allowed, so are they."""
    transforms = fake_cudnn.Engine(5, notes=(fake_cudnn.NOTES[note],))
    monkeypatch.setattr(fake_cudnn, "ENGINES", [transforms, *fake_cudnn.ENGINES])
    assert cudnn.build(simple_call().request, WORKSPACE_BYTES).engine == 7
    assert cudnn.build(simple_call(tf32=True).request, WORKSPACE_BYTES).engine == 5


def test_a_fault_of_the_builder_is_a_decline(cudnn, monkeypatch):
    """Also one that is raised while the graph is described, before it is validated."""

    def failing(*arguments, **options):
        raise ValueError("dim is not supported")

    monkeypatch.setattr(fake_cudnn.pygraph, "tensor", failing)
    assert cudnn.build(simple_call().request, WORKSPACE_BYTES) is None


def test_the_frontends_own_error_is_no_runtime_error():
    """Handlers of RuntimeError miss that of cudnn-frontend 1.32, as an H100 showed."""
    assert fake_cudnn.cudnnGraphNotSupportedError.__bases__ == (Exception,)


def test_engines_in_any_order_only_where_they_are_allowed(monkeypatch):
    free = fake_cudnn.Engine(2, notes=(fake_cudnn.NOTES.NONDETERMINISTIC,))
    monkeypatch.setattr(fake_cudnn, "ENGINES", [free, *fake_cudnn.ENGINES])
    request = simple_call().request
    for deterministic, engine in ((True, 7), (False, 2)):
        cudnn = Cudnn(fake_cudnn, deterministic=deterministic)
        assert cudnn.build(request, WORKSPACE_BYTES).engine == engine
        cudnn.close()


def serving_packed_operands_alone(monkeypatch, number):
    """Let an engine decline operands with gaps."""
    own = fake_cudnn.pygraph.build_plan_at_index

    def build(graph, index):
        used = (*graph.operands, *graph.results)
        reach = [1 + sum((n - 1) * s for n, s in zip(t.dim, t.stride, strict=True)) for t in used]
        has_gaps = any(far > np.prod(t.dim) for far, t in zip(reach, used, strict=True))
        if has_gaps and graph.plans[index][0] == number:
            raise fake_cudnn.cudnnGraphNotSupportedError("strides")
        own(graph, index)

    monkeypatch.setattr(fake_cudnn.pygraph, "build_plan_at_index", build)


def test_an_engine_for_parts_serves_packed_operands_too(cudnn, monkeypatch):
    """So a node has one engine, wherever a plan puts its operands."""
    serving_packed_operands_alone(monkeypatch, 7)
    usual = simple_call().request
    parts = replace(usual, x=usual.x.spread(), y=usual.y.spread())
    assert cudnn.build(usual, WORKSPACE_BYTES).engine == 7
    assert cudnn.build(parts, WORKSPACE_BYTES) is None
    assert [
        cudnn.build(each, WORKSPACE_BYTES, in_parts=True).engine for each in (usual, parts)
    ] == [9, 9]


def test_parts_step_over_what_lies_beside_them():
    x = simple_call().request.x
    assert (x.strides, x.spread().strides) == ((288, 36, 6, 1), (576, 36, 6, 1))
    last = replace(x, strides=(288, 1, 48, 8))
    assert last.spread().strides == (576, 1, 96, 16)
