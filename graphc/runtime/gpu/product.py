"""A matrix product as what a step has to do: kernels that prepare the output, then BLAS calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphc.ir.graph import Node, Value
from graphc.runtime.gpu.gemm import Gemm, gemms
from graphc.runtime.gpu.source.elementwise_ops import copied
from graphc.runtime.gpu.source.kernel import Launch
from graphc.runtime.gpu.source.layout import Place

PRODUCTS = ("matmul", "linear")
"""Ops that are products."""


@dataclass(frozen=True, slots=True)
class Product:
    """Launches, then calls, in order."""

    before: tuple[Launch, ...]
    calls: tuple[Gemm, ...]


def product_of(node: Node, places: Mapping[Value, Place], tf32: bool = False) -> Product:
    """What a matmul or linear node does at these places.

    A running sum or a bias is copied into the output first, and the product added to it; a running
    sum that lies there already is not copied. Raises `OptionError` where an operand `needs_copy`.
    """
    y, added = node.output, node.inputs[2:]
    moved = [value for value in added if value.shape != y.shape or places[value] != places[y]]
    return Product(tuple(copied(v, y, places) for v in moved), gemms(node, places, tf32))
