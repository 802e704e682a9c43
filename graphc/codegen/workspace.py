"""What a node needs beside its values while it runs, on any device, before anything has a place."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass

from graphc.codegen import convolution
from graphc.codegen.calls import Gemm
from graphc.codegen.convolution import CONVOLUTIONS
from graphc.codegen.generate import calls_of, is_generated
from graphc.codegen.layout import Place, in_one_piece
from graphc.codegen.product import PRODUCTS, unreadable
from graphc.codegen.strides import copied_first
from graphc.ir.device import Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.ops.elementwise import Elementwise
from graphc.ir.types import TensorType, uint8


@dataclass(frozen=True, slots=True)
class Workspace:
    """A node's workspace on a GPU: inputs that are copied into one piece first, the scratch of its
    calls, and what a library may use."""

    copies: tuple[Value, ...]
    scratch: tuple[TensorType, ...]
    library_bytes: int

    @property
    def types(self) -> tuple[TensorType, ...]:
        """All of it as tensors, in this order."""
        library = (TensorType((self.library_bytes,), uint8),) if self.library_bytes else ()
        return (*(value.type for value in self.copies), *self.scratch, *library)


def workspace(node: Node, device: Device, strided: Strided) -> tuple[TensorType, ...]:
    """The tensors of a node's workspace; none for most."""
    if device.kind == "cpu":
        return node.op.workspace(node, device, strided)
    return gpu_workspace(node, device, strided).types


def gpu_workspace(node: Node, device: Device, strided: Strided) -> Workspace:
    """The workspace of a node whose outputs are no views. 16-bit operands need no copies here."""
    if isinstance(node.op, Elementwise) or not is_generated(node.op):
        return Workspace(copied_first(node, strided, device), (), 0)
    copies = _copies(node, strided, device)
    values = dict.fromkeys((*node.inputs, *node.outputs))
    lying = {v: strided[v] for v in values if v in strided and v not in copies}
    scratch, uses_blas = _needs(_Alike(node, lying))
    return Workspace(copies, scratch, device.blas_workspace_bytes if uses_blas else 0)


def _copies(node: Node, strided: Strided, device: Device) -> tuple[Value, ...]:
    """Inputs that are copied into one piece first."""
    if node.op.name in CONVOLUTIONS:
        return convolution.unreadable(node, strided)
    copies = copied_first(node, strided, device)
    if node.op.name in PRODUCTS:
        return tuple(dict.fromkeys((*copies, *unreadable(node, strided))))
    return copies


class _Alike:
    """A node that equals every other of its op, attributes, types and strides."""

    def __init__(self, node: Node, strided: Strided) -> None:
        self.node = node
        values = (*node.inputs, *node.outputs)
        self.places = {
            v: Place(0, strided[v]) if v in strided else in_one_piece(v.type) for v in values
        }
        lying = tuple((value.type, self.places[value].strides) for value in values)
        self.key: Hashable = (node.op.name, node.attributes, lying)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@functools.lru_cache(maxsize=4096)
def _needs(alike: _Alike) -> tuple[tuple[TensorType, ...], bool]:
    """Scratch of a node's calls, and whether one of them is a BLAS's."""
    found = calls_of(alike.node, alike.places)
    return found.scratch, any(isinstance(call, Gemm) for call in found.calls)
