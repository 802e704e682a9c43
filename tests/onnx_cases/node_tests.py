"""onnx's own test cases, and which of them a compiler of static training graphs has to pass."""

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.runner import Runner

from graphc.onnx.backend import network_for

HERE = Path(__file__).parent

TYPES = {
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE,
    TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL,
}  # fmt: skip
"""Element types that graphc has."""

OUT_OF_SCOPE = {
    "strings": "StringNormalizer RegexFullMatch StringConcat StringSplit TfIdfVectorizer",
    "images in files": "ImageDecoder",
    "control flow": "If Loop Scan SequenceMap",
    "quantised numbers": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QLinearConv "
    "QLinearMatMul ConvInteger MatMulInteger",
    "shapes that depend on numbers": "NonZero Unique Compress NonMaxSuppression",
    "Fourier transforms": "DFT STFT MelWeightMatrix",
    "random numbers": "Bernoulli RandomNormal RandomUniform RandomNormalLike RandomUniformLike "
    "Multinomial",
}
"""Cause → operators whose cases are no test of a static graph of numbers."""


def nodes_of(graph) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph and of the bodies in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g)


def array_of(given):
    """A tensor of a case as an array."""
    return numpy_helper.to_array(given) if isinstance(given, TensorProto) else given


def out_of_scope(case) -> str | None:
    """Why a case is no test for graphc; None for one that is."""
    graph = case.model.graph
    nodes = list(nodes_of(graph))
    if any(node.domain == "ai.onnx.ml" for node in nodes):
        return "ai.onnx.ml"
    types = [value.type for value in (*graph.input, *graph.output)]
    operators = {node.op_type for node in nodes}
    if any(not t.HasField("tensor_type") for t in types):
        return "sequences and optional values"
    if any(name.startswith(("Sequence", "Optional")) for name in operators):
        return "sequences and optional values"
    if any(t.tensor_type.elem_type not in TYPES for t in types):
        return "element types that graphc does not have"
    for cause, names in OUT_OF_SCOPE.items():
        if operators & set(names.split()):
            return cause
    arrays = [array for data in case.data_sets for side in data for array in side]
    if any(0 in np.shape(array_of(array)) for array in arrays):
        return "empty tensors"
    return None


@cache
def node_cases():
    """The cases of single operators by name, those in scope."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():  # onnx computes NaN on purpose
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    return {case.name: case for case in cases if out_of_scope(case) is None}


@cache
def excluded() -> dict[str, str]:
    """Cases in scope that graphc does not pass: name → cause."""
    lines = (HERE / "excluded.txt").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


@cache
def one_of_each():
    """The names of a fixed part of the cases: the first two of every operator, but no excluded."""
    found = {}
    for name, case in node_cases().items():
        if name not in excluded():
            operator = case.model.graph.node[0].op_type
            is_expanded = "_expanded" in name
            found.setdefault((operator, is_expanded), name)
    return sorted(found.values())


def data_of(case):
    """(inputs by name, expected outputs) of each run of a case."""
    names = [value.name for value in case.model.graph.input]
    for given, expected in case.data_sets:
        arrays = dict(zip(names, map(array_of, given), strict=False))
        yield arrays, [array_of(array) for array in expected]


def built(case, arrays, **options):
    """(network, outputs to compile, feeds) of a case's model on these arrays."""
    network, _ = network_for(case.model, arrays, **options)
    outputs = {f"output{i}": value for i, value in enumerate(network.outputs.values())}
    feeds = {source.name: arrays[name] for name, source in network.inputs.items()}
    return network, outputs, feeds


def run(network, program, feeds):
    """The outputs of a step, in the model's order."""
    network.initialize(program)
    read = {source.name for source in program.graph.inputs}
    found = program.step({name: array for name, array in feeds.items() if name in read})
    return [found[f"output{i}"] for i in range(len(network.outputs))]


def compare(case, expected, found):
    """onnx's own comparison, with the case's own tolerance."""
    Runner.assert_similar_outputs(expected, found, case.rtol, case.atol)
