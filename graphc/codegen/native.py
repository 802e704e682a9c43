"""Lowering of a node to native kernels on a CPU, and the target of plans for them.

A node runs as machine code if its rule returns programs, or if its family has native kernels.
Products and convolutions do so if oneDNN is installed. No plan depends on that, because their
workspace fits both oneDNN's kernels and NumPy's. All other nodes run as NumPy kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

from graphc.codegen import lowering
from graphc.codegen.convolution import native as convolutions
from graphc.codegen.elementwise.ops import straightened
from graphc.codegen.elementwise.program import Each
from graphc.codegen.lines.program import Along
from graphc.codegen.llvm.each import each_call
from graphc.codegen.llvm.families import FAMILIES
from graphc.codegen.llvm.kernel import NativeCall, NativeCalls
from graphc.codegen.llvm.lines import lines_calls
from graphc.codegen.llvm.random import drawn_call
from graphc.codegen.llvm.rules import native_rule_of
from graphc.codegen.llvm.windows import windows_call
from graphc.codegen.memo import Memo
from graphc.codegen.node_calls import Program, Scratch
from graphc.codegen.products import native as products
from graphc.codegen.products.ops import PRODUCTS
from graphc.codegen.random.program import Drawn
from graphc.codegen.rules import ProductOptions, gives_programs, rule_of
from graphc.codegen.strides import takes_strides
from graphc.codegen.text.operands import Place, Places, in_one_piece
from graphc.codegen.windows.program import Windowed
from graphc.ir.graph import Node, Value
from graphc.ir.op import Strided
from graphc.ir.types import TensorType, outer_axes, pieces, uint8
from graphc.ops.conv import Convolution
from graphc.target import Target

FAMILIES_WITH_KERNELS = FAMILIES
"""Modules that register native kernels of ops without programs when they are imported."""

MOST_PIECES = 2**19
"""Maximum number of contiguous pieces of memory for a part inside a concatenation. If maps are
channels-last, a part has one piece per pixel.
"""


@dataclass(frozen=True)
class NativeTarget(Target, kind="native"):
    """The target for a CPU with native kernels, which get the strides of their operands as
    arguments."""

    prefers_channels_last: ClassVar[bool] = True
    prefers_heads_inside: ClassVar[bool] = True
    fuses: ClassVar[bool] = True

    def takes_strides(
        self, node: Node, name: str, type: TensorType, strides: tuple[int, ...]
    ) -> bool:
        library = _library_of(node)
        if library is not None:
            return bool(library.takes_strides(node, name, type, strides))
        if is_native(node):
            return takes_strides(node, name, type, strides)
        return super().takes_strides(node, name, type, strides)

    def is_in_few_pieces(self, type: TensorType, strides: tuple[int, ...]) -> bool:
        return pieces(type, strides) <= MOST_PIECES

    def copies(self, node: Node, strided: Strided) -> tuple[Value, ...]:
        if not is_native(node) and _library_of(node) is None:
            return ()
        found = {
            value: None
            for index, value in enumerate(node.inputs)
            if value in strided
            and not self.takes_strides(node, node.op.input_name(index), value.type, strided[value])
        }
        return tuple(found)

    def copied_strides(self, node: Node, value: Value, strided: Strided) -> tuple[int, ...]:
        if isinstance(node.op, Convolution):
            return convolutions.copied_strides(value.type, strided[value])
        return super().copied_strides(node, value, strided)

    def workspace(self, node: Node, strided: Strided) -> tuple[TensorType, ...]:
        values, slots = (*node.inputs, *node.outputs), dict[Value, int]()
        lying = tuple(
            (slots.setdefault(v, i), v.type, strided.get(v)) for i, v in enumerate(values)
        )
        key = (node.op.name, repr(node.attributes), lying, self.device)
        own = {value: strided[value] for value in slots if value in strided}
        return _WORKSPACES.get(key, lambda: self._workspace(node, own))

    def _workspace(self, node: Node, strided: Strided) -> tuple[TensorType, ...]:
        copies = self.copies(node, strided)
        rest = {value: strides for value, strides in strided.items() if value not in copies}
        wanted = self.library_bytes(node, strided)
        return (*(value.type for value in copies), *self._scratch(node, rest, wanted))

    def library_bytes(self, node: Node, strided: Strided) -> int:
        """Return the bytes of workspace that oneDNN may use for a node, besides copies of inputs; 0
        if none.

        Except for copies of maps, the workspace follows from the node alone. So does oneDNN's
        choice of an algorithm, for any layout of the values.
        """
        library = _library_of(node)
        if library is None:
            return 0
        copies = self.copies(node, strided)
        lying = {value: strides for value, strides in strided.items() if value not in copies}
        for value in copies:
            strides = self.copied_strides(node, value, strided)
            if outer_axes(value.type, strides):
                lying[value] = strides
        return int(library.native_bytes(node, lying))

    def _scratch(self, node: Node, strided: Strided, wanted: int) -> tuple[TensorType, ...]:
        """Return the scratch of the node's native or NumPy kernel, enlarged to `wanted` bytes for a
        library."""
        if is_native(node):
            values = (*node.inputs, *node.outputs)
            places = {
                v: Place(0, strided[v]) if v in strided else in_one_piece(v.type) for v in values
            }
            return native_calls(node, places).scratch
        own = super().workspace(node, strided)
        missing = wanted - sum(type.bytes for type in own)
        return (*own, TensorType((missing,), uint8)) if missing > 0 else own


_WORKSPACES: Memo[tuple[TensorType, ...]] = Memo()


def _library_of(node: Node) -> ModuleType | None:
    """Return the module that describes oneDNN's computation of a node, or None."""
    if node.op.name in PRODUCTS:
        return products
    return convolutions if isinstance(node.op, Convolution) else None


