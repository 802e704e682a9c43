"""Numbers of bytes in messages and options: 1536 is "1.50 KiB"."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.errors import GraphcError, OptionError, quoted


def format_bytes(count: int, up: bool = False) -> str:
    """Return a readable number of bytes: 1536 → "1.50 KiB".

    With `up`, it is rounded up, so that it suffices as a budget.
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    rounded = math.ceil(size * 100) / 100 if up else size
    return f"{count} B" if unit == "B" else f"{rounded:.2f} {unit}"


def exact_bytes(count: int, up: bool = False) -> str:
    """Return a number of bytes in full and as `format_bytes`: "1,536 bytes = 1.50 KiB"."""
    return f"{count:,} bytes = {format_bytes(count, up)}"


def size_lines(sizes: Sequence[tuple[str, int]], most: int) -> str:
    """Return lines with bytes and name for the first `most` names, and one line for all others."""
    rest = sizes[most:]
    lines = [f"{format_bytes(size):>12}  {name}" for name, size in sizes[:most]]
    if rest:
        total = format_bytes(sum(size for _, size in rest))
        lines.append(f"{total:>12}  in {len(rest)} more")
    return "\n".join(lines)


UNITS = {"": 1, "b": 1}
"""Bytes of each unit, in lower case."""
UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}


def parse_bytes(where: str, given: object, error: type[GraphcError] = OptionError) -> int:
    """Return ``7GiB``, ``500MB`` or a plain whole number as bytes; raises `error`.

    Units may be in lower case. A size with a unit is rounded down to whole bytes.
    """
    text = str(given).strip().lower()
    number = text.rstrip("bkmgti")
    unit = text[len(number) :]
    try:
        size = float(number) * UNITS[unit]
    except (ValueError, KeyError):
        size = -1.0
    is_part = not unit and not size.is_integer()
    if isinstance(given, bool) or is_part or not 0 <= size < 2**63:
        end = ", which is too large: the limit is 2**63 - 1 bytes" if size >= 2**63 else ""
        raise error(
            f"{where} must be a size such as 7GiB, 500MB or 123456, got {quoted(given)}{end}"
        )
    return int(size)
