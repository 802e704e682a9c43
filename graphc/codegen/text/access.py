"""Reads and writes of one operand in a kernel: by packs, broadcast, or element by element.

A pack is a group of contiguous elements that a thread processes at a time, each in a lane of an
unrolled loop. A contiguous, aligned operand is read by one wide access. An operand that repeats one
element is read once for all lanes. Any other is read lane by lane. All three give a lane the same
number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphc.codegen.text.operands import Operand, offset, packs
from graphc.codegen.text.scalar import C_TYPES

WIDEST = 8
"""Maximum number of elements of a pack: one access for 16-bit floats, two for float32."""


@dataclass(frozen=True, slots=True)
class Access:
    """An access to `width` elements of an operand along the last axis, from the offset `at` in
    elements."""

    operand: Operand
    at: str
    width: int

    @property
    def step(self) -> int:
        """The distance between adjacent lanes, in elements."""
        return self.operand.strides[-1] if self.operand.strides else 0

    def load(self) -> str:
        """Return the statement that precedes the loop over lanes and loads the data for all
        lanes."""
        name = self.operand.name
        if self.operand.buffer is None:
            return f"const Index {name}_at = {self.at};"
        if packs(self.operand, self.width):
            return f"const auto {name}_pack = load<{self.width}>({name} + ({self.at}));"
        if self.step == 0:
            return f"const auto {name}_one = widen({name}[{self.at}]);"
        return f"const auto *const {name}_at = {name} + ({self.at});"

    def read(self) -> str:
        """Return C++ for the value of the operand in the current lane."""
        name = self.operand.name
        if self.operand.buffer is None:
            return f"{name}_at" + self._lane(" + ")
        if packs(self.operand, self.width):
            return f"widen({name}_pack.lane[lane])"
        return f"{name}_one" if self.step == 0 else f"widen({name}_at[{self._lane()}])"

    def open(self) -> str:
        """Return the statement that precedes the loop over lanes and prepares writing this
        operand."""
        name, type = self.operand.name, C_TYPES[self.operand.dtype]
        if packs(self.operand, self.width):
            return f"Pack<{type}, {self.width}> {name}_out;"
        return f"{type} *const {name}_out = {name} + ({self.at});"

    def target(self) -> str:
        """Return C++ for the element of this operand that a lane assigns."""
        name = self.operand.name
        packed = packs(self.operand, self.width)
        return f"{name}_out.lane[lane]" if packed else f"{name}_out[{self._lane()}]"

    def close(self) -> list[str]:
        """Return the statements that follow the loop over lanes and store their results."""
        name = self.operand.name
        if not packs(self.operand, self.width):
            return []
        return [f"store<{self.width}>({name} + ({self.at}), {name}_out);"]

    def _lane(self, sign: str = "") -> str:
        if self.width == 1 or self.step == 0:
            return "" if sign else "0"
        lane = "lane" if self.step == 1 else f"lane * {self.step}"
        return sign + lane


def accesses(operands: Sequence[Operand], indices: Sequence[str], width: int) -> list[Access]:
    """Return accesses to `width` elements of each operand at these indices."""
    return [Access(o, starting_at(o, offset(indices, o.strides)), width) for o in operands]


def starting_at(operand: Operand, at: str) -> str:
    """Return C++ for an offset in an operand, counted from the address that its pointer argument
    has."""
    return f"{operand.start}u + {at}" if operand.start else at


def parameters(inputs: Sequence[Operand], outputs: Sequence[Operand]) -> str:
    """Return a kernel's parameters: pointers to inputs, then to outputs."""
    listed = [f"const {C_TYPES[o.dtype]} *{o.name}" for o in inputs if o.buffer is not None]
    listed += [f"{C_TYPES[o.dtype]} *{o.name}" for o in outputs]
    return ", ".join(listed)


def indented(statements: Sequence[str], depth: int) -> str:
    """Return statements as lines, indented by four spaces per level."""
    return "\n".join(" " * 4 * depth + line for text in statements for line in text.split("\n"))


def lanes(
    group: int, whole: bool, before: list[str], lane: list[str], after: list[str]
) -> list[str]:
    """Return the statements that process one pack: one access for all lanes if `whole`, else one
    per lane."""
    if group == 1:
        return ["const Index place = item;", *before, *lane, *after]
    head = f"#pragma unroll\nfor (int lane = 0; lane < {group}; ++lane) {{"
    if whole:
        inner = indented(lane, 1)
        place = f"const Index place = item * {group}u;"
        return [place, *before, f"{head}\n{inner}\n}}", *after]
    inner = indented([f"const Index place = item * {group}u + lane;", *before, *lane, *after], 1)
    return [f"{head}\n{inner}\n}}"]
