"""Every op that ONNX has a form for, by onnx's own reference implementation."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_files import Erf
from ops.samples import SAMPLES, STATE_OPS
from ops.test_every_op import build

import graphc as g
from graphc.ir import builder
from graphc.ir.op import REGISTRY
from graphc.onnx.emission import RULES
from graphc.onnx.forward import forward_of
from graphc.onnx.written import written
from graphc.ops.axis_map import AxisMap
from graphc.ops.elementwise import Elementwise

WITHOUT = {
    "adaptive_average_pool2d_gradient",
    "attention_gradient",
    "average_pool2d_gradient",
    "conv2d_weight_gradient",
    "cross_entropy_gradient",
    "dropped_attention_gradient",
    "gather_gradient",
    "interpolate_input_gradient",
    "interpolate_place_gradient",
    "log_softmax_gradient",
    "max_pool2d_gradient",
    "max_pool2d_select",
    "norm_bias_gradient",
    "norm_gradients",
    "norm_input_gradient",
    "norm_parameter_gradients",
    "norm_scale_gradient",
    "product_with_sums",
    "roi_align_gradient",
    "roi_align_max_gradient",
    "roi_align_max_select",
    "softmax_cross_entropy_gradient",
    "softmax_gradient",
    "upsample_bilinear2d_gradient",
}
"""Gradients: no forward graph has them."""

APART = {"fused", "fused_reduce"}
"""What is written as the ops that it is made of."""

BETWEEN_RANKS = {"all_gather", "all_reduce", "arrival", "broadcast", "reduce_scatter"}
TO_THE_HOST = {"copy_to_device", "copy_to_host"}
"""What ONNX has no ops for."""

WRONG = {"conv2d_input_gradient grouped"}
"""Transposed convolutions in groups, at which onnx's reference fails: see tests/peers."""

DRAWN = {"normal", "uniform"}
"""Ops whose numbers another generator draws."""

DROPPING = {"dropout", "dropped_attention"}
"""Ops that act outside of training alone as another reader of the file does: masks are drawn."""

EXPORTED = [
    s
    for s in SAMPLES
    if s.op not in WITHOUT | DRAWN | BETWEEN_RANKS | TO_THE_HOST and s.name not in WRONG
]


def test_ops_without_a_form_are_these():
    kinds = Elementwise | AxisMap
    held = {name for name, op in REGISTRY.items() if name in RULES or isinstance(op, kinds)}
    assert set(REGISTRY) - held - STATE_OPS - APART - BETWEEN_RANKS - TO_THE_HOST == WITHOUT


ROUNDED = {"interpolate"}
"""Ops whose coordinates onnx's reference rounds to float32."""


def held(outputs):
    """The outputs that ONNX can hold, by name."""
    found = {}
    for index, value in enumerate(outputs):
        try:
            written(forward_of(builder.trace({"y": value})), False)
        except g.GraphcError:
            continue
        found[f"y{index}"] = value
    return found


@pytest.mark.parametrize("sample", EXPORTED, ids=lambda sample: sample.name)
def test_reference_gives_the_same(sample, tmp_path):
    _, feeds, outputs = build(sample)
    named = held(outputs)
    assert "y0" in named
    path = tmp_path / "op.onnx"
    g.onnx.save(named, path, training=sample.op not in DROPPING)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    program = g.compile(outputs=named, training=sample.op not in DROPPING)
    feeds = {x.name: feeds[x.name] for x in program.graph.inputs}
    wanted = program.step(feeds)
    found = ReferenceEvaluator(model, new_ops=[Erf]).run(None, feeds)
    room = {"rtol": 1e-9, "atol": 1e-12}
    if sample.op in ROUNDED:
        room = {"rtol": 1e-5, "atol": 1e-6}
    for (name, value), array in zip(named.items(), found, strict=True):
        assert array.dtype == value.type.dtype.numpy
        assert array.shape == value.shape
        np.testing.assert_allclose(array, wanted[name], **room)


SAME_FOR_ALL = [s for s in EXPORTED if s.op not in DROPPING]
"""What a file says to every reader."""


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAME_FOR_ALL, ids=lambda sample: sample.name)
def test_rules_for_any_file_read_what_is_written(sample, tmp_path):
    """Without the metadata, as other tools leave a file."""
    _, feeds, outputs = build(sample)
    named = held(outputs)
    g.onnx.save(named, tmp_path / "op.onnx", training=True)
    model = onnx.load(tmp_path / "op.onnx")
    del model.metadata_props[:]
    network = g.onnx.load(model)
    programs = g.compile(outputs=named, training=True), g.compile(outputs=dict(network.outputs))
    network.initialize(programs[1])
    wanted, found = (
        program.step({x.name: feeds[x.name] for x in program.graph.inputs}) for program in programs
    )
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-8)
