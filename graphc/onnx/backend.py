"""graphc as a backend of `onnx`, for the test runner of `onnx`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend as Base
from onnx.backend.base import BackendRep

from graphc.compiler.compile import compile
from graphc.errors import FeedError, GpuUnavailable, OnnxError, OptionError, quoted
from graphc.importing.weights import Array
from graphc.onnx.importer import load
from graphc.onnx.model import STANDARD
from graphc.onnx.network import Network
from graphc.runtime.gpu.device import find_gpu
from graphc.runtime.program import Program


@dataclass(frozen=True)
class _Bound:
    """A program for inputs of fixed types, and for fixed values of the inputs in `baked`."""

    network: Network
    program: Program
    types: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    baked: Mapping[str, Array]

    def takes(self, arrays: Mapping[str, Array]) -> bool:
        """Return True if the program is compiled for these dtypes, shapes and constant inputs."""
        return self.types == _types(arrays) and all(
            np.array_equal(array, arrays[name]) for name, array in self.baked.items()
        )

    def run(self, arrays: Mapping[str, Array]) -> tuple[Array, ...]:
        read = {source.name for source in self.program.graph.inputs}
        found = self.program.step(
            {
                source.name: arrays[name]
                for name, source in self.network.inputs.items()
                if source.name in read
            }
        )
        return tuple(found[f"output{i}"] for i in range(len(self.network.outputs)))


def _types(arrays: Mapping[str, Array]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


class Prepared(BackendRep):
    """A model that is compiled on its first run, and again whenever inputs have other types.

    Inputs that determine extents, such as shapes and axes, become part of the program.
    """

    def __init__(self, model: onnx.ModelProto, options: Mapping[str, Any]) -> None:
        self._model, self._options = model, dict(options)
        self._bound: _Bound | None = None

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Run the model on inputs given by name or in the model's order.

        Inputs with a default in the model may be omitted. If inputs are given in the model's order,
        either all inputs with a default or none of them must be omitted. Raises `FeedError` for
        inputs that do not match the model's.
        """
        arrays = self._named(inputs)
        if self._bound is None or not self._bound.takes(arrays):
            self._bound = self._bind(arrays)
        return self._bound.run(arrays)

    def _named(self, inputs: Any) -> dict[str, Array]:
        held = {tensor.name for tensor in self._model.graph.initializer}
        names = [value.name for value in self._model.graph.input]
        return _arrays(inputs, [name for name in names if name not in held], names)

    def _bind(self, arrays: dict[str, Array]) -> _Bound:
        network, baked = network_for(_without_defaults(self._model, arrays.keys()), arrays)
        outputs = {f"output{i}": value for i, value in enumerate(network.outputs.values())}
        program = compile(outputs=outputs, **self._options)
        network.initialize(program)
        kept = {name: np.array(arrays[name]) for name in baked}
        return _Bound(network, program, _types(arrays), kept)


def _without_defaults(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """Return the model without the initializers of these names.

    The names are then inputs that have to be fed.
    """
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    if len(kept) == len(model.graph.initializer):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.initializer[:]
    changed.graph.initializer.extend(kept)
    return changed


def _arrays(inputs: Any, needed: Sequence[str], names: Sequence[str]) -> dict[str, Array]:
    """Return inputs as arrays by name.

    `inputs` is a mapping, or a sequence in the order of `needed` or of `names`. Raises `FeedError`
    for inputs that do not match, and if one name has two different contents.
    """
    more = [name for name in names if name not in needed]
    told = f"{', '.join(needed)}{' and optionally ' if more else ''}{', '.join(more)}"
    rule = "run: give an array for each input; the model has"
    if isinstance(inputs, Mapping):
        given = list(inputs.items())
    else:
        listed = inputs if isinstance(inputs, Sequence) else (inputs,)
        order = next((each for each in (needed, names) if len(each) == len(listed)), None)
        if order is None:
            raise FeedError(f"{rule} {len(needed)} ({told}); got {len(listed)}")
        given = list(zip(order, listed, strict=True))
    if not {*needed} <= {name for name, _ in given} <= {*names}:
        got = ", ".join(str(name) for name, _ in given) or "none"
        raise FeedError(f"{rule} {told}; got {got}")
    arrays: dict[str, Array] = {}
    for name, each in given:
        array = _array(name, each)
        held = arrays.setdefault(name, array)
        if (held.shape, held.dtype, held.tobytes()) != (array.shape, array.dtype, array.tobytes()):
            raise FeedError(f"run: the input {name!r} is given twice, with different values")
    return arrays


def _array(name: str, given: Any) -> Array:
    try:
        return np.asarray(given)
    except ValueError as error:
        raise FeedError(f"run: the input {name!r} is not an array: {error}") from None


def network_for(
    model: onnx.ModelProto, arrays: Mapping[str, Array], **options: Any
) -> tuple[Network, frozenset[str]]:
    """Return the network for these inputs, and the names of inputs that became part of it."""
    baked: frozenset[str] = frozenset()
    dims = {name: array.shape for name, array in arrays.items() if array.shape}
    while True:
        known = {name: arrays[name] for name in baked}
        try:
            return load(model, dims, None, True, known, **options), baked
        except OnnxError as error:
            further = error.undetermined & arrays.keys()
            if not further - baked:
                raise
            baked |= further


class Backend(Base):
    """graphc as a backend of `onnx`.

    ``onnx.backend.test.BackendTest(graphc.onnx.Backend, __name__)`` creates onnx's tests for it.
    """

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return True if all inputs and outputs are tensors and the device is available.

        Other missing features are reported when the model is run.
        """
        values = (*model.graph.input, *model.graph.output)
        are_tensors = all(value.type.WhichOneof("value") == "tensor_type" for value in values)
        return are_tensors and cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Prepare a model; further options are passed to `graphc.compile`.

        Raises `OptionError` if `model` is not a model or `device` is neither a CPU nor a GPU.
        """
        if not isinstance(model, onnx.ModelProto):
            raise OptionError(f"prepare needs an onnx.ModelProto, got {quoted(model)}")
        return Prepared(model, {"device": _device(device), **kwargs})

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Run one node with operators of version ``opset_version``.

        A tensor that the node reads twice may be given once or twice. `outputs_info` is ignored,
        because the node determines its outputs.
        """
        names = [name for name in node.input if name]
        arrays = _arrays(inputs, list(dict.fromkeys(names)), names)
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        versions = [helper.make_opsetid("", version)]
        if node.domain not in STANDARD:
            versions.append(helper.make_opsetid(node.domain, 1))
        graph = helper.make_graph(
            [node],
            "node",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in arrays.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        model = helper.make_model(graph, opset_imports=versions)
        return cls.prepare(model, device, **kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return True if the device is a CPU or a GPU of this machine."""
        try:
            name = _device(device)
            if name != "cpu":
                find_gpu(int(name.partition(":")[2] or 0))
        except (OptionError, GpuUnavailable):
            return False
        return True


def _device(name: str) -> str:
    """Translate a device name of `onnx`; raise `OptionError` for an unknown one."""
    if name == "CPU":
        return "cpu"
    if isinstance(name, str) and re.fullmatch(r"CUDA(:\d+)?", name):
        return name.lower()
    raise OptionError(f'a device must be "CPU", "CUDA" or "CUDA:1", got {quoted(name)}')
