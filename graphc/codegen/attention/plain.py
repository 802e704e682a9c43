"""Kernels of fused attention in any dtype, without tensor cores; they favor simplicity over speed.

A block owns 32 rows of queries, or 32 keys, and iterates over tiles of 32 of the other axis. A warp
takes four owned rows; its lanes correspond to the 32 rows of a tile. So one thread computes each
score of a tile, and a sum along the other axis stays within a warp.

Consecutive lanes read operands element by element along their last axis, one chunk of a row at a
time. They are converted to the dtype of the arithmetic in shared memory. A row of a tile is padded
by one element, so that lanes that read a column access different banks.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.attention.kernel import AttentionKernel, Axis
from graphc.codegen.node_calls import Launch, Scratch
from graphc.codegen.text.access import indented
from graphc.codegen.text.grid import WARP
from graphc.codegen.text.operands import Places
from graphc.ir.graph import Node
from graphc.ir.types import float64

OWNED = 4
"""Number of owned rows or columns of a tile per warp."""
WIDEST_CHUNK = 64
"""Number of elements of a row that are in shared memory at a time; half as many in float64."""

UNROLLED = {"c": " 4", "n": " 2"}
"""Unroll factors, by loop counter, of loops that do not index registers."""

EVERY = f"#pragma unroll\nfor (unsigned i = 0; i < {OWNED}u; ++i)"
"""The head of a loop over the owned rows or columns of a warp."""


class PlainKernel(AttentionKernel):
    """Writer of the parts of an attention kernel's text that load tiles, multiply them and store
    results."""

    owned_tile = other_tile = WARP
    block = WARP // OWNED * WARP
    """Number of threads: one warp for every four owned rows."""

    def __init__(self, node: Node, places: Places, owned: Axis) -> None:
        super().__init__(node, places, owned)
        wide = max(self.widths.values()) > WARP and self.held != float64
        self.chunk = WIDEST_CHUNK if wide else WARP

    @property
    def score(self) -> str:
        """C++ for the score, before masking, of an owned row or column and the lane's row of the
        other axis."""
        scaled = f"score[i] * {self.number(self.attributes.scale)}"
        return f"({scaled} + added)" if self.adds_mask else scaled

    def where_it_stays(self, number: str) -> str:
        """Return C++ for `number`, or for 0 if dropout removes the weight at `row` and `column`."""
        if not self.drops:
            return number
        stays = f"stays({self.weight_number}, stream, {self.least_that_stays})"
        return f"({stays} ? {number} : {self.number(0.0)})"

    def parts(self, name: str) -> int:
        """Return the number of elements of an operand's row per lane, rounded up to whole
        chunks."""
        return -(-self.widths[name] // self.chunk) * (self.chunk // WARP)

    def tiles(self, *names: str) -> list[str]:
        """Return declarations of the tiles and of the thread's position."""
        return [
            f"__shared__ {self.real} own_tile[{WARP}][{self.chunk + 1}];",
            f"__shared__ {self.real} other_tile[{WARP}][{self.chunk + 1}];",
            *(f"__shared__ {self.real} {name}[{WARP}][{WARP}];" for name in names),
            "const unsigned lane = threadIdx.x % WARP;",
            f"const unsigned mine = threadIdx.x / WARP * {OWNED}u;",
        ]

    def load(self, tile: str, name: str, first: str, extent: int) -> str:
        """Return a loop that loads one chunk of 32 rows of an operand, from row `first` on, into a
        tile.

        Elements outside the operand are zero.
        """
        inside = f"row < {extent}u && column < {self.widths[name]}u"
        read = f"widen({self.at(name, 'row', 'column')})"
        return (
            f"for (unsigned n = threadIdx.x; n < {WARP * self.chunk}u; n += {self.block}u) {{\n"
            f"    const Index row = {first} + n / {self.chunk}u;\n"
            f"    const Index column = chunk + n % {self.chunk}u;\n"
            f"    {tile}[n / {self.chunk}u][n % {self.chunk}u] =\n"
            f"        {inside} ? {read} : {self.number(0.0)};\n"
            "}"
        )

    def dots(self, result: str, own: str, other: str) -> str:
        """Return code that computes `result[i]`: the dot product of owned row i of `own` and the
        lane's row of `other`."""
        inner = [
            "__syncthreads();",  # all threads have read the previous contents of the tiles
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
        """Return code that adds to `result[i]` the rows of an operand's tile, each times its factor
        for row i."""
        lanes = self.chunk // WARP
        inner = [
            "__syncthreads();",
            self.load("other_tile", other, "at", self.others),
            "__syncthreads();",
            f"for (unsigned c = 0; c < {WARP}u; ++c)",
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
        """Return a loop in which each warp stores its owned rows of a result."""
        return self._unrolled(
            f"for (unsigned i = 0; i < {OWNED}u; ++i)\n"
            f"    for (unsigned t = 0; t < {self.parts(name)}u; ++t) {{\n"
            "        const Index row = base + mine + i;\n"
            f"        const Index column = t * {WARP}u + lane;\n"
            f"        if (row < {self.owned}u && column < {self.widths[name]}u)\n"
            f"            narrow({result}[i][t], {self.at(name, 'row', 'column')});\n"
            "    }"
        )

    def per_owned(self, body: Sequence[str]) -> str:
        """Return a loop that runs `body` for each owned row and the lane's row of the tile, as
        variables `row` and `column`."""
        own, other = ("row", "column") if self.owned_axis == "rows" else ("column", "row")
        inner = [
            f"const Index {own} = base + mine + i;",
            f"const Index {other} = at + lane;",
            f"const bool seen = {self.seen()};",
            *self.added(),
            *body,
        ]
        loop = f"for (unsigned i = 0; i < {OWNED}u; ++i)"
        return f"#pragma unroll\n{loop} {{\n{indented(inner, 1)}\n}}"

    @staticmethod
    def _unrolled(text: str) -> str:
        """Return C++ text with an unroll pragma before each loop.

        Loops that index registers must be unrolled, otherwise the registers are moved to memory.
        Other loops are unrolled by a small factor, which limits the compiler's work.
        """
        lines = []
        for line in text.split("\n"):
            indent = " " * (len(line) - len(line.lstrip()))
            if line.lstrip().startswith("for (unsigned "):
                counter = line.lstrip()[len("for (unsigned ")]
                lines.append(f"{indent}#pragma unroll{UNROLLED.get(counter, '')}")
            lines.append(line)
        return "\n".join(lines)


def attention(node: Node, places: Places) -> Launch:
    """Return the launch of the forward pass, whose blocks own queries and iterate over the keys."""
    kernel = PlainKernel(node, places, "rows")
    real, parts = kernel.real, kernel.parts("y")
    before = [
        f"{real} peak[{OWNED}], total[{OWNED}] = {{}}, result[{OWNED}][{parts}] = {{}};",
        f"{EVERY} peak[i] = {kernel.first_peak};",
    ]
    each = [
        kernel.dots("score", "q", "k"),
        kernel.per_owned(_corrected(kernel)),
        kernel.sums("result", "weights", "v"),
    ]
    after = [_divided(kernel), kernel.stored("y", "result")]
    read = ("q", "k", "v", *kernel.optional)
    return kernel.launch(read, ("y", "stats"), kernel.tiles("weights"), before, [], each, after)


def _corrected(kernel: PlainKernel) -> list[str]:
    """Return the statements that process one tile for row i: raise the peak, rescale the sums so
    far, and add the tile's weights to `total`.

    `result` is updated later, after all rows of the tile have their weights.
    """
    real, exp, zero = kernel.real, f"exp{kernel.suffix}", kernel.number(0.0)
    parts = kernel.parts("y")
    return [
        f"const {real} here = seen ? {kernel.score} : {kernel.lowest};",
        f"const {real} highest = maximum(peak[i], across_row<Max, WARP>(here));",
        # Rows beyond the last one see nothing and are not stored.
        f"const {real} weight = seen ? {exp}(here - highest) : {zero};",
        # In a row's first tile the peak is minus infinity, so `kept` is zero.
        f"const {real} kept = {exp}(peak[i] - highest);",
        "total[i] = total[i] * kept + across_row<Sum, WARP>(weight);",
        "peak[i] = highest;",
        f"weights[mine + i][lane] = {kernel.where_it_stays('weight')};",
        f"#pragma unroll\nfor (unsigned t = 0; t < {parts}u; ++t) result[i][t] *= kept;",
    ]


def _divided(kernel: PlainKernel) -> str:
    """Return a loop that divides each owned row by its sum of weights and stores the row's peak +
    log(sum)."""
    parts, log = kernel.parts("y"), f"log{kernel.suffix}"
    share = f"{kernel.raised('result[i][t]')} / total[i]"
    body = [
        *kernel.unseen_rows,
        f"#pragma unroll\nfor (unsigned t = 0; t < {parts}u; ++t) result[i][t] = {share};",
        "const Index row = base + mine + i;",
        f"if (lane == 0 && row < {kernel.owned}u)",
        f"    {kernel.at('stats', 'row')} = peak[i] + {log}(total[i]);",
    ]
    return f"{EVERY} {{\n{indented(body, 1)}\n}}"


def _slope(kernel: PlainKernel, store: Sequence[str]) -> str:
    """Return a loop that computes the weight and the gradient of each score, then runs `store`."""
    zero, scale = kernel.number(0.0), kernel.number(kernel.attributes.scale)
    stats, along = (f"widen({kernel.at(name, 'row')})" for name in ("stats", "along"))
    weight = f"exp{kernel.suffix}({kernel.score} - {stats})"
    reach = kernel.where_it_stays(kernel.raised("reach[i]"))
    return kernel.per_owned(
        [
            f"const {kernel.real} weight = seen ? {weight} : {zero};",
            f"const {kernel.real} slope =",
            f"    seen ? weight * ({reach} - {along}) * {scale} : {zero};",
            *store,
        ]
    )


def key_gradients(node: Node, places: Places, along: Scratch) -> Launch:
    """Return the launch that computes dk and dv; its blocks own keys and iterate over the
    queries."""
    kernel = PlainKernel(node, places, "columns")
    kernel.with_along(along)
    before = [
        f"{kernel.real} dk_sum[{OWNED}][{kernel.parts('k')}] = {{}};",
        f"{kernel.real} dv_sum[{OWNED}][{kernel.parts('v')}] = {{}};",
    ]
    weight = kernel.where_it_stays(kernel.raised("weight"))
    store = [f"weights[mine + i][lane] = {weight};", "slopes[mine + i][lane] = slope;"]
    each = [
        kernel.dots("score", "k", "q"),
        kernel.dots("reach", "v", "dy"),
        _slope(kernel, store),
        kernel.sums("dv_sum", "weights", "dy"),
        kernel.sums("dk_sum", "slopes", "q"),
    ]
    after = [kernel.stored("dk", "dk_sum"), kernel.stored("dv", "dv_sum")]
    inputs = ("dy", "q", "k", "v", "stats", "along", *kernel.optional)
    tiles = kernel.tiles("weights", "slopes")
    return kernel.launch(inputs, ("dk", "dv"), tiles, before, [], each, after)


def query_gradient(node: Node, places: Places, along: Scratch) -> Launch:
    """Return the launch that computes dq; its blocks own queries and iterate over the keys."""
    kernel = PlainKernel(node, places, "rows")
    kernel.with_along(along)
    before = [f"{kernel.real} dq_sum[{OWNED}][{kernel.parts('q')}] = {{}};"]
    each = [
        kernel.dots("score", "q", "k"),
        kernel.dots("reach", "dy", "v"),
        _slope(kernel, ["slopes[mine + i][lane] = slope;"]),
        kernel.sums("dq_sum", "slopes", "k"),
    ]
    after = [kernel.stored("dq", "dq_sum")]
    inputs = ("dy", "q", "k", "v", "stats", "along", *kernel.optional)
    return kernel.launch(inputs, ("dq",), kernel.tiles("slopes"), before, [], each, after)
