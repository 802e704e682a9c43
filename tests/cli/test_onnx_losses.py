"""The cross entropy of an ONNX file's output, given on the command line."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_cases.models import FLOAT, array, model
from scipy.special import log_softmax

import graphc as g
from graphc.cli.onnx_model import loss_of, read


def written(path, shape, *ending, opset=22):
    """A file of y = what `ending` makes of h = x · w; what onnx gives for it."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["h"]), *ending]
    wide = {"w": np.full(1, 1.5, np.float32), "flat": np.array([shape[0], -1])}
    made = model(nodes, {"x": (FLOAT, shape)}, {"y": (FLOAT, None)}, wide, opset)
    onnx.save(made, path)
    return ReferenceEvaluator(made).run(None, {"x": array(shape, 1)})[0]


def softmax(axis, kind="Softmax", output="y"):
    return helper.make_node(kind, ["h"], [output], axis=axis)


BEHIND = [
    softmax(1, output="p"),
    helper.make_node("Reshape", ["p", "flat"], ["rows"]),
    helper.make_node("Transpose", ["rows"], ["y"], perm=[1, 0]),
]
"""Softmax of (rows, classes, 1, 1) as (classes, rows)."""

CASES = {
    "the last of rows": ((4, 5), 1, [softmax(-1)], 22),
    "flattened and shaped back": ((4, 5, 1, 1), 1, [softmax(1)], 11),
    "the last of an older file": ((4, 3, 5), 2, [softmax(2)], 11),
    "the last of maps": ((2, 4, 4, 3), 3, [softmax(3)], 22),
    "the second of three": ((4, 3, 3), 1, [softmax(1, "LogSoftmax")], 22),
    "the first": ((4, 5), 0, [softmax(0)], 22),
    "moved": ((4, 5, 1, 1), 0, BEHIND, 22),
}
"""Shape, axis of the classes in the output, the nodes behind, version of ONNX's operators."""


def own_loss(probabilities, labels, axis):
    """The mean of -log of what the file gives the labels."""
    given = np.take_along_axis(probabilities, np.expand_dims(labels, axis), axis)
    return -np.log(given).mean()


@pytest.mark.parametrize("name", CASES)
def test_classes_lie_along_the_axis_of_the_softmax(name, tmp_path):
    shape, axis, ending, opset = CASES[name]
    probabilities = written(tmp_path / "net.onnx", shape, *ending, opset=opset).astype(np.float64)
    if ending[0].op_type == "LogSoftmax":
        probabilities = np.exp(probabilities)
    network = read(str(tmp_path / "net.onnx"), {}, None, weights=True)
    program = g.compile(loss_of("net.onnx", network, "cross_entropy"), training=False)
    network.initialize(program)
    labels = np.random.default_rng(0).integers(
        0, probabilities.shape[axis], np.delete(probabilities.shape, axis)
    )
    found = program.step(x=array(shape, 1), labels=labels)["loss"]
    assert found == pytest.approx(own_loss(probabilities, labels, axis), rel=1e-6)
    assert not {"softmax", "log_softmax"} & {node.op.name for node in program.graph.nodes}


def test_classes_of_several_axes_are_one(tmp_path):
    written(tmp_path / "net.onnx", (4, 3, 5), softmax(1), opset=11)
    network = read(str(tmp_path / "net.onnx"), {}, None, weights=True)
    program = g.compile(loss_of("net.onnx", network, "cross_entropy"), training=False)
    network.initialize(program)
    x, labels = array((4, 3, 5), 1), np.array([0, 14, 7, 7])
    scores = log_softmax(1.5 * x.reshape(4, 15).astype(np.float64), -1)
    found = program.step(x=x, labels=labels)["loss"]
    assert found == pytest.approx(-scores[np.arange(4), labels].mean(), rel=1e-6)
