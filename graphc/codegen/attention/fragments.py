"""Text of fused attention kernels on tensor cores: tiles in shared memory, products of fragments.

A block owns 64 rows of queries, or 64 keys, and iterates over tiles of the other operand. Each of
its four warps takes 16 owned rows. It multiplies 16 x 16 fragments of them with 16 x 8 fragments of
the tile (PTX, `mma.m16n8k16`). Operands are stored in shared memory in 16 bits. The next tile is
copied while the current one is computed. Rows in shared memory are padded by 16 bytes, so that the
eight rows of a fragment fall into different banks.

The strides decide which operands are copied 16 bytes at a time; the results do not depend on
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.codegen.attention.kernel import AttentionKernel, Axis
from graphc.codegen.text.access import indented
from graphc.codegen.text.operands import VECTOR_BYTES, Places
from graphc.codegen.text.scalar import C_TYPES
from graphc.ir.graph import Node
from graphc.ir.types import align

WARPS, OWNED = 4, 16
"""Number of warps per block, and number of owned rows per warp."""

LANES = 8
"""Number of 16-bit elements in 16 bytes."""

MOST_SHARED = 48 * 2**10
"""Maximum bytes of shared memory per block that every device supports."""

SIZES = ((64, 2), (32, 2), (16, 2), (16, 1))
"""Candidate pairs of rows per tile and number of tiles in shared memory, best first."""

LOG2_E = math.log2(math.e)


class TensorCoreKernel(AttentionKernel):
    """Writer of the parts of an attention kernel's text that use tensor cores.

    `owned_tiles` names the operands whose owned rows are kept in shared memory. `other_tiles` names
    the operands whose tiles are loaded one after another.
    """

    owned_tile = WARPS * OWNED
    block = WARPS * 32

    def __init__(
        self,
        node: Node,
        places: Places,
        owned: Axis,
        owned_tiles: Sequence[str],
        other_tiles: Sequence[str],
    ) -> None:
        super().__init__(node, places, owned)
        self.narrow = C_TYPES[self.values["q"].type.dtype]
        self.owned_tiles, self.other_tiles = owned_tiles, other_tiles
        self.wide = {name: align(width, OWNED) for name, width in self.widths.items()}
        """For each operand, the elements of a row, rounded up to whole fragments."""
        own, other = (
            sum(2 * (self.wide[name] + LANES) for name in names)
            for names in (owned_tiles, other_tiles)
        )
        self.other_tile, self.stages = next(
            (count, stages)
            for count, stages in SIZES
            if self.owned_tile * own + count * stages * (other + 8) <= MOST_SHARED
        )
        self.unit = self.number(LOG2_E)
        self.factor = self.number(self.attributes.scale * (1.0 if self.adds_mask else LOG2_E))
        """The factor by which scores are multiplied before the exponential.

        It includes log2(e), so that weights are powers of two, unless a mask is added to the
        scores: the sum might then overflow.
        """

    @property
    def tiles(self) -> list[str]:
        """Declarations of the tiles and of the thread's position.

        A thread has the rows `line` and `line + 8` of its warp, and columns `pair` and `pair + 1`
        of each fragment of 8.
        """
        declared = [
            f"alignas(16) __shared__ {self.narrow} {name}_tile[{self.owned_tile}]"
            f"[{self.wide[name] + LANES}];"
            for name in self.owned_tiles
        ]
        declared += [
            f"alignas(16) __shared__ {self.narrow} {name}_tile[{self.stages}][{self.other_tile}]"
            f"[{self.wide[name] + LANES}];"
            for name in self.other_tiles
        ]
        return [
            *declared,
            "const unsigned lane = threadIdx.x % WARP;",
            f"const unsigned mine = threadIdx.x / WARP * {OWNED}u;",
            "const unsigned line = lane / 4u, pair = lane % 4u * 2u;",
            "unsigned stage = 0;",
        ]

    def load_owned(self) -> list[str]:
        """Return statements that start copying the owned rows to shared memory."""
        return [
            self._load(f"{name}_tile", name, "base", self.owned_tile, self.owned)
            for name in self.owned_tiles
        ]

    def first(self, numbers: Sequence[str] = ()) -> list[str]:
        """Return the statements before the loop over tiles; with two tiles in shared memory, they
        start copying the first one."""
        if self.stages == 1:
            return []
        start, _ = self.range
        return self._load_others("stage", start, numbers)

    def next(self, numbers: Sequence[str] = ()) -> list[str]:
        """Return statements that wait for the tile of this iteration and start copying the next
        one.

        With a single tile in shared memory, they copy the tile of this iteration and wait for it.
        """
        if self.stages == 1:
            copied = self._load_others("stage", "at", numbers)
            return [*copied, "copies_arrived<0>();", "__syncthreads();"]
        _, end = self.range
        following = f"at + {self.other_tile}u"
        copied = self._load_others("stage ^ 1u", following, numbers)
        return [
            f"if ({following} < {end}) {{\n{indented(copied, 1)}\n}} else copies_sent();",
            "copies_arrived<1>();",
            "__syncthreads();",
        ]

    @property
    def done(self) -> list[str]:
        """Statements that end an iteration: wait until all threads have read the tile, then switch
        to the next."""
        return ["__syncthreads();", *(["stage ^= 1u;"] if self.stages > 1 else [])]

    def _load_others(self, stage: str, first: str, numbers: Sequence[str]) -> list[str]:
        copies = [
            self._load(f"{name}_tile[{stage}]", name, first, self.other_tile, self.others)
            for name in self.other_tiles
        ]
        copies += [
            f"if (threadIdx.x < {self.other_tile}u) {{\n"
            f"    const Index row = {first} + threadIdx.x;\n"
            f"    {name}_tile[{stage}][threadIdx.x] =\n"
            f"        row < {self.others}u ? widen({self.at(name, 'row')}) : {self.number(0.0)};\n"
            "}"
            for name in numbers
        ]
        return [*copies, "copies_sent();"]

    def _load(self, tile: str, name: str, first: str, count: int, extent: int) -> str:
        """Return a loop that starts copying `count` rows of an operand, from row `first` on, into a
        tile.

        Elements outside the operand are zero.
        """
        step = LANES if self.is_aligned(name) else 1
        packs = self.wide[name] // step
        inside = f"row < {extent}u && column < {self.widths[name]}u"
        source, target = self.at(name, "row", "column"), f"{tile}[n / {packs}u][column]"
        if step == 1:
            moved = f"{target} = {inside} ? {source} : {self.narrow}{{}};"
        else:
            moved = f"copy_pack(&{target}, {inside} ? &{source} : {name}, {inside});"
        return (
            f"for (unsigned n = threadIdx.x; n < {count * packs}u; n += {self.block}u) {{\n"
            f"    const Index row = {first} + n / {packs}u;\n"
            f"    const unsigned column = n % {packs}u * {step}u;\n"
            f"    {moved}\n"
            "}"
        )

    def is_aligned(self, name: str) -> bool:
        """Return true if each row of an operand consists of whole, aligned packs of 16 bytes."""
        o, size = self.operands[name], self.values[name].type.dtype.itemsize
        return (
            self.widths[name] % LANES == 0
            and o.address % VECTOR_BYTES == 0
            and all(stride * size % VECTOR_BYTES == 0 for stride in o.strides[:3])
            and o.strides[3] == 1
        )

    def dots(self, result: str, own: str, other: str) -> str:
        """Return code that declares `result`: dot products of the warp's rows of `own` and the
        tile's rows of `other`, stored as fragments of 8 columns.
        """
        fragments = self.other_tile // 8
        own_row = f"{own}_tile[mine + lane % 16u][c * 16u + lane / 16u * 8u]"
        row, column = "j * 8u + lane / 16u * 8u + lane % 8u", "c * 16u + lane / 8u % 2u * 8u"
        return (
            f"float {result}[{fragments}][4] = {{}};\n"
            "#pragma unroll\n"
            f"for (unsigned c = 0; c < {self.wide[own] // 16}u; ++c) {{\n"
            "    unsigned mine_part[4];\n"
            f"    load_fragments(mine_part, &{own_row});\n"
            "    #pragma unroll\n"
            f"    for (unsigned j = 0; j < {fragments}u; j += 2u) {{\n"
            "        unsigned other_part[4];\n"
            f"        load_fragments(other_part, &{other}_tile[stage][{row}][{column}]);\n"
            + self._multiplied(result)
            + "    }\n}"
        )

    def sums(self, result: str, factors: str, other: str) -> str:
        """Return code that adds to `result` the matrix product of `factors` and the tile's rows of
        an operand."""
        corners = ((0, 0), (0, 2), (1, 0), (1, 2))
        parts = ", ".join(
            f"pair_of({factors}[2u * c + {j}u][{e}], {factors}[2u * c + {j}u][{e + 1}], "
            f"{self.narrow}{{}})"
            for j, e in corners
        )
        place = "[c * 16u + lane % 16u][j * 8u + lane / 16u * 8u]"
        return (
            "#pragma unroll\n"
            f"for (unsigned c = 0; c < {self.other_tile // 16}u; ++c) {{\n"
            f"    const unsigned mine_part[4] = {{{parts}}};\n"
            "    #pragma unroll\n"
            f"    for (unsigned j = 0; j < {self.wide[other] // 8}u; j += 2u) {{\n"
            "        unsigned other_part[4];\n"
            f"        load_transposed(other_part, &{other}_tile[stage]{place});\n"
            + self._multiplied(result)
            + "    }\n}"
        )

    def _multiplied(self, result: str) -> str:
        return "".join(
            f"        multiply_fragments({result}[j + {n}u], mine_part, other_part[{2 * n}], "
            f"other_part[{2 * n + 1}], {self.narrow}{{}});\n"
            for n in (0, 1)
        )

    def sum_of(self, result: str, name: str) -> str:
        """Return the declaration of a sum with the shape of the warp's rows of an operand,
        initially 0."""
        return f"float {result}[{self.wide[name] // 8}][4] = {{}};"

    def per_pair(self, body: Sequence[str]) -> str:
        """Return a loop that runs `body` for each pair of an owned row and a tile row of this
        thread, as variables `row` and `column`.

        A pair is element e of fragment j, which is in the thread's row number `e / 2`.
        """
        inner = [
            *self._place_of_pair(),
            f"const bool seen = all_seen || ({self.seen()});",
            *self.added(),
            *body,
        ]
        return self.per_number(inner)

    def _place_of_pair(self) -> list[str]:
        own, other = ("row", "column") if self.owned_axis == "rows" else ("column", "row")
        return [
            f"const Index {own} = base + mine + line + e / 2u * 8u;",
            f"const Index {other} = at + j * 8u + pair + e % 2u;",
        ]

    @property
    def drawn(self) -> list[str]:
        """Statements that draw the dropout mask of a tile: bit `4j + e` of `kept` for element e of
        fragment j.

        One block of random words serves both elements of a pair if the pair is in one row and the
        number of columns is even.
        """
        if not self.drops:
            return []
        is_pair = self.owned_axis == "rows" and self.extents["columns"] % 2 == 0
        step, bits = (2, 3) if is_pair else (1, 1)
        inner = [*self._place_of_pair(), f"kept |= ({self.stays()} & {bits}u) << (j * 4u + e);"]
        return [
            "unsigned kept = 0;",
            f"#pragma unroll\nfor (unsigned j = 0; j < {self.other_tile // 8}u; ++j)\n"
            f"    #pragma unroll\n    for (unsigned e = 0; e < 4u; e += {step}u) {{\n"
            f"{indented(inner, 2)}\n    }}",
        ]

    def where_it_stays(self, number: str) -> str:
        """Return C++ for `number`, or for 0 if dropout removes element e of fragment j."""
        if not self.drops:
            return number
        return f"(kept >> (j * 4u + e) & 1u ? {number} : {self.number(0.0)})"

    def per_number(self, body: Sequence[str]) -> str:
        """Return a loop that runs `body` for each element e of each fragment j of a tile."""
        return (
            f"#pragma unroll\nfor (unsigned j = 0; j < {self.other_tile // 8}u; ++j)\n"
            "    #pragma unroll\n    for (unsigned e = 0; e < 4u; ++e) {\n"
            f"{indented(body, 2)}\n    }}"
        )

    @property
    def all_seen(self) -> str:
        """A statement that declares a flag: true if no score of the tile is masked."""
        rows, columns = self.extents["rows"], self.extents["columns"]
        shift = self.attributes.shift(rows, columns)
        seen = (
            f"base + {self.owned_tile}u <= {self.owned}u && "
            f"at + {self.other_tile}u <= {self.others}u"
        )
        row, column, width = "base", "at", self.other_tile
        if self.owned_axis == "columns":
            row, column, width = "at", "base", self.owned_tile
        if shift is not None:
            seen += f" && {column} + {width}u <= {row} + {shift + 1}u"
        return f"const bool all_seen = {'false' if self.mask is not None else seen};"

    @property
    def power(self) -> str:
        """C++ for an unmasked score times `factor`, the unit in which peaks are stored."""
        scaled = f"score[j][e] * {self.factor}"
        return f"({scaled} + added)" if self.adds_mask else scaled

    def weight(self, difference: str) -> str:
        """Return C++ for the weight of a score, given the difference between the score and the
        row's peak."""
        return f"exp2f(({difference}) * {self.unit})" if self.adds_mask else f"exp2f({difference})"

    def stored(self, name: str, result: str) -> str:
        """Return a loop that stores the warp's rows of a result to global memory."""
        value = self.at(name, "row", "column")
        if self.is_aligned(name):
            first, second = f"{result}[t][e]", f"{result}[t][e + 1u]"
            moved = (
                f"Pack<{self.narrow}, 2> both;\n"
                f"        narrow({first}, both.lane[0]);\n"
                f"        narrow({second}, both.lane[1]);\n"
                f"        if (row < {self.owned}u && column < {self.widths[name]}u)\n"
                f"            store<2>(&{value}, both);"
            )
            step = 2
        else:
            moved = (
                f"if (row < {self.owned}u && column < {self.widths[name]}u)\n"
                f"            narrow({result}[t][e], {value});"
            )
            step = 1
        return (
            f"#pragma unroll\nfor (unsigned t = 0; t < {self.wide[name] // 8}u; ++t)\n"
            f"    #pragma unroll\n    for (unsigned e = 0; e < 4u; e += {step}u) {{\n"
            "        const Index row = base + mine + line + e / 2u * 8u;\n"
            "        const unsigned column = t * 8u + pair + e % 2u;\n"
            f"        {moved}\n"
            "    }"
        )
