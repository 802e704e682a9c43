"""What the stand-in for cuDNN takes, the package takes, where it is installed."""

import inspect
from operator import attrgetter

import pytest
from codegen.cases import drawn, in_dtype
from codegen.on_cpu import places_of
from runtime.emulated_gpu import fake_cudnn
from runtime.emulated_gpu.cudnn_calls import (
    CONVOLUTIONS,
    arrays_of,
    attention_samples,
    channels_last,
    heads_inside,
    library_call,
)

from graphc.runtime.gpu.cudnn_graph import graph_of


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
    graph = graph_of(real, None, request)
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
