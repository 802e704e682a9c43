"""Numbers of bytes in messages and options: 1536 is "1.50 KiB"."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.errors import OptionError, quoted


def format_bytes(count: int) -> str:
    """Return a readable number of bytes: 1536 → "1.50 KiB"."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{count} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def exact_bytes(count: int) -> str:
    """Return a number of bytes in full and readable: "1,536 bytes = 1.50 KiB"."""
    return f"{count:,} bytes = {format_bytes(count)}"


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


def parse_bytes(where: str, given: object) -> int:
    """Return ``7GiB``, ``500MB`` or a plain whole number as bytes; raises `OptionError`.

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
        raise OptionError(
            f"{where} must be a size such as 7GiB, 500MB or 123456, got {quoted(given)}"
        )
    return int(size)