def is_native(node: Node) -> bool:
    """Return true if a node is compiled to machine code. This depends on the node's types and
    attributes alone."""
    if native_rule_of(node.op) is not None:
        return True
    if not gives_programs(node.op):
        return False
    types = tuple(value.type for value in (*node.inputs, *node.outputs))
    key = (node.op.name, repr(node.attributes), types)
    return _NATIVE.get(key, lambda: _is_supported(node))


_NATIVE: Memo[bool] = Memo()


def _is_supported(node: Node) -> bool:
    places = {v: in_one_piece(v.type) for v in (*node.inputs, *node.outputs)}
    return _lowered(node, places) is not None


def _programs(node: Node, places: Places) -> tuple[Sequence[Program], tuple[TensorType, ...]]:
    """Return the programs of a node and their scratch; its rule must return only programs."""
    rule = rule_of(node.op)
    assert rule is not None, "asked of nodes whose rule gives programs"
    found = rule(node, places, ProductOptions())
    return [call for call in found.calls if isinstance(call, Program)], found.scratch


def native_calls(node: Node, places: Places) -> NativeCalls:
    """Return the calls that compute the outputs of a node that `is_native`, at these places."""
    slots, key = lowering.slots_and_key(node, places)

    def made() -> NativeCalls:
        found = _lowered(node, places)
        assert found is not None, "asked of nodes that are native"
        return found.on(slots)

    return _KNOWN.get(key, made).on({slot: value for value, slot in slots.items()})


_KNOWN: Memo[NativeCalls] = Memo()


def _lowered(node: Node, places: Places) -> NativeCalls | None:
    """Return the node's calls; None if one of its programs cannot be compiled to machine code."""
    own = native_rule_of(node.op)
    if own is not None:
        return own(node, places)
    programs, own_scratch = _programs(node, places)
    scratch = list(own_scratch)
    calls: list[NativeCall] = []
    for program in programs:
        found = _written(program, len(scratch))
        if found is None:
            return None
        calls += found.calls
        scratch += found.scratch
    return NativeCalls(tuple(calls), tuple(scratch))


def _written(program: Program, own_scratch: int) -> NativeCalls | None:
    """Return the calls of a program, whose own scratch is numbered from `own_scratch` on."""
    match program:
        case Along():
            return lines_calls(program, own_scratch)
        case Windowed():
            return NativeCalls((windows_call(program),))
        case Drawn():
            return NativeCalls((drawn_call(program),))
    assert isinstance(program, Each)
    call = each_call(program)
    return None if call is None else NativeCalls((call,))


def straightening(value: Value, places: Places, copy: Scratch, piece: Place) -> NativeCall:
    """Return the call that copies a value to the scratch `copy`, with the address and strides of
    `piece`."""
    call = each_call(straightened(value, places, copy, piece))
    assert call is not None, "elements of every dtype can be copied"
    return call
