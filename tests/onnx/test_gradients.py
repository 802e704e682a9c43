"""Gradients of networks that came from ONNX agree with central differences, in float64."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnx_cases.node_tests import array_of, excluded, node_cases, nodes_of, one_of_each

import graphc
from graphc.errors import GraphcError
from graphc.onnx import importer
from graphc.onnx.backend import network_for
from graphc.onnx.functions import body_of

STEP = 1e-4
ELEMENTS = 4
"""Elements of each operand that are moved."""

WITHOUT_GRADIENT = {"NegativeLogLikelihoodLoss": 2, "SoftmaxCrossEntropyLoss": 2, "RoiAlign": 1}
"""Operator → its operand without a gradient in graphc: weights of classes, corners of regions."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def in_float64(model):
    """The model with every float of 32 or 16 bits as one of 64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for value in (*wide.graph.input, *wide.graph.output, *wide.graph.value_info):
        type = value.type.tensor_type
        if type.elem_type in FLOATS:
            type.elem_type = TensorProto.DOUBLE
    widen(wide.graph)
    return wide


def widen(graph):
    """Every dtype and constant of the graph's nodes as float64, where it is a float."""
    for node in nodes_of(graph):
        if node.op_type == "ConstantOfShape" and not node.attribute:
            zero = numpy_helper.from_array(np.zeros(1))
            node.attribute.append(onnx.helper.make_attribute("value", zero))
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "stash_type") and attribute.i in FLOATS:
                attribute.i = TensorProto.DOUBLE
            if attribute.HasField("t") and attribute.t.data_type in FLOATS:
                array = numpy_helper.to_array(attribute.t).astype(np.float64)
                attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))


def wide_inputs(case):
    names = [value.name for value in case.model.graph.input]
    arrays = dict(zip(names, map(array_of, case.data_sets[0][0]), strict=False))
    floats = ("float16", "float32", "bfloat16")
    return {
        name: array.astype(np.float64) if array.dtype.name in floats else array
        for name, array in arrays.items()
    }


def without_gradient(graph):
    """The names of what nodes read as an operand that has no gradient."""
    return {
        node.input[WITHOUT_GRADIENT[node.op_type]]
        for node in graph.node
        if len(node.input) > WITHOUT_GRADIENT.get(node.op_type, len(node.input))
    }


def weighted_loss(network):
    """A sum of all float outputs, each element with a weight of its own; None without any."""
    generator, terms = np.random.default_rng(7), []
    for value in network.outputs.values():
        if value.type.dtype.name == "float64":
            weights = generator.uniform(0.5, 1.5, value.shape)
            terms.append(graphc.sum(graphc.mul(value, graphc.constant(weights))))
    return sum(terms[1:], start=terms[0]) if terms else None


def body_in_float64(node, types, opset):
    """The body of a function in float64, though it may compute in float32 whatever it is given."""
    body = body_of(node, types, opset)
    if body is None:
        return None
    graph = onnx.GraphProto()
    graph.node.extend(body.nodes)
    widen(graph)
    return replace(body, nodes=list(graph.node))


def differentiated(case):
    """(step, feeds, names of float inputs) with the loss and its gradients; None without any."""
    arrays = wide_inputs(case)
    network, _ = network_for(in_float64(case.model), arrays)
    loss = weighted_loss(network)
    fixed = without_gradient(case.model.graph)
    moved = {
        name: value
        for name, value in network.inputs.items()
        if value.type.dtype.name == "float64" and name not in fixed
    }
    if loss is None or not moved:
        return None
    found = graphc.gradient(loss, list(moved.values()))
    outputs = {"loss": loss} | {f"g_{i}": value for i, value in enumerate(found)}
    program = graphc.compile(outputs=outputs, kernels="numpy", poison=True)
    network.initialize(program)
    read = {source.name for source in program.graph.inputs}
    feeds = {v.name: arrays[n] for n, v in network.inputs.items() if v.name in read}
    names = [v.name if v.name in read else None for v in moved.values()]
    return program, feeds, names


def slopes(program, feeds, name, place, step):
    """Differences forwards and backwards at one element."""
    middle = float(program.step(feeds)["loss"])
    sides = []
    for sign in (1, -1):
        moved = np.array(feeds[name])
        moved.flat[place] += sign * step
        sides.append(sign * (float(program.step(feeds | {name: moved})["loss"]) - middle) / step)
    return sides


def is_smooth(program, feeds, name, place):
    """The central difference, or None at a kink: there both sides differ, however small the step.

    Where a function is smooth, the difference of the sides shrinks with the step.
    """
    forward, backward = slopes(program, feeds, name, place, STEP)
    closer = slopes(program, feeds, name, place, STEP / 8)
    if not np.isfinite([forward, backward, *closer]).all():
        return None
    gap, small = abs(forward - backward), abs(closer[0] - closer[1])
    size = 1 + max(map(abs, closer))
    if small > 1e-5 * size and small > 0.5 * gap:
        return None
    rough, fine = (forward + backward) / 2, sum(closer) / 2
    if abs(rough - fine) > 1e-6 * size:
        return None
    return (64 * fine - rough) / 63


def wrong(case):
    """(elements compared, elements at kinks, what does not agree) of a case."""
    made = differentiated(case)
    if made is None:
        return 0, 0, []
    program, feeds, names = made
    found = program.step(feeds)
    compared = kinks = 0
    faults = []
    for number, name in enumerate(names):
        gradient = found[f"g_{number}"]
        places = np.random.default_rng(number).permutation(gradient.size)[:ELEMENTS]
        for place in places.tolist():
            if name is None:
                faults += [(number, place)] if gradient.flat[place] else []
                continue
            expected = is_smooth(program, feeds, name, place)
            if expected is None:
                kinks += 1
                continue
            compared += 1
            got = gradient.flat[place]
            if not abs(got - expected) <= 2e-6 * (1 + abs(expected) + np.abs(gradient).max()):
                faults.append((name, place, float(got), expected))
    return compared, kinks, faults


def is_compared(name):
    """All but twins and casts of bits: float64 has other bits, and no gradient goes through."""
    return "_expanded" not in name and "_bitcast_" not in name


def all_wrong(names):
    compared, kinks, faults = 0, 0, {}
    for name in names:
        try:
            more, at_kinks, found = wrong(node_cases()[name])
        except GraphcError as error:
            faults[name] = str(error)
            continue
        compared, kinks = compared + more, kinks + at_kinks
        if found:
            faults[name] = found
    return compared, kinks, faults


def test_gradients_beside_an_operand_without_one_agree():
    names = ["test_nllloss_NCd1_weight", "test_sce_mean_weight", "test_roialign_aligned_true"]
    compared, _, faults = all_wrong(names)
    assert faults == {}
    assert compared == len(names) * ELEMENTS


def test_a_sample_of_gradients_agrees():
    names = [name for name in one_of_each() if is_compared(name)][::4]
    compared, kinks, faults = all_wrong(names)
    assert faults == {}
    assert compared > 60
    assert kinks < compared / 4


@pytest.fixture(autouse=True)
def functions_in_float64(monkeypatch):
    monkeypatch.setattr(importer, "body_of", body_in_float64)


@pytest.mark.slow
def test_all_gradients_agree():
    names = [name for name in node_cases() if is_compared(name) and name not in excluded()]
    compared, kinks, faults = all_wrong(names)
    assert faults == {}
    assert compared > 5000
    assert kinks < compared / 20
