"""The text of kernels of fused attention: tiles in shared memory, products of them, and results.

A block owns 32 rows of queries, or 32 keys, and goes through tiles of the others. A warp takes four
of the owned; its lanes are the 32 others of a tile. Every number of a tile therefore has one thread
that computes it, and a sum along the others stays within a warp.

Operands are read element by element along their last axis by consecutive lanes, one chunk of a row
at a time, and converted to the dtype of the arithmetic in shared memory. A row of a tile there has
one element more than a chunk, so that lanes which read a column meet different banks.

Where heads of queries share keys, a block that owns queries reads the keys of its share. One that
owns keys goes through the queries of every head that shares them, one head after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.codegen.node_calls import Argument, Launch, Scratch
from graphc.codegen.text.access import indented, parameters
from graphc.codegen.text.grid import WARP
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import Operand, Places, offset, operand, widest_index
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.ir.graph import Node, Value
from graphc.ir.types import DType, bool_, float64

TILE = WARP
"""How many rows, and how many columns, a tile has."""
OWNED = 4
"""How many of a tile's owned rows or columns one warp takes."""
BLOCK = TILE // OWNED * WARP
"""Threads of a block: a warp for every four of the owned."""
WIDEST_CHUNK = 64
"""Elements of a row that are in shared memory at a time; half as many in float64."""


OF_KEYS = ("k", "v", "dk", "dv")
"""Operands whose heads are those of keys."""

UNROLLED = {"c": " 4", "n": " 2"}
"""How far loops are unrolled that do not run over registers, by their counter."""


