"""The result type of `graphc.onnx.load`."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.importing import network


@dataclass(frozen=True)
class Network(network.Network):
    """A network imported from an ONNX file; `opset` is the version after conversion."""

    opset: int
