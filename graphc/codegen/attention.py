"""Fused attention: tiles of 32 rows by 32 columns, of which no more than one a block is held.

A block owns 32 rows of queries, or, for dk and dv, 32 keys. It goes through tiles of the others in
order. A warp takes four of the owned; its lanes are the 32 others of a tile. The forward pass
corrects its sums where a tile raises a row's maximum (Milakov and Gimelshein, 2018; Dao et al.,
2022). The gradient computes weights again from the logarithms of the rows' sums: one kernel gives
dk and dv, one gives dq, so that nothing is added by atomics, and each sum has one order.

Operands are read element by element along their last axis by consecutive lanes, and converted to
the dtype of the arithmetic in shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.codegen.access import indented, parameters
from graphc.codegen.calls import Argument, Launch, NodeCalls, Scratch
from graphc.codegen.elementwise_ops import Places, Rule
from graphc.codegen.kernel import ENTRY, named
from graphc.codegen.layout import Operand, offset, operand, widest_index
from graphc.codegen.lines import WARP, Lines, Reduce, line_kernel
from graphc.codegen.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.ir.graph import Node
from graphc.ir.types import DType, TensorType, float64

TILE = WARP
"""Rows, and columns, of a tile."""
OWNED = 4
"""Of a tile, by one warp."""
BLOCK = TILE // OWNED * WARP
WIDEST_CHUNK = 64
"""Elements of a row that are in shared memory at a time; half as many in float64."""


UNROLLED = {"c": " 4", "n": " 2"}
"""How far loops are unrolled that do not run over registers, by their counter."""


class _Kernel:
    """The parts of a kernel's text; `owned` and `others` are the extents that tiles cut."""

    def __init__(self, node: Node, places: Places, owned: str, others: str) -> None:
        named_values = {**node.named_inputs(), **node.named_outputs()}
        values = {name: v for name, v in named_values.items() if not isinstance(v, tuple)}
        self.values = values
        self.operands = {
            name: operand(name, value, places[value], value.shape) for name, value in values.items()
        }
        q, k, v = (values[name].shape for name in "qkv")
        self.heads = q[:2]
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
    def suffix(self) -> str:
        """Of C's functions."""
        return "" if self.held == float64 else "f"

    def parts(self, name: str) -> int:
        """Elements of a row of an operand that one lane takes, with those behind its end."""
        return -(-self.widths[name] // self.chunk) * (self.chunk // WARP)

    def number(self, value: float) -> str:
        return literal(value, self.held)

    def at(self, name: str, place: str, column: str | None = None) -> str:
        """An element of the block's head."""
        o = self.operands[name]
        last = offset((place, column), o.strides[2:]) if column else offset((place,), o.strides[2:])
        return f"{name}[{name}_head + {last}]"

    def heads_of(self, names: Sequence[str]) -> list[str]:
        """Where the block's head starts in each operand."""
        indices = ("batch", "head")
        return [
            f"const Index {name}_head = {offset(indices, self.operands[name].strides[:2])};"
            for name in names
        ]

    def load(self, tile: str, name: str, first: str, extent: int) -> str:
        """32 rows of an operand from `first`, one chunk of each; zeros beyond its ends."""
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
        """`result[i]`: the product of an owned row of one operand and the lane's of another."""
        inner = [
            "__syncthreads();",
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
        """`result[i]` grows by the tile's factors times rows of an operand."""
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
        """The owned rows of a result, each by its warp."""
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
        """Whether the row sees the column."""
        a, rows, columns = self.attributes, self.extents["rows"], self.extents["columns"]
        inside = f"row < {rows}u && column < {columns}u"
        return f"{inside} && column <= row + {columns - rows}u" if a.causal else inside

    def per_owned(self, body: Sequence[str]) -> str:
        """`body` for each owned row or column and the lane's other, as row and column."""
        own, other = ("row", "column") if self.owned_name == "rows" else ("column", "row")
        inner = [
            f"const Index {own} = base + mine + i;",
            f"const Index {other} = at + lane;",
            f"const bool seen = {self.seen()};",
            *body,
        ]
        loop = f"for (unsigned i = 0; i < {OWNED}u; ++i)"
        return f"#pragma unroll\n{loop} {{\n{indented(inner, 1)}\n}}"

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
        """The kernel: `each` runs for every tile of others that one of the owned sees."""
        own_tiles = -(-self.owned // TILE)
        start, end = self._range()
        body = [
            f"__shared__ {self.real} own_tile[{TILE}][{self.chunk + 1}];",
            f"__shared__ {self.real} other_tile[{TILE}][{self.chunk + 1}];",
            *(f"__shared__ {self.real} {tile}[{TILE}][{TILE}];" for tile in tiles),
            "const unsigned lane = threadIdx.x % WARP;",
            f"const unsigned mine = threadIdx.x / WARP * {OWNED}u;",
            f"const Index base = blockIdx.x % {own_tiles}u * {TILE}u;",
            f"const Index batch = blockIdx.x / {own_tiles}u / {self.heads[1]}u;",
            f"const Index head = blockIdx.x / {own_tiles}u % {self.heads[1]}u;",
            *self.heads_of([*inputs, *outputs]),
            *before,
            f"for (Index at = {start}; at < {end}; at += {TILE}u) {{\n{indented(each, 1)}\n}}",
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
        grid = own_tiles * self.heads[0] * self.heads[1]
        return Launch(named("attention", text), arguments, grid, BLOCK)

    def shape_of(self, o: Operand) -> tuple[int, ...]:
        """Of the tensor behind an operand."""
        if o.name in self.values:
            return self.values[o.name].shape
        return (*self.heads, self.extents["rows"])

    def _range(self) -> tuple[str, str]:
        """First and last of the others that a tile of owned ones meets."""
        rows, columns = self.extents["rows"], self.extents["columns"]
        if not self.attributes.causal:
            return "0u", f"{self.others}u"
        if self.owned_name == "rows":
            last = f"(base + {TILE}u < {rows}u ? base + {TILE}u : {rows}u)"
            return "0u", f"{last} + {columns - rows}u"
        shift = columns - rows
        first = f"(base - {shift}u) / {TILE}u * {TILE}u" if shift else "base"
        return (f"(base > {shift}u ? {first} : 0u)" if shift else first), f"{rows}u"

    @staticmethod
    def _unrolled(text: str) -> str:
        """Loops over registers have to be unrolled, else the registers are memory; others little,
        for the compiler's sake."""
        lines = []
        for line in text.split("\n"):
            indent = " " * (len(line) - len(line.lstrip()))
            if line.lstrip().startswith("for (unsigned "):
                counter = line.lstrip()[len("for (unsigned ")]
                lines.append(f"{indent}#pragma unroll{UNROLLED.get(counter, '')}")
            lines.append(line)
        return "\n".join(lines)


def _attention(node: Node, places: Places) -> NodeCalls:
    kernel = _Kernel(node, places, "rows", "columns")
    real, parts, zero = kernel.real, kernel.parts("y"), kernel.number(0.0)
    exp, log = f"exp{kernel.suffix}", f"log{kernel.suffix}"
    lowest = f"-infinite({zero})"
    every = f"#pragma unroll\nfor (unsigned i = 0; i < {OWNED}u; ++i)"
    before = [
        f"{real} peak[{OWNED}], total[{OWNED}] = {{}}, result[{OWNED}][{parts}] = {{}};",
        f"{every} peak[i] = {lowest};",
    ]
    softmax = [
        f"const {real} here = seen ? score[i] * {kernel.number(node.attributes.scale)} : {lowest};",
        f"const {real} highest = maximum(peak[i], across_row<Max, WARP>(here));",
        # A row behind the last one sees nothing, and is not stored.
        f"const {real} weight = seen ? {exp}(here - highest) : {zero};",
        f"const {real} kept = {exp}(peak[i] - highest);",
        "total[i] = total[i] * kept + across_row<Sum, WARP>(weight);",
        "peak[i] = highest;",
        "weights[mine + i][lane] = weight;",
        f"#pragma unroll\nfor (unsigned t = 0; t < {parts}u; ++t) result[i][t] *= kept;",
    ]
    each = [
        kernel.dots("score", "q", "k"),
        kernel.per_owned(softmax),
        kernel.sums("result", "weights", "v"),
    ]
    logarithm = [
        f"#pragma unroll\nfor (unsigned t = 0; t < {parts}u; ++t) result[i][t] /= total[i];",
        "const Index row = base + mine + i;",
        f"if (lane == 0 && row < {kernel.owned}u)",
        f"    {kernel.at('stats', 'row')} = peak[i] + {log}(total[i]);",
    ]
    after = [f"{every} {{\n{indented(logarithm, 1)}\n}}", kernel.stored("y", "result")]
    outputs = ("y", "stats")
    return NodeCalls((kernel.launch(("q", "k", "v"), outputs, before, each, after, ("weights",)),))


def _attention_gradient(node: Node, places: Places) -> NodeCalls:
    """The sums of dy · y along rows, then dk and dv, then dq."""
    q = node.inputs[1]
    held = arithmetic_dtype(q.type.dtype)
    along = Scratch(0)
    launches = (
        _along(node, places, along),
        _key_gradients(node, places, along),
        _query_gradient(node, places, along),
    )
    return NodeCalls(launches, (TensorType(q.shape[:3], held),))


def _along(node: Node, places: Places, along: Scratch) -> Launch:
    dy, y = node.inputs[0], node.inputs[4]
    strides = _row_major(y.shape[:3])
    program = Lines(
        y.shape,
        (3,),
        (operand("dy", dy, places[dy], y.shape), operand("y", y, places[y], y.shape)),
        (Operand("along", arithmetic_dtype(y.type.dtype), (*strides, 0), along),),
        (Reduce("Sum", {"total": "dy * y"}),),
        per_line={"along": "total"},
    )
    return line_kernel("attention_along", program)


def _with_along(kernel: _Kernel, along: Scratch) -> dict[str, Scratch]:
    shape = (*kernel.heads, kernel.extents["rows"])
    kernel.operands["along"] = Operand("along", kernel.held, _row_major(shape), along)
    return {"along": along}


def _slope(kernel: _Kernel, store: Sequence[str]) -> str:
    """The weight of a pair, and the gradient of its score."""
    zero, scale = kernel.number(0.0), kernel.number(kernel.attributes.scale)
    stats, along = (f"widen({kernel.at(name, 'row')})" for name in ("stats", "along"))
    weight = f"exp{kernel.suffix}(score[i] * {scale} - {stats})"
    return kernel.per_owned(
        [
            f"const {kernel.real} weight = seen ? {weight} : {zero};",
            f"const {kernel.real} slope =",
            f"    seen ? weight * (reach[i] - {along}) * {scale} : {zero};",
            *store,
        ]
    )


def _key_gradients(node: Node, places: Places, along: Scratch) -> Launch:
    kernel = _Kernel(node, places, "columns", "rows")
    extra = _with_along(kernel, along)
    before = [
        f"{kernel.real} dk_sum[{OWNED}][{kernel.parts('k')}] = {{}};",
        f"{kernel.real} dv_sum[{OWNED}][{kernel.parts('v')}] = {{}};",
    ]
    store = ["weights[mine + i][lane] = weight;", "slopes[mine + i][lane] = slope;"]
    each = [
        kernel.dots("score", "k", "q"),
        kernel.dots("reach", "v", "dy"),
        _slope(kernel, store),
        kernel.sums("dv_sum", "weights", "dy"),
        kernel.sums("dk_sum", "slopes", "q"),
    ]
    after = [kernel.stored("dk", "dk_sum"), kernel.stored("dv", "dv_sum")]
    inputs = ("dy", "q", "k", "v", "stats", "along")
    return kernel.launch(inputs, ("dk", "dv"), before, each, after, ("weights", "slopes"), extra)


def _query_gradient(node: Node, places: Places, along: Scratch) -> Launch:
    kernel = _Kernel(node, places, "rows", "columns")
    extra = _with_along(kernel, along)
    before = [f"{kernel.real} dq_sum[{OWNED}][{kernel.parts('q')}] = {{}};"]
    each = [
        kernel.dots("score", "q", "k"),
        kernel.dots("reach", "dy", "v"),
        _slope(kernel, ["slopes[mine + i][lane] = slope;"]),
        kernel.sums("dq_sum", "slopes", "k"),
    ]
    inputs = ("dy", "q", "k", "v", "stats", "along")
    return kernel.launch(
        inputs, ("dq",), before, each, [kernel.stored("dq", "dq_sum")], ("slopes",), extra
    )


def _row_major(shape: tuple[int, ...]) -> tuple[int, int, int]:
    _, heads, rows = shape
    return heads * rows, rows, 1


RULES: Mapping[str, Rule] = {
    "attention": _attention,
    "attention_gradient": _attention_gradient,
}
"""Attention and its gradient."""
