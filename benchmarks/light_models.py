"""Bytes of training steps of the light models in onnx's package, with and without a budget.

The files have nine networks without their weights; `light_model` draws them. The budget is two
thirds of the packed arena, or the least that graphc finds where that cannot be met: most bytes of
some of these networks are weights.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
from onnx import helper, numpy_helper
from report import circumstances, output_argument, print_table, write_json

import graphc

LIGHT = Path(os.path.dirname(onnx.backend.test.__file__)) / "data" / "light"

BATCHES = {
    "bvlc_alexnet": 32,
    "densenet121": 8,
    "inception_v1": 8,
    "inception_v2": 8,
    "resnet50": 8,
    "shufflenet": 8,
    "squeezenet": 8,
    "vgg19": 8,
    "zfnet512": 16,
}
"""Network → examples in a step of the table."""

RATE = 1e-4


def light_model(name: str, batch: int = 1, seed: int = 0) -> onnx.ModelProto:
    """A light model with drawn weights, without the softmax at its end, for some examples.

    A file holds a number for each weight, which a node repeats; that node becomes a tensor here.
    Deviations by He's rule keep activations within range. The batch of 1 that the shapes of
    reshapes hold becomes the batch that is asked for.
    """
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph, generator = model.graph, np.random.default_rng(seed)
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    fills = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    if kept[-1].op_type == "Softmax":
        last = kept.pop()
        del graph.output[:]
        logits = helper.make_tensor_value_info(last.input[0], onnx.TensorProto.FLOAT, None)
        graph.output.append(logits)
    norms = [node for node in kept if node.op_type == "BatchNormalization"]
    positive = {node.input[i] for node in norms for i in (1, 4)}
    for node in kept:
        if node.op_type == "Reshape" and tensors[node.input[1]][0] == 1:
            tensors[node.input[1]] = np.array([batch, *tensors[node.input[1]][1:]], np.int64)
    for node in fills:
        shape = tuple(int(n) for n in tensors[node.input[0]])
        tensors[node.output[0]] = _drawn(generator, shape, node.output[0] in positive)
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for node in kept for name in node.input}
    fed = [value for value in graph.input if value.name in used - tensors.keys()]
    del graph.input[:], graph.initializer[:]
    graph.input.extend(fed)
    held = [numpy_helper.from_array(a, name) for name, a in tensors.items() if name in used]
    graph.initializer.extend(held)
    for value in graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = batch
    model.ir_version = max(model.ir_version, 4)
    return model


def _drawn(
    generator: np.random.Generator, shape: tuple[int, ...], is_positive: bool
) -> np.ndarray[Any, Any]:
    """A weight: near 1 where it is a scale or a variance, small around 0 where it is flat."""
    if is_positive:
        return generator.uniform(0.5, 1.5, shape).astype(np.float32)
    deviation = 0.1 if len(shape) < 2 else np.sqrt(2 / np.prod(shape[1:]))
    return (deviation * generator.standard_normal(shape)).astype(np.float32)


def loss_of(network: graphc.onnx.Network) -> graphc.Value:
    """The cross entropy of the network's scores, one row an example."""
    (source,) = network.inputs.values()
    logits = graphc.reshape(network.output, (source.shape[0], -1))
    labels = graphc.input("labels", (source.shape[0],), "int32")
    return graphc.softmax_cross_entropy(logits, labels)


def within_two_thirds(loss: graphc.Value, arena_bytes: int) -> graphc.MemoryPlan:
    """The plan for two thirds of an arena, or for the least that there is."""
    optimizer = graphc.optim.SGD(RATE)
    try:
        return graphc.plan(loss, optimizer=optimizer, budget=2 * arena_bytes // 3)
    except graphc.BudgetError as error:
        return graphc.plan(loss, optimizer=optimizer, budget=error.least_bytes)


def row(name: str) -> dict[str, Any]:
    """The bytes of one network."""
    network = graphc.onnx.load(light_model(name, BATCHES[name]), weights=False)
    loss, optimizer = loss_of(network), graphc.optim.SGD(RATE)
    plain = graphc.plan(loss, optimizer=optimizer, allocate="none")
    packed = graphc.plan(loss, optimizer=optimizer)
    tight = within_two_thirds(loss, packed.arena_bytes)
    return {
        "network": name,
        "batch": BATCHES[name],
        "state_bytes": packed.state_bytes,
        "without_sharing_bytes": plain.arena_bytes,
        "arena_bytes": packed.arena_bytes,
        "budget_met": 3 * tight.arena_bytes <= 2 * packed.arena_bytes,
        "least_arena_bytes": tight.arena_bytes,
        "extra_flops_fraction": round(tight.recomputation.extra_flops_fraction, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    output_argument(parser, "light_models.json")
    arguments = parser.parse_args()
    rows = [row(name) for name in BATCHES]
    print_table(rows)
    write_json(arguments.output, {"rows": rows, **circumstances(["numpy", "onnx"])})


if __name__ == "__main__":
    main()
