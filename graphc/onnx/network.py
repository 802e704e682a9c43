"""What `graphc.onnx.load` returns."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.importing import network


@dataclass(frozen=True)
class Network(network.Network):
    """A network that was read from an ONNX file; `opset` is the version that was read."""

    opset: int
