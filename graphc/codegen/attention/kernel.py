"""The common base of fused attention kernels: operands, masks, and the loop over tiles.

A block owns some rows of queries, or some keys, and iterates over tiles of the other operand. With
grouped queries, several heads of queries share keys. A block that owns queries then reads the keys
of its group. A block that owns keys iterates over the queries of every head in the group, one head
after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from graphc.codegen.node_calls import Argument, Launch, Scratch
from graphc.codegen.text.access import indented, parameters
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import Operand, Places, offset, operand, row_major, widest_index
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.ir.graph import Node, Value
from graphc.ir.types import DType, bool_, float64
from graphc.ops.random import least_that_stays
from graphc.ops.tiled_attention import TiledAttention

OF_KEYS = ("k", "v", "dk", "dv")
"""Operands with one head per head of keys, rather than per head of queries."""

COUNTERS = ("seed", "step")
"""Operands without batch and heads, such as the seed: every block reads the same elements."""

Axis = Literal["rows", "columns"]
"""The name of an axis of scores: "rows" for queries, "columns" for keys."""

AXES: tuple[Axis, ...] = ("rows", "columns")


class AttentionKernel:
    """Writer of the common parts of an attention kernel's text. A block owns a tile of one axis and
    iterates over tiles of the other axis. Subclasses set the sizes.
    """

    owned_tile: int
    """Number of rows or columns that a block owns."""
    other_tile: int
    """Number of rows or columns of the other axis per tile."""
    block: int
    """Threads per block."""

    def __init__(self, node: Node, places: Places, owned: Axis) -> None:
        named_values = {**node.named_inputs(), **node.named_outputs()}
        values = {name: v for name, v in named_values.items() if not isinstance(v, tuple)}
        self.operands = {
            name: operand(name, value, places[value], value.shape) for name, value in values.items()
        }
        q, k, v = (values[name].shape for name in "qkv")
        self.mask: Value | None = None
        assert isinstance(node.op, TiledAttention)
        if node.op.has_mask(node):
            self.mask = values["mask"] = node.inputs[-1]
            full = (*q[:3], k[2])
            self.operands["mask"] = operand("mask", self.mask, places[self.mask], full)
        self.values = values
        self.scratch: dict[str, Scratch] = {}
        self.heads = q[:2]
        self.blocks_of = q[:2] if owned == "rows" else k[:2]
        """Batch size and number of heads of the owned axis: one block per head and owned tile."""
        self.shared = q[1] // k[1]
        """Number of heads of queries per head of keys."""
        self.extents: dict[Axis, int] = {"rows": q[2], "columns": k[2]}
        self.owned_axis: Axis = owned
        self.other_axis: Axis = "columns" if owned == "rows" else "rows"
        self.owned, self.others = self.extents[owned], self.extents[self.other_axis]
        self.widths = {"q": q[3], "k": k[3], "v": v[3], "y": v[3], "dy": v[3]}
        self.widths |= {f"d{name}": self.widths[name] for name in "qkv"}
        self.attributes = node.attributes
        self.drops = "seed" in values
        """True if dropout is applied to the weights."""
        self.held: DType = arithmetic_dtype(values["q"].type.dtype)
        self.real = C_TYPES[self.held]

    def with_along(self, along: Scratch) -> None:
        """Add an operand: the scratch tensor with the sums of dy · y along rows."""
        shape = (*self.heads, self.extents["rows"])
        self.operands["along"] = Operand("along", self.held, row_major(shape), along)
        self.scratch["along"] = along

    @property
    def optional(self) -> tuple[str, ...]:
        """The names of the optional operands that the node has."""
        return (COUNTERS if self.drops else ()) + (() if self.mask is None else ("mask",))

    @property
    def adds_mask(self) -> bool:
        """True if the mask has floats, which are added to the scores, rather than bools."""
        return self.mask is not None and self.mask.type.dtype != bool_

    @property
    def suffix(self) -> str:
        """The suffix of C math functions for the dtype of the arithmetic, such as f for float32."""
        return "" if self.held == float64 else "f"

    @property
    def lowest(self) -> str:
        """C++ for the score of a masked element, minus infinity."""
        return f"-infinite({self.number(0.0)})"

    @property
    def first_peak(self) -> str:
        """C++ for the initial value of a row's peak. It is minus infinity without a mask. With a
        mask it is the least finite number: all keys of a row may be hidden, and the difference of
        two minus infinities is NaN.
        """
        if self.mask is None:
            return self.lowest
        return self.number(float(np.finfo(self.held.numpy).min))

    @property
    def unseen_rows(self) -> list[str]:
        """Statements that set the peak to 0 and the sum to 1 in rows whose keys are all hidden by a
        mask."""
        one, zero = self.number(1.0), self.number(0.0)
        # The sum of a row that sees a key is at least 1.
        found = [
            f"peak[i] = total[i] < {one} ? {zero} : peak[i];",
            f"total[i] = maximum(total[i], {one});",
        ]
        return [] if self.mask is None else found

    def number(self, value: float) -> str:
        """Return a number as a C++ literal in the dtype of the arithmetic."""
        return literal(value, self.held)

    def at(self, name: str, place: str, column: str | None = None) -> str:
        """Return C++ for the element of an operand at `place` and `column`, in the head of this
        block."""
        o = self.operands[name]
        last = offset((place, column), o.strides[2:]) if column else offset((place,), o.strides[2:])
        return f"{name}[{name}_head + {last}]"

    def heads_of(self, names: Sequence[str]) -> list[str]:
        """Return statements that compute the offset of the block's head in each operand."""
        return [
            f"const Index {name}_head = "
            f"{offset(('batch', self._head_of(name)), self.operands[name].strides[:2])};"
            for name in names
            if name not in COUNTERS
        ]

    def _head_of(self, name: str) -> str:
        """Return the name of the C++ variable that holds the index of an operand's head."""
        if self.shared == 1:
            return "head"
        return "key_head" if name in OF_KEYS else "query_head"

    def seen(self) -> str:
        """Return a C++ condition: the row attends to the column, which exists and is not masked."""
        conditions = [f"{axis[:-1]} < {self.extents[axis]}u" for axis in self.ragged]
        shift = self.attributes.shift(self.extents["rows"], self.extents["columns"])
        if shift is not None:
            conditions.append(f"column <= row + {shift}u")
        if self.mask is not None and not self.adds_mask:
            conditions.append(self.at("mask", "row", "column"))
        return " && ".join(conditions) or "true"

    @property
    def ragged(self) -> tuple[Axis, ...]:
        """The axes whose last tile is not full."""
        sizes = {self.owned_axis: self.owned_tile, self.other_axis: self.other_tile}
        return tuple(axis for axis in AXES if self.extents[axis] % sizes[axis])

    def added(self) -> list[str]:
        """Return the statement that reads the number that a float mask adds to a score; none for
        other masks."""
        if not self.adds_mask:
            return []
        read = f"widen({self.at('mask', 'row', 'column')})"
        return [f"const {self.real} added = seen ? {read} : {self.number(0.0)};"]

    @property
    def weight_number(self) -> str:
        """C++ for the number of the weight at `row` and `column`, among all weights."""
        rows, columns = self.extents["rows"], self.extents["columns"]
        line = f"(batch * {self.heads[1]}ull + {self._head_of('q')}) * {rows}u + row"
        return f"({line}) * {columns}u + column"

    @property
    def least_that_stays(self) -> str:
        """C++ for the least 24 random bits for which a weight stays."""
        return f"{least_that_stays(self.attributes.rate)}u"

    @property
    def factor_of_kept(self) -> float:
        """The factor 1 / (1 - rate) of the weights that dropout keeps."""
        return 1 / (1 - self.attributes.rate) if self.drops else 1.0

    def raised(self, number: str) -> str:
        """Return C++ for a number multiplied by `factor_of_kept`."""
        return f"{number} * {self.number(self.factor_of_kept)}" if self.drops else number

    def launch(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        shared: Sequence[str],
        before: Sequence[str],
        first: Sequence[str],
        each: Sequence[str],
        after: Sequence[str],
    ) -> Launch:
        """Return the launch of a kernel that runs `each` for every tile.

        `shared` declares shared memory. `first` precedes each loop over tiles; `before` and `after`
        enclose all loops.
        """
        own_tiles = -(-self.owned // self.owned_tile)
        names = [*inputs, *outputs]
        drawn = "{unsigned(seed[0]), unsigned(seed[1]), number, unsigned(step[0])}"
        body = [
            *shared,
            *([f"const Stream stream = {drawn};"] if self.drops else []),
            f"const Index base = blockIdx.x % {own_tiles}u * {self.owned_tile}u;",
            f"const Index batch = blockIdx.x / {own_tiles}u / {self.blocks_of[1]}u;",
            f"const Index head = blockIdx.x / {own_tiles}u % {self.blocks_of[1]}u;",
            *self._through_others(names, before, first, each),
            *after,
        ]
        read = [self.operands[name] for name in inputs]
        written = [self.operands[name] for name in outputs]
        spans = [(self._shape_of(o), o) for o in (*read, *written)]
        given = parameters(read, written) + (", unsigned number" if self.drops else "")
        text = (
            f'extern "C" __global__ void {ENTRY}({given}) {{\n'
            f"    using Index = {widest_index(spans)};\n{indented(body, 1)}\n}}\n"
        )
        arguments: tuple[Argument, ...] = tuple(
            self.scratch.get(o.name) or self.values[o.name] for o in (*read, *written)
        )
        if self.drops:
            arguments += (self.attributes.stream,)
        grid = own_tiles * self.blocks_of[0] * self.blocks_of[1]
        return Launch(named("attention", text), arguments, grid, self.block)

    def _through_others(
        self,
        names: Sequence[str],
        before: Sequence[str],
        first: Sequence[str],
        each: Sequence[str],
    ) -> list[str]:
        """Return `before`, then loops that run `each` for every tile of every head that the block
        visits."""
        start, end = self.range
        step = f"at += {self.other_tile}u"
        loop = [
            *first,
            f"for (Index at = {start}; at < {end}; {step}) {{\n{indented(each, 1)}\n}}",
        ]
        if self.shared == 1:
            return [*self.heads_of(names), *before, *loop]
        if self.owned_axis == "rows":
            heads = [
                "const Index query_head = head;",
                f"const Index key_head = head / {self.shared}u;",
            ]
            return [*heads, *self.heads_of(names), *before, *loop]
        own = [name for name in names if name in OF_KEYS]
        inner = [
            f"const Index query_head = key_head * {self.shared}u + member;",
            *self.heads_of([name for name in names if name not in OF_KEYS]),
            *loop,
        ]
        return [
            "const Index key_head = head;",
            *self.heads_of(own),
            *before,
            f"for (Index member = 0; member < {self.shared}u; ++member) {{\n"
            f"{indented(inner, 1)}\n}}",
        ]

    def _shape_of(self, o: Operand) -> tuple[int, ...]:
        """Return the shape of the tensor of an operand, which may be scratch."""
        if o.name in self.values:
            return self.values[o.name].shape
        return (*self.heads, self.extents["rows"])

    @property
    def range(self) -> tuple[str, str]:
        """C++ for the start and the end of the range of the other axis that the causal mask leaves
        visible to the owned tile."""
        rows, columns = self.extents["rows"], self.extents["columns"]
        shift, own, step = self.attributes.shift(rows, columns), self.owned_tile, self.other_tile
        if shift is None:
            return "0u", f"{self.others}u"
        if self.owned_axis == "rows":
            most = min(rows, columns - shift)  # rows from here on see all columns
            last = f"(base + {own}u < {most}u ? base + {own}u : {most}u)"
            return "0u", f"{last} + {shift}u"
        if own % step:
            raise ValueError(
                f"the owned tile size must be a multiple of the other tile size {step}, got {own}"
            )
        first = f"(base - {shift}u) / {step}u * {step}u" if shift else "base"
        return (f"(base > {shift}u ? {first} : 0u)" if shift else first), f"{rows}u"
