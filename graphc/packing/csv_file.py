"""Buffers as CSV files, in the format of MiniMalloc: ``id,lower,upper,size[,offset]``.

Columns stand in any order under a header, and other columns are passed over. A buffer is live on
the half-open [lower, upper). An offset in a file to be packed pins that buffer; an empty one does
not.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from graphc.errors import PackingError
from graphc.files import write_atomically
from graphc.packing.problem import Integers

NEEDED = ("id", "lower", "upper", "size")
LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class BufferTable:
    """The columns of a file; `pinned` maps rows, counted from 0, to offsets in bytes."""

    ids: tuple[str, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    size: tuple[int, ...]
    pinned: dict[int, int]


def read_buffers(path: str) -> BufferTable:
    """Read a file; raises `PackingError` with line and column where it is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PackingError(f"cannot read {path!r}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise PackingError(f"{path!r} is not a text file in UTF-8") from None
    try:
        return _Reader(path, text).run()
    except csv.Error as error:
        raise PackingError(f"{path!r} cannot be read as CSV: {error}") from None


def write_offsets(path: str, table: BufferTable, offsets: Integers) -> None:
    """Write the buffers with their offsets; the file is complete or not there."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*NEEDED, "offset"])
    columns = (table.ids, table.lower, table.upper, table.size, offsets.tolist())
    writer.writerows(zip(*columns, strict=True))
    write_atomically(path, text.getvalue().encode(), PackingError)


class _Reader:
    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.rows = csv.reader(io.StringIO(text), strict=True)

    def fail(self, column: str, rule: str, found: str) -> NoReturn:
        raise PackingError(
            f"{self.path!r}, line {self.rows.line_num}, column {column}: {rule}, got {found!r}"
        )

    def run(self) -> BufferTable:
        place = self.header()
        ids: dict[str, int] = {}
        lower, upper, size = [], [], []
        pinned: dict[int, int] = {}
        for row in self.rows:
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != self.width:
                self.fail("count", f"a row has {self.width} cells like the header", ",".join(row))
            cells = {name: row[at].strip() for name, at in place.items()}
            if not cells["id"]:
                self.fail("id", "every buffer has an id", cells["id"])
            if cells["id"] in ids:
                self.fail("id", f"ids differ; line {ids[cells['id']]} has this one", cells["id"])
            lower.append(self.number("lower", cells["lower"]))
            upper.append(self.number("upper", cells["upper"]))
            size.append(self.number("size", cells["size"], least=0))
            if lower[-1] >= upper[-1]:
                self.fail("upper", f"it is above lower, which is {lower[-1]}", cells["upper"])
            if cells.get("offset"):
                pinned[len(ids)] = self.number("offset", cells["offset"], least=0)
            ids[cells["id"]] = self.rows.line_num
        return BufferTable(tuple(ids), tuple(lower), tuple(upper), tuple(size), pinned)

    def header(self) -> dict[str, int]:
        """Read the header; returns where the columns stand."""
        names = [name.strip() for name in next(self.rows, [])]
        missing = [name for name in NEEDED if name not in names]
        if missing:
            raise PackingError(
                f"{self.path!r}, line 1: the header names {', '.join(NEEDED)} and perhaps offset, "
                f"in any order; it lacks {', '.join(missing)}, got {','.join(names)!r}"
            )
        known = [name for name in (*NEEDED, "offset") if name in names]
        twice = [name for name in known if names.count(name) > 1]
        if twice:
            raise PackingError(f"{self.path!r}, line 1: column {twice[0]!r} stands there twice")
        self.width = len(names)
        return {name: names.index(name) for name in known}

    def number(self, column: str, cell: str, least: int = -LARGEST + 1) -> int:
        """A whole number from `least` up, written in decimal digits."""
        digits = cell.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
            self.fail(column, "it is a whole number of at most 19 digits", cell)
        if not least <= int(cell) < LARGEST:
            self.fail(column, f"it lies from {'0' if least == 0 else '-2**62'} to 2**62", cell)
        return int(cell)


def names_of(ids: Sequence[str], indices: Sequence[int]) -> str:
    """Ids of some rows, for a message."""
    return ", ".join(repr(ids[index]) for index in indices)
