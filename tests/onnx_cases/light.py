"""The light models of onnx's package: real networks without their weights, which are drawn here."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
from onnx import helper, numpy_helper

LIGHT = Path(os.path.dirname(onnx.backend.test.__file__)) / "data" / "light"

NAMES = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
    "squeezenet", "vgg19", "zfnet512",
)  # fmt: skip


def light_model(name, seed=0):
    """A light model with drawn weights, without a softmax at its end.

    A file holds a number for each weight, repeated by a node; that node becomes a tensor here. A
    deviation by He's rule keeps activations, and so the comparison of results, within range.
    """
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph, generator = model.graph, np.random.default_rng(seed)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    fills = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    if kept[-1].op_type == "Softmax":
        last = kept.pop()
        del graph.output[:]
        graph.output.append(
            helper.make_tensor_value_info(last.input[0], onnx.TensorProto.FLOAT, None)
        )
    norms = [node for node in kept if node.op_type == "BatchNormalization"]
    positive = {node.input[i] for node in norms for i in (1, 4)}
    for node in fills:
        shape = tuple(int(n) for n in shapes[node.input[0]])
        array = drawn(generator, shape, node.output[0] in positive)
        graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    for values in (graph.initializer, graph.input):
        there = [value for value in values if value.name in used]
        del values[:]
        values.extend(there)
    drawn_names = {tensor.name for tensor in graph.initializer}
    fed = [value for value in graph.input if value.name not in drawn_names]
    del graph.input[:]
    graph.input.extend(fed)
    model.ir_version = max(model.ir_version, 4)
    return model


def drawn(generator, shape, is_positive):
    """A weight: near 1 where it is a scale or a variance, small around 0 where it is flat."""
    if is_positive:
        return generator.uniform(0.5, 1.5, shape).astype(np.float32)
    deviation = 0.1 if len(shape) < 2 else np.sqrt(2 / np.prod(shape[1:]))
    return (deviation * generator.standard_normal(shape)).astype(np.float32)
