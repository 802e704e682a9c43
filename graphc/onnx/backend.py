"""graphc as a backend of onnx's own runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as Base
from onnx.backend.base import BackendRep

from graphc.compiler import compile
from graphc.errors import OnnxError
from graphc.importing.weights import Array
from graphc.onnx.importer import load
from graphc.onnx.network import Network
from graphc.runtime.program import Program


class Prepared(BackendRep):
    """A model that is compiled when it is first run, for what it is run on.

    Shapes, axes and other inputs on which extents depend are part of the program.
    """

    def __init__(self, model: onnx.ModelProto, options: Mapping[str, Any]) -> None:
        self._model, self._options = model, dict(options)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """The outputs for inputs in the model's order, or by name."""
        network, program, feeds = self._bound(self._named(inputs))
        found = program.step(feeds)
        return tuple(found[f"output{i}"] for i in range(len(network.outputs)))

    def _named(self, inputs: Any) -> dict[str, Array]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        held = {tensor.name for tensor in self._model.graph.initializer}
        names = [value.name for value in self._model.graph.input if value.name not in held]
        listed = inputs if isinstance(inputs, Sequence) else (inputs,)
        return {name: np.asarray(array) for name, array in zip(names, listed, strict=False)}

    def _bound(self, arrays: dict[str, Array]) -> tuple[Network, Program, dict[str, Array]]:
        network, _ = network_for(self._model, arrays)
        outputs = {f"output{i}": value for i, value in enumerate(network.outputs.values())}
        program = compile(outputs=outputs, **self._options)
        network.initialize(program)
        read = {source.name for source in program.graph.inputs}
        feeds = {
            source.name: arrays[name]
            for name, source in network.inputs.items()
            if source.name in read
        }
        return network, program, feeds


def network_for(
    model: onnx.ModelProto, arrays: Mapping[str, Array], **options: Any
) -> tuple[Network, frozenset[str]]:
    """The network for such inputs, and the names of those that became part of it."""
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
    """``onnx.backend.test.BackendTest(graphc.onnx.Backend, __name__)`` runs onnx's tests."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether this may be tried: what is missing shows when a model is run."""
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """The model, ready to run; further options are those of `graphc.compile`."""
        return Prepared(model, {"device": _device(device), **kwargs})

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is a CPU, or a GPU for CUDA."""
        return device.partition(":")[0] in ("CPU", "CUDA")


def _device(name: str) -> str:
    kind, colon, number = name.partition(":")
    return "cpu" if kind == "CPU" else f"cuda{colon}{number}"
