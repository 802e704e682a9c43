"""Reading JSON that may hold anything: every reader checks, and says where what is wrong.

`where` is the path of what is read inside the file, such as ``buffers[3].offset``. All readers
raise `PlanFileError` with that path, the rule, what was given, and the cure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

from graphc.errors import PlanFileError

LARGEST = 2**60
"""Beyond any count, offset or size that means something; sums of two still fit 64 bits."""

CURE = "`graphc plan MODEL --output FILE` writes a file that can be read"

SHOWN = 60
"""Characters of a faulty value in a message."""


def fail(where: str, rule: str, given: object) -> NoReturn:
    """Raise the error of a value that breaks `rule`."""
    shown = repr(given)
    if len(shown) > SHOWN:
        shown = f"{shown[:SHOWN]}..."
    raise PlanFileError(f"{where}: {rule}, got {shown}; {CURE}")


def read_json(text: str | bytes) -> Any:
    """What the text holds. Refuses keys that stand twice, NaN and infinity."""
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"this is not JSON, or cut short: {error}; {CURE}") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        fail("an object", "a key stands once", twice)
    return found


def _constant(name: str) -> NoReturn:
    fail("a number", "numbers are finite", name)


def record(given: object, keys: Sequence[str], where: str) -> dict[str, Any]:
    """An object with exactly these keys."""
    if not isinstance(given, dict):
        fail(where, f"an object with the keys {', '.join(keys)} is expected", given)
    missing = [key for key in keys if key not in given]
    if missing:
        fail(where, f"the key {missing[0]!r} is missing", list(given))
    unknown = [key for key in given if key not in keys]
    if unknown:
        fail(where, f"the keys are {', '.join(keys)}", unknown[0])
    return given


def objects(given: object, where: str) -> dict[str, Any]:
    """An object with any keys."""
    if not isinstance(given, dict):
        fail(where, "an object is expected", given)
    return given


def listed(given: object, where: str) -> list[Any]:
    """A list of anything."""
    if not isinstance(given, list):
        fail(where, "a list is expected", given)
    return given


def text_of(given: object, where: str) -> str:
    """A text."""
    if not isinstance(given, str):
        fail(where, "a text is expected", given)
    return given


def one_of(given: object, allowed: Sequence[str], where: str) -> str:
    """One of some texts."""
    if not isinstance(given, str) or given not in allowed:
        fail(where, f"one of {', '.join(allowed)} is expected", given)
    return given


def whole(given: object, where: str, least: int = 0, below: int = LARGEST) -> int:
    """A whole number in [least, below)."""
    # A bool is an int in Python, and none in JSON.
    if type(given) is not int or not least <= given < below:
        limit = f" and below {below}" if below < LARGEST else ""
        fail(where, f"a whole number from {least} up{limit} is expected", given)
    return given


def number(given: object, where: str) -> float:
    """A finite number from 0 up."""
    if type(given) not in (int, float) or not 0 <= given <= LARGEST:  # type: ignore[operator]
        fail(where, "a number from 0 up is expected", given)
    return float(given)  # type: ignore[arg-type]


def scalar(given: object, where: str) -> str | int | float | bool:
    """A text, a number, or true or false."""
    if isinstance(given, str | bool):
        return given
    if isinstance(given, int | float) and math.isfinite(given):
        return given
    fail(where, "a text, a finite number, true or false is expected", given)
