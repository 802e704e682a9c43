"""Buffers as CSV files in the format of MiniMalloc: ``id,lower,upper,size[,offset]``.

A header names the columns, in any order; other columns are errors. A buffer is live on the
half-open interval `[lower, upper)`. In an input file, an offset pins its buffer; an empty offset
does not.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from graphc.errors import PackingError, did_you_mean
from graphc.files import write_atomically
from graphc.planner.pack.problem import Integers

NEEDED = ("id", "lower", "upper", "size")
LARGEST = 2**62
SHOWN = 80
"""The maximum number of characters that a message quotes from a file."""


@dataclass(frozen=True, slots=True)
class BufferTable:
    """The columns of a file, one entry per buffer; `pinned` maps rows, from 0, to offsets in
    bytes."""

    ids: tuple[str, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    size: tuple[int, ...]
    pinned: dict[int, int]


def read_buffers(path: str) -> BufferTable:
    """Read a file of buffers.

    Raises `PackingError`, which names line and column, the rule, and the text that breaks the rule.
    """
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PackingError(f"cannot read {path!r}: {reason}") from None
    try:
        # Accept the line endings of all systems, also within a quoted cell.
        text = io.StringIO(content.decode("utf-8-sig"), newline=None).read()
    except UnicodeDecodeError as error:
        before, wrong = error.object[: error.start], error.object[error.start : error.end]
        line = before.count(b"\n") + 1
        raise PackingError(
            f"{path!r}, line {line}: a file of buffers must be text in UTF-8, got the bytes "
            f"{wrong.hex(' ')}"
        ) from None
    reader = _Reader(path, text)
    try:
        return reader.run()
    except csv.Error as error:
        raise PackingError(
            f"{path!r}, line {reader.rows.line_num}: a row must be cells between commas, quotes in "
            f"pairs around whole cells, at most {csv.field_size_limit():,} characters in each, got "
            f"{_shortened(reader.line())} ({error})"
        ) from None


def write_offsets(path: str, table: BufferTable, offsets: Integers) -> None:
    """Write a CSV file of the buffers with their offsets; the file is replaced atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*NEEDED, "offset"])
    columns = (table.ids, table.lower, table.upper, table.size, offsets.tolist())
    writer.writerows(zip(*columns, strict=True))
    write_atomically(path, text.getvalue().encode(), PackingError)


class _Reader:
    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.rows = csv.reader(io.StringIO(text), strict=True)

    def fail(self, column: str, rule: str, found: str) -> NoReturn:
        raise PackingError(
            f"{self.path!r}, line {self.rows.line_num}, column {column}: {rule}, got "
            f"{_shortened(found)}"
        )

    def line(self) -> str:
        """Return the text of the line that was read last."""
        return self.text.split("\n")[self.rows.line_num - 1]

    def run(self) -> BufferTable:
        place = self.header()
        ids: dict[str, int] = {}
        lower, upper, size = [], [], []
        pinned: dict[int, int] = {}
        for row in self.rows:
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != self.width:
                raise PackingError(
                    f"{self.path!r}, line {self.rows.line_num}: a row must have {self.width} cells "
                    f"like the header, got {len(row)}: {_shortened(','.join(row))}"
                )
            cells = {name: row[at].strip() for name, at in place.items()}
            if not cells["id"]:
                self.fail("id", "every buffer must have an id", cells["id"])
            if cells["id"] in ids:
                line = ids[cells["id"]]
                self.fail("id", f"ids must be unique, but line {line} has the same id", cells["id"])
            lower.append(self.number("lower", cells["lower"]))
            upper.append(self.number("upper", cells["upper"]))
            size.append(self.number("size", cells["size"], least=0))
            if lower[-1] >= upper[-1]:
                self.fail(
                    "upper", f"upper must be above lower, which is {lower[-1]}", cells["upper"]
                )
            if cells.get("offset"):
                pinned[len(ids)] = self.number("offset", cells["offset"], least=0)
            ids[cells["id"]] = self.rows.line_num
        return BufferTable(tuple(ids), tuple(lower), tuple(upper), tuple(size), pinned)

    def header(self) -> dict[str, int]:
        """Read the header of the file; return the position of each known column."""
        names = [name.strip() for name in next(self.rows, [])]
        known = (*NEEDED, "offset")
        unknown = [name for name in names if name not in known]
        near = [(name, fix) for name in unknown if (fix := did_you_mean(name, known))]
        missing = [name for name in NEEDED if name not in names]
        if missing and not near:
            raise PackingError(
                f"{self.path!r}, line 1: the header must name {', '.join(NEEDED)} and may name "
                f"offset, in any order; it lacks {', '.join(missing)}, got "
                f"{_shortened(','.join(names))}"
            )
        if "" in names:
            raise PackingError(f"{self.path!r}, line 1: a column has no name, or a comma is extra")
        if unknown:
            name, fix = near[0] if near else (unknown[0], f"the columns are {', '.join(known)}")
            raise PackingError(f"{self.path!r}, line 1: unknown column {_shortened(name)}; {fix}")
        if twice := [name for name in known if names.count(name) > 1]:
            raise PackingError(
                f"{self.path!r}, line 1: the header must name a column once, got {twice[0]!r} twice"
            )
        self.width = len(names)
        return {name: position for position, name in enumerate(names)}

    def number(self, column: str, cell: str, least: int = -LARGEST + 1) -> int:
        """Return the integer in a cell; raise `PackingError` if it is malformed or below
        `least`."""
        digits = cell.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
            self.fail(column, "expected a whole number of at most 19 digits", cell)
        if not least <= int(cell) < LARGEST:
            lowest = "0 or more" if least == 0 else "above -2**62"
            self.fail(column, f"the number must be {lowest} and below 2**62", cell)
        return int(cell)


def _shortened(text: str) -> str:
    """Return a quoted text, cut after `SHOWN` characters."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r} and more"
