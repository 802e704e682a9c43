"""Text of fused attention kernels on tensor cores: products of fragments, hidden scores, dropout.

Each of the four warps of a block takes 16 owned rows. It multiplies 16 x 16 fragments of them with
16 x 8 fragments of a tile (PTX, `mma.m16n8k16`).

One instruction computes 2,048 multiplications and sums, so the instructions per score limit the
speed. Tiles without hidden scores skip the code that hides them, copies of tiles are unrolled, and
factors of a whole row are multiplied once. For sm_90 and heads of 64, a loop over tiles has 5 to 8
instructions per product, and 11 to 15 with dropout.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.attention.kernel import AXES
from graphc.codegen.attention.shared_tiles import SharedTiles
from graphc.codegen.text.access import indented

WEIGHTS_OF_A_BLOCK = 4
"""Number of weights whose dropout is drawn together: a block of random words."""


class TensorCoreKernel(SharedTiles):
    """Writer of the parts of an attention kernel's text that use tensor cores."""

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

    @property
    def factored(self) -> str:
        """A loop that multiplies scores by `factor`, and adds a float mask."""
        product, place = f"rounded_product(score[j][e], {self.factor})", []
        if self.adds_mask:
            place = [*self._place_of_pair(), f"const bool seen = {self.seen()};", *self.added()]
            product += " + added"
        return self.per_number([*place, f"score[j][e] = {product};"])

    def hidden(self, names: Sequence[str], number: str) -> list[str]:
        """Return statements that replace numbers of hidden scores by `number`, if there are any."""
        if not self.hides:
            return []
        replaced = [f"{name}[j][e] = seen ? {name}[j][e] : {number};" for name in names]
        seen = f"const bool seen = {self.seen()};"
        loop = self.per_number([*self._place_of_pair(), seen, *replaced])
        return [f"if (!({self.all_seen}))", loop]

    def _place_of_pair(self) -> list[str]:
        own, other = ("row", "column") if self.owned_axis == "rows" else ("column", "row")
        return [
            f"const Index {own} = base + mine + line + e / 2u * 8u;",
            f"const Index {other} = at + j * 8u + pair + e % 2u;",
        ]

    @property
    def drawn(self) -> list[str]:
        """Statements that draw the dropout mask of a tile: bit `4j + e` of `kept` for element e of
        fragment j."""
        if not self.drops:
            return []
        if self.extents["columns"] % WEIGHTS_OF_A_BLOCK == 0:
            return self._drawn_in_blocks
        stays = f"stays({self.weight_number}, stream, {self.least_that_stays})"
        each = [*self._place_of_pair(), f"kept |= unsigned({stays}) << (j * 4u + e);"]
        return ["unsigned kept = 0;", self.per_number(each)]

    @property
    def _drawn_in_blocks(self) -> list[str]:
        """Statements that draw the mask in blocks of four columns, which belong to several threads.

        A block is drawn by one of them. If the warp owns rows, two threads share the blocks of two
        rows in each fragment, and each draws one. If it owns columns, four threads share the blocks
        of four pairs of a row and a group of columns. The bits of a thread's blocks are then read
        by the others.
        """
        if self.owned_axis == "rows":
            threads, distance, mask, own = 2, 1, 0x33333333, "pair % 4u"
            row, column = "base + mine + line + turn * 8u", "at + j * 8u + pair / 4u * 4u"
        else:
            threads, distance, mask, own = 4, 4, 0x11111111, "line % 4u"
            row = "at + j * 8u + pair + turn % 2u"
            column = "base + mine + line / 4u * 4u + turn / 2u * 8u"
        block = f"({self.weight_number}) / {WEIGHTS_OF_A_BLOCK}u"
        each = [
            f"const Index row = {row}, column = {column};",
            f"drawn |= four_stay({block}, stream, {self.least_that_stays}) << j * 4u;",
        ]
        fragments = self.other_tile // 8
        step = 4 // threads
        read = [
            f"const unsigned from = lane - (turn - t) * {distance}u;",
            "const unsigned other = __shfl_sync(0xffffffffu, drawn, from);",
            f"kept |= (other >> {own} & {mask:#x}u) << t * {step}u;",
        ]
        return [
            f"const unsigned turn = lane / {distance}u % {threads}u;",
            "unsigned drawn = 0, kept = 0;",
            f"#pragma unroll\nfor (unsigned j = 0; j < {fragments}u; ++j) {{\n"
            f"{indented(each, 1)}\n}}",
            f"#pragma unroll\nfor (unsigned t = 0; t < {threads}u; ++t) {{\n"
            f"{indented(read, 1)}\n}}",
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
    def hides(self) -> bool:
        """True if some score may be hidden by a mask, or if a row or column may not exist."""
        a, extents = self.attributes, self.extents
        has_diagonal = a.shift(extents["rows"], extents["columns"]) is not None
        return bool(self.mask is not None or self.ragged or has_diagonal)

    @property
    def all_seen(self) -> str:
        """A C++ condition: no score of the tile is hidden. False for a mask that is read."""
        if self.mask is not None:
            return "false"
        shift = self.attributes.shift(self.extents["rows"], self.extents["columns"])
        is_own = {axis: axis == self.owned_axis for axis in AXES}
        first = {axis: "base" if own else "at" for axis, own in is_own.items()}
        size = {axis: self.owned_tile if own else self.other_tile for axis, own in is_own.items()}
        conditions = [f"{first[a]} + {size[a]}u <= {self.extents[a]}u" for a in self.ragged]
        if shift is not None:
            conditions.append(
                f"{first['columns']} + {size['columns']}u <= {first['rows']} + {shift + 1}u"
            )
        return " && ".join(conditions) or "true"

    def weight(self, difference: str) -> str:
        """Return C++ for the weight of a score, given the difference between the score and the
        row's peak."""
        power = f"({difference}) * {self.unit}" if self.adds_mask else difference
        return f"power_of_two({power})"

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
