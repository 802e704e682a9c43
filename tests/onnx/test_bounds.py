"""Models that would fill memory or never end, and arguments of the wrong kind, are refused."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc.errors import OnnxError, OptionError

FLOAT, MANY = TensorProto.FLOAT, 10**11
SHAPES = {
    "Range": ([0, MANY, 1], (), "at most"),
    "OneHot": ([[0, 1], MANY, [0, 1]], (), "at most"),
    "EyeLike": ([], (10**6, 10**6), "at most"),
    "Trilu": ([], (10**6, 10**6), "at most"),
    "Scan": ([], (10**6, 2), "can be unrolled"),
    "RNN": ([], (10**6, 1, 1), "can be unrolled"),
}
"""Known operands by the operator, else the shape of x, and what is told."""


def asks_for_much(operator):
    known, shape, _ = SHAPES[operator]
    names = [f"k{i}" for i in range(len(known))]
    operands = names or {"RNN": ["x", "w", "w"]}.get(operator, ["x"])
    part = helper.make_tensor_value_info("part", FLOAT, (2,))
    body = helper.make_graph([helper.make_node("Neg", ["part"], ["n"])], "body", [part],
                             [helper.make_tensor_value_info("n", FLOAT, (2,))])  # fmt: skip
    attributes = {"Scan": {"num_scan_inputs": 1, "body": body}, "RNN": {"hidden_size": 1}}
    node = helper.make_node(operator, operands, ["y"], **attributes.get(operator, {}))
    tensors = {name: np.int64(number) for name, number in zip(names, known, strict=True)}
    tensors |= {"w": np.ones((1, 1, 1), np.float32)} if "w" in operands else {}
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, shape)] if shape else [],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize("operator", SHAPES)
def test_unbounded_sizes_and_loops_are_refused(operator):
    with pytest.raises(OnnxError, match=rf"{operator}.*{SHAPES[operator][-1]}"):
        graphc.onnx.load(asks_for_much(operator))


@pytest.mark.parametrize("count", [2**40, 5, 0])
def test_more_parts_than_elements_are_refused(count):
    node = helper.make_node("Split", ["x"], ["y"], num_outputs=count)
    values = [helper.make_tensor_value_info(name, FLOAT, (3,)) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "graph", values[:1], values[1:]))
    with pytest.raises(OnnxError, match=rf"axis 0 of f32\[3\] cannot be split into {count} parts"):
        graphc.onnx.load(model)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dims": 32}, "dims must map names to numbers"),
        ({"trainable": 3}, "trainable must be True"),
        ({"weights": "x"}, "weights must be True or False, got 'x'"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(options, told):
    with pytest.raises(OptionError, match=told):
        graphc.onnx.load(asks_for_much("Trilu"), **options)


def test_a_file_is_not_written_in_a_mode_that_is_neither(tmp_path):
    with pytest.raises(OptionError, match="training must be True or False, got 'x'"):
        graphc.onnx.save(graphc.input("x", (2,)) + 1.0, tmp_path / "a.onnx", training="x")


def test_only_programs_can_be_initialized():
    node = helper.make_node("Neg", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, FLOAT, (2,)) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "graph", values[:1], values[1:]))
    with pytest.raises(OptionError, match="a compiled program, got None"):
        graphc.onnx.load(model).initialize(None)