class AttentionKernel:
    """Writes parts of a kernel's text. `owned` and `others` name the axes, "rows" of queries and
    "columns" of keys: a block owns a tile of the one and goes through tiles of the other."""

    def __init__(self, node: Node, places: Places, owned: str, others: str) -> None:
        named_values = {**node.named_inputs(), **node.named_outputs()}
        values = {name: v for name, v in named_values.items() if not isinstance(v, tuple)}
        self.operands = {
            name: operand(name, value, places[value], value.shape) for name, value in values.items()
        }
        q, k, v = (values[name].shape for name in "qkv")
        self.mask: Value | None = None
        if len(node.inputs) == len(node.op.inputs):
            self.mask = values["mask"] = node.inputs[-1]
            full = (*q[:3], k[2])
            self.operands["mask"] = operand("mask", self.mask, places[self.mask], full)
        self.values = values
        self.heads = q[:2]
        self.blocks_of = q[:2] if owned == "rows" else k[:2]
        """Batch and heads of what the blocks own."""
        self.shared = q[1] // k[1]
        """How many heads of queries share one of keys."""
        self.extents = {"rows": q[2], "columns": k[2]}
        self.owned, self.others = self.extents[owned], self.extents[others]
        self.owned_name = owned
        self.widths = {"q": q[3], "k": k[3], "v": v[3], "y": v[3], "dy": v[3]}
        self.widths |= {f"d{name}": self.widths[name] for name in "qkv"}
        self.attributes = node.attributes
        self.held: DType = arithmetic_dtype(values["q"].type.dtype)
        self.real = C_TYPES[self.held]
        wide = max(self.widths.values()) > WARP and self.held != float64
        self.chunk = WIDEST_CHUNK if wide else WARP

    @property
    def masks(self) -> tuple[str, ...]:
        """The name of the mask, if there is one."""
        return () if self.mask is None else ("mask",)

    @property
    def adds_mask(self) -> bool:
        """Whether the mask is of floats."""
        return self.mask is not None and self.mask.type.dtype != bool_

    @property
    def score(self) -> str:
        """C++ for the score of an owned row or column and the lane's other, if it is seen."""
        scaled = f"score[i] * {self.number(self.attributes.scale)}"
        return f"({scaled} + added)" if self.adds_mask else scaled

    @property
    def suffix(self) -> str:
        """The suffix of C's functions for the dtype of the arithmetic."""
        return "" if self.held == float64 else "f"

    def parts(self, name: str) -> int:
        """How many elements of a row of an operand one lane takes, with those behind its end."""
        return -(-self.widths[name] // self.chunk) * (self.chunk // WARP)

    def number(self, value: float) -> str:
        """A number as a literal of the arithmetic's dtype."""
        return literal(value, self.held)

    def at(self, name: str, place: str, column: str | None = None) -> str:
        """C++ for an element of an operand, in the block's head."""
        o = self.operands[name]
        last = offset((place, column), o.strides[2:]) if column else offset((place,), o.strides[2:])
        return f"{name}[{name}_head + {last}]"

    def heads_of(self, names: Sequence[str]) -> list[str]:
        """Statements for where the block's head starts in each operand."""
        return [
            f"const Index {name}_head = "
            f"{offset(('batch', self._head_of(name)), self.operands[name].strides[:2])};"
            for name in names
        ]

    def _head_of(self, name: str) -> str:
        """The name of the number of an operand's head."""
        if self.shared == 1:
            return "head"
        return "key_head" if name in OF_KEYS else "query_head"

    def load(self, tile: str, name: str, first: str, extent: int) -> str:
        """A loop that loads one chunk of 32 rows of an operand, from row `first` on, into a tile;
        zeros stand for what is beyond its ends."""
        inside = f"row < {extent}u && column < {self.widths[name]}u"
        read = f"widen({self.at(name, 'row', 'column')})"
        return (
            f"for (unsigned n = threadIdx.x; n < {TILE * self.chunk}u; n += {BLOCK}u) {{\n"
            f"    const Index row = {first} + n / {self.chunk}u;\n"
            f"    const Index column = chunk + n % {self.chunk}u;\n"
            f"    {tile}[n / {self.chunk}u][n % {self.chunk}u] =\n"
            f"        {inside} ? {read} : {self.number(0.0)};\n"
            "}"
        )

    def dots(self, result: str, own: str, other: str) -> str:
        """`result[i]` becomes the product of owned row i of one operand and the lane's row of
        another."""
        inner = [
            "__syncthreads();",  # all have read what the tiles held before
            self.load("own_tile", own, "base", self.owned),
            self.load("other_tile", other, "at", self.others),
            "__syncthreads();",
            f"for (unsigned c = 0; c < {self.chunk}u; ++c)",
            f"    for (unsigned i = 0; i < {OWNED}u; ++i)",
            f"        {result}[i] += own_tile[mine + i][c] * other_tile[lane][c];",
        ]
        loop = f"for (Index chunk = 0; chunk < {self.widths[own]}u; chunk += {self.chunk}u)"
        return (
            f"{self.real} {result}[{OWNED}] = {{}};\n"
            f"{loop} {{\n{self._unrolled(indented(inner, 1))}\n}}"
        )

    def sums(self, result: str, factors: str, other: str) -> str:
        """`result[i]` grows by the tile's factors times the rows of an operand which it meets."""
        lanes = self.chunk // WARP
        inner = [
            "__syncthreads();",
            self.load("other_tile", other, "at", self.others),
            "__syncthreads();",
            f"for (unsigned c = 0; c < {TILE}u; ++c)",
            f"    for (unsigned i = 0; i < {OWNED}u; ++i)",
            f"        for (unsigned u = 0; u < {lanes}u; ++u)",
            f"            {result}[i][part * {lanes}u + u] +=",
            f"                {factors}[mine + i][c] * other_tile[c][u * {WARP}u + lane];",
        ]
        chunks = self.parts(other) // lanes
        body = self._unrolled(indented(inner, 1))
        return (
            f"#pragma unroll\nfor (unsigned part = 0; part < {chunks}u; ++part) {{\n"
            f"    const Index chunk = part * {self.chunk}u;\n{body}\n}}"
        )

    def stored(self, name: str, result: str) -> str:
        """A loop in which each warp stores its owned rows of a result."""
        return self._unrolled(
            f"for (unsigned i = 0; i < {OWNED}u; ++i)\n"
            f"    for (unsigned t = 0; t < {self.parts(name)}u; ++t) {{\n"
            "        const Index row = base + mine + i;\n"
            f"        const Index column = t * {WARP}u + lane;\n"
            f"        if (row < {self.owned}u && column < {self.widths[name]}u)\n"
            f"            narrow({result}[i][t], {self.at(name, 'row', 'column')});\n"
            "    }"
        )

    def seen(self) -> str:
        """C++ for whether the row sees the column."""
        a, rows, columns = self.attributes, self.extents["rows"], self.extents["columns"]
        seen, shift = f"row < {rows}u && column < {columns}u", a.shift(rows, columns)
        if shift is not None:
            seen += f" && column <= row + {shift}u"
        if self.mask is not None and not self.adds_mask:
            seen += f" && {self.at('mask', 'row', 'column')}"
        return seen

    def per_owned(self, body: Sequence[str]) -> str:
        """A loop over the owned with `body` for each pair of one and the lane's other: it knows the
        two as row and column."""
        own, other = ("row", "column") if self.owned_name == "rows" else ("column", "row")
        inner = [
            f"const Index {own} = base + mine + i;",
            f"const Index {other} = at + lane;",
            f"const bool seen = {self.seen()};",
            *self._added(),
            *body,
        ]
        loop = f"for (unsigned i = 0; i < {OWNED}u; ++i)"
        return f"#pragma unroll\n{loop} {{\n{indented(inner, 1)}\n}}"

    def _added(self) -> list[str]:
        """The statement that reads what a mask of floats adds to a score."""
        if not self.adds_mask:
            return []
        read = f"widen({self.at('mask', 'row', 'column')})"
        return [f"const {self.real} added = seen ? {read} : {self.number(0.0)};"]

    def launch(
        self,
        inputs: Sequence[str],
        outputs: Sequence[str],
        before: Sequence[str],
        each: Sequence[str],
        after: Sequence[str],
        tiles: tuple[str, ...],
        extra: Mapping[str, Scratch] = {},
    ) -> Launch:
        """The launch of a kernel in which `each` runs for every tile of others that an owned one
        meets."""
        own_tiles = -(-self.owned // TILE)
        names = [*inputs, *outputs]
        body = [
            f"__shared__ {self.real} own_tile[{TILE}][{self.chunk + 1}];",
            f"__shared__ {self.real} other_tile[{TILE}][{self.chunk + 1}];",
            *(f"__shared__ {self.real} {tile}[{TILE}][{TILE}];" for tile in tiles),
            "const unsigned lane = threadIdx.x % WARP;",
            f"const unsigned mine = threadIdx.x / WARP * {OWNED}u;",
            f"const Index base = blockIdx.x % {own_tiles}u * {TILE}u;",
            f"const Index batch = blockIdx.x / {own_tiles}u / {self.blocks_of[1]}u;",
            f"const Index head = blockIdx.x / {own_tiles}u % {self.blocks_of[1]}u;",
            *self._through_others(names, before, each),
            *after,
        ]
        read = [self.operands[name] for name in inputs]
        written = [self.operands[name] for name in outputs]
        spans = [(self.shape_of(o), o) for o in (*read, *written)]
        text = (
            f'extern "C" __global__ void {ENTRY}({parameters(read, written)}) {{\n'
            f"    using Index = {widest_index(spans)};\n{indented(body, 1)}\n}}\n"
        )
        arguments: tuple[Argument, ...] = tuple(
            extra[o.name] if o.name in extra else self.values[o.name] for o in (*read, *written)
        )
        grid = own_tiles * self.blocks_of[0] * self.blocks_of[1]
        return Launch(named("attention", text), arguments, grid, BLOCK)

    def _through_others(
        self, names: Sequence[str], before: Sequence[str], each: Sequence[str]
    ) -> list[str]:
        """`before`, then `each` for every tile of others, of every head that has some."""
        start, end = self._range()
        loop = f"for (Index at = {start}; at < {end}; at += {TILE}u) {{\n{indented(each, 1)}\n}}"
        if self.shared == 1:
            return [*self.heads_of(names), *before, loop]
        if self.owned_name == "rows":
            heads = [
                "const Index query_head = head;",
                f"const Index key_head = head / {self.shared}u;",
            ]
            return [*heads, *self.heads_of(names), *before, loop]
        own = [name for name in names if name in OF_KEYS]
        inner = [
            f"const Index query_head = key_head * {self.shared}u + member;",
            *self.heads_of([name for name in names if name not in OF_KEYS]),
            loop,
        ]
        return [
            "const Index key_head = head;",
            *self.heads_of(own),
            *before,
            f"for (Index member = 0; member < {self.shared}u; ++member) {{\n"
            f"{indented(inner, 1)}\n}}",
        ]

    def shape_of(self, o: Operand) -> tuple[int, ...]:
        """The shape of the tensor behind an operand, which may be scratch."""
        if o.name in self.values:
            return self.values[o.name].shape
        return (*self.heads, self.extents["rows"])

    def _range(self) -> tuple[str, str]:
        """C++ for the first of the others that a tile of owned ones meets, and for their end."""
        rows, columns = self.extents["rows"], self.extents["columns"]
        shift = self.attributes.shift(rows, columns)
        if shift is None:
            return "0u", f"{self.others}u"
        if self.owned_name == "rows":
            most = min(rows, columns - shift)  # the first rows that see all are as good as the last
            last = f"(base + {TILE}u < {most}u ? base + {TILE}u : {most}u)"
            return "0u", f"{last} + {shift}u"
        first = f"(base - {shift}u) / {TILE}u * {TILE}u" if shift else "base"
        return (f"(base > {shift}u ? {first} : 0u)" if shift else first), f"{rows}u"

    @staticmethod
    def _unrolled(text: str) -> str:
        """The text with a pragma in front of each loop: loops over registers have to be unrolled,
        else the registers are memory, others a little, for the compiler's sake."""
        lines = []
        for line in text.split("\n"):
            indent = " " * (len(line) - len(line.lstrip()))
            if line.lstrip().startswith("for (unsigned "):
                counter = line.lstrip()[len("for (unsigned ")]
                lines.append(f"{indent}#pragma unroll{UNROLLED.get(counter, '')}")
            lines.append(line)
        return "\n".join(lines)
