"""Parsing of ONNX files without their weights, and conversion to one opset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, version_converter

from graphc.errors import OnnxError, OptionError, quoted
from graphc.importing.weights import Weight, filled, known
from graphc.onnx.weights import stored

OPSET = 26
"""The opset version of the import rules; older models are converted."""

SMALL_ELEMENTS = 1024
"""Larger tensors are removed from the structure while it is converted to another version."""

KEPT = {"Resize": 11, "Hardmax": 13}
"""Operators that onnx converts to another meaning if they are older than these opsets."""

WRITTEN_FOR = "graphc_written_for"
"""An attribute with the opset for which a node was written, of operators in `KEPT`."""

STANDARD = ("", "ai.onnx")
"""Names for the domain of ONNX's standard operators."""


@dataclass
class Model:
    """The structure of a model, and its tensors by name.

    `from_nodes` has the names of tensors that nodes such as Constant produce.
    """

    proto: onnx.ModelProto
    weights: dict[str, Weight]
    from_nodes: frozenset[str]

    @property
    def graph(self) -> onnx.GraphProto:
        return self.proto.graph

    @property
    def opset(self) -> int:
        """The version of the standard operators; 1 if the file does not declare one."""
        versions = [o.version for o in self.proto.opset_import if o.domain in STANDARD]
        return max(versions, default=1)

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """The inputs to feed, without the weights that older files list as inputs."""
        return [value for value in self.graph.input if value.name not in self.weights]


def read_model(proto: onnx.ModelProto, folder: str) -> Model:
    """Return a model converted to `OPSET`; `folder` contains its external data."""
    model = _apart(proto, folder)
    _inline_functions(model)
    return _converted(model)


def parsed(path: str | os.PathLike[str] | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """Return the model of a file or in memory, and its folder; raise `OnnxError` if invalid."""
    if isinstance(path, onnx.ModelProto):
        return path, "."
    if not isinstance(path, str | os.PathLike):
        raise OptionError(f"a model must be a path or an onnx.ModelProto, got {quoted(path)}")
    try:
        proto = onnx.load(os.fspath(path), load_external_data=False)
    except Exception as error:  # protobuf has its own exception types
        raise OnnxError(f"{os.fspath(path)} cannot be read as an ONNX file: {error}") from None
    if not proto.HasField("graph"):
        raise OnnxError(f"{os.fspath(path)} is not an ONNX file: it has no graph")
    return proto, os.path.dirname(os.path.abspath(path))


def _apart(proto: onnx.ModelProto, folder: str) -> Model:
    """Separate the structure of a model from its tensors, without modifying `proto`."""
    structure = onnx.ModelProto()
    _copy_fields(proto, structure, {"graph"})
    _copy_fields(proto.graph, structure.graph, {"initializer", "node", "sparse_initializer"})
    if proto.graph.sparse_initializer:
        raise OnnxError(
            "sparse initializers are not supported; save the model with dense initializers"
        )
    weights = {tensor.name: stored(tensor, folder) for tensor in proto.graph.initializer}
    made: set[str] = set()
    for node in proto.graph.node:
        weight = _constant(node, weights, folder)
        if weight is None:
            structure.graph.node.append(node)
        else:
            weights[weight.name] = weight
            made.add(weight.name)
    return Model(structure, weights, frozenset(made))


def _copy_fields(source: Any, target: Any, without: set[str]) -> None:
    for field, value in source.ListFields():
        if field.name in without:
            continue
        if field.is_repeated:
            getattr(target, field.name).extend(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


def _constant(node: onnx.NodeProto, weights: Mapping[str, Weight], folder: str) -> Weight | None:
    """Return the tensor that a node produces from attributes and a known shape only, else None."""
    if node.domain not in STANDARD or len(node.output) != 1 or not node.output[0]:
        return None
    if node.op_type == "Constant" and len(node.attribute) == 1:
        return constant_of(node, folder)
    if node.op_type == "ConstantOfShape" and len(node.input) == 1 and node.input[0] in weights:
        return _fill(node, weights[node.input[0]], folder)
    return None


def constant_of(node: onnx.NodeProto, folder: str) -> Weight | None:
    """Return the tensor of a Constant node; None for strings and sparse tensors."""
    attribute = node.attribute[0]
    if attribute.name == "value" and attribute.type == onnx.AttributeProto.TENSOR:
        weight = stored(attribute.t, folder)
        weight.name = node.output[0]
        return weight
    kinds: dict[str, type[np.generic]] = {"value_int": np.int64, "value_ints": np.int64}
    kinds |= {"value_float": np.float32, "value_floats": np.float32}
    if attribute.name not in kinds:
        return None
    given = helper.get_attribute_value(attribute)
    return known(node.output[0], np.asarray(given, kinds[attribute.name]))


def _fill(node: onnx.NodeProto, shape: Weight, folder: str) -> Weight | None:
    if shape.elements > 64 or shape.dtype.kind != "i":
        return None
    extents = tuple(int(n) for n in shape.read().reshape(-1))
    if any(n < 0 for n in extents):
        return None
    number = np.zeros((), np.float32)
    for attribute in node.attribute:
        if attribute.name == "value":
            number = stored(attribute.t, folder).read().reshape(())
    return filled(node.output[0], extents, number, number.dtype)


def _inline_functions(model: Model) -> None:
    """Inline the functions defined in the model."""
    if not model.proto.functions:
        return
    try:
        model.proto = inliner.inline_local_functions(model.proto)
    except Exception as error:  # onnx raises various exception types
        raise OnnxError(f"the functions of the model cannot be read: {error}") from None


def _keep_opsets(graph: onnx.GraphProto, opset: int) -> None:
    """Write the opset into nodes whose meaning onnx's conversion to a newer one would change."""
    for node in graph.node:
        for attribute in node.attribute:
            for part in (attribute.g, *attribute.graphs):
                _keep_opsets(part, opset)
        if opset < KEPT.get(node.op_type, 0):
            node.attribute.append(helper.make_attribute(WRITTEN_FOR, opset))


def _converted(model: Model) -> Model:
    """Return the model converted to `OPSET`, or unchanged if onnx cannot convert it."""
    if model.opset >= OPSET or any(o.domain not in STANDARD for o in model.proto.opset_import):
        return model
    structure = onnx.ModelProto()
    structure.CopyFrom(model.proto)
    del structure.graph.input[:]
    structure.graph.input.extend(model.inputs)
    for name, weight in model.weights.items():
        if weight.elements <= SMALL_ELEMENTS and not weight.is_external:
            structure.graph.initializer.append(onnx.numpy_helper.from_array(weight.read(), name))
        else:
            number = helper.np_dtype_to_tensor_dtype(weight.dtype)
            structure.graph.input.append(helper.make_tensor_value_info(name, number, weight.shape))
    structure.ir_version = max(structure.ir_version, 8)
    try:
        converted = version_converter.convert_version(structure, OPSET)
    except Exception:  # not convertible; rules also accept many old forms
        return model
    _keep_opsets(converted.graph, model.opset)
    weights = dict(model.weights)
    for tensor in converted.graph.initializer:
        weights.setdefault(tensor.name, stored(tensor, "."))
    del converted.graph.initializer[:]
    return Model(converted, weights, model.from_nodes)
