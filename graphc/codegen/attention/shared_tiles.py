"""Tiles of fused attention in shared memory, and the copies that fill them.

A block owns 64 rows of queries, or 64 keys, and iterates over tiles of the other operand. Operands
are stored in 16 bits. The next tile is copied while the current one is computed. Rows in shared
memory are padded by 16 bytes, so that the eight rows of a fragment fall into different banks.

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


class SharedTiles(AttentionKernel):
    """Writer of the parts of an attention kernel's text that copy tiles to shared memory.

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
        start, end = self.range
        copied = self._load_others("stage", start, numbers)
        if start == "0u":
            return copied
        # A block of the last columns may attend to no row, and reads none.
        return [f"if ({start} < {end}) {{\n{indented(copied, 1)}\n}}"]

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
            f"        row < {self.others}u ? {self.scaled(name)} : {self.number(0.0)};\n"
            "}"
            for name in numbers
        ]
        return [*copies, "copies_sent();"]

    def scaled(self, name: str) -> str:
        """Return C++ for a number of `row`: of `stats` in the unit of scores, of `along` multiplied
        by the scale of attention."""
        if name == "along":
            return f"{self.at(name, 'row')} * {self.number(self.attributes.scale)}"
        read = f"widen({self.at(name, 'row')})"
        return read if self.adds_mask else f"{read} * {self.unit}"

    def _load(self, tile: str, name: str, first: str, count: int, extent: int) -> str:
        """Return a loop that starts copying `count` rows of an operand, from row `first` on, into a
        tile.

        Elements outside the operand are zero.
        """
        step = LANES if self.is_aligned(name) else 1
        packs = self.wide[name] // step
        inside = self._inside(name, extent, count)
        source, target = self.at(name, "row", "column"), f"{tile}[n / {packs}u][column]"
        if step == 1:
            moved = f"{target} = {inside} ? {source} : {self.narrow}{{}};"
        else:
            moved = f"copy_pack(&{target}, {inside} ? &{source} : {name}, {inside});"
        rounds, rest = divmod(count * packs, self.block)
        loop = [
            f"for (unsigned n = threadIdx.x; n < {count * packs}u; n += {self.block}u) {{",
        ]
        if step == LANES and not rest:
            loop = [
                "#pragma unroll",
                f"for (unsigned round = 0; round < {rounds}u; ++round) {{",
                f"    const unsigned n = threadIdx.x + round * {self.block}u;",
            ]
        return "\n".join(
            [
                *loop,
                f"    const Index row = {first} + n / {packs}u;",
                f"    const unsigned column = n % {packs}u * {step}u;",
                f"    {moved}",
                "}",
            ]
        )

    def _inside(self, name: str, extent: int, tile: int) -> str:
        """Return a C++ condition: a place of a tile is inside an operand."""
        conditions = [f"row < {extent}u"] if extent % tile else []
        if self.wide[name] > self.widths[name]:
            conditions.append(f"column < {self.widths[name]}u")
        return " && ".join(conditions) or "true"

    def is_aligned(self, name: str) -> bool:
        """Return true if each row of an operand consists of whole, aligned packs of 16 bytes."""
        o, size = self.operands[name], self.values[name].type.dtype.itemsize
        return (
            self.widths[name] % LANES == 0
            and o.address % VECTOR_BYTES == 0
            and all(stride * size % VECTOR_BYTES == 0 for stride in o.strides[:3])
            and o.strides[3] == 1
        )
