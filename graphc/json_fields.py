"""Validating JSON readers: errors name the field, the rule, the value found and the fix.

`where` is the path of a field inside the file, such as ``buffers[3].offset``. A violation raises
the reader's error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from graphc.errors import GraphcError, did_you_mean, quoted

LARGEST = 2**60
"""A bound above any meaningful count, offset or size; sums of two fit in 64 bits."""


@dataclass(frozen=True, slots=True)
class JsonReader:
    """A reader of one kind of file: the error class it raises, and how to get a valid file."""

    error: type[GraphcError]
    cure: str = ""

    def fail(self, where: str, rule: str, given: object) -> NoReturn:
        """Raise the reader's error for a value that violates `rule`."""
        is_word = given is None or isinstance(given, bool)
        got = json.dumps(given) if is_word else quoted(given)
        raise self.error(f"{where}: {rule}, got {got}{self.advice}")

    @property
    def advice(self) -> str:
        """The end of a message: the fix, if there is one."""
        return f"; {self.cure}" if self.cure else ""

    def parse(self, text: str | bytes, what: str = "this") -> Any:
        """Return the object in a JSON text; duplicate keys, NaN and infinity are rejected."""

        def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            found = dict(pairs)
            if len(found) < len(pairs):
                names = [name for name, _ in pairs]
                twice = next(name for name in names if names.count(name) > 1)
                self.fail(f"an object in {what}", "each key must be unique", twice)
            return found

        def constant(name: str) -> NoReturn:
            self.fail(f"a number in {what}", "numbers must be finite", name)

        try:
            return json.loads(text, object_pairs_hook=distinct, parse_constant=constant)
        except (ValueError, RecursionError) as error:
            # Only the conversion of integers raises a plain ValueError.
            reason = "a number has too many digits" if type(error) is ValueError else error
            raise self.error(
                f"{what} is not valid JSON, or is truncated: {reason}{self.advice}"
            ) from None

    def record(
        self, given: object, keys: Collection[str], where: str, optional: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the value if it is an object with these keys, and no others but `optional`."""
        # A misspelled key is reported as unknown, with a suggestion, rather than as missing.
        for key in self.objects(given, where):
            if key not in keys and key not in optional:
                allowed = (*keys, *optional)
                fix = did_you_mean(key, allowed) or f"the keys are {', '.join(allowed)}"
                self.fail(where, f"unknown key ({fix})", key)
        return self.objects(given, where, keys)

    def objects(self, given: object, where: str, keys: Collection[str] = ()) -> dict[str, Any]:
        """Return the value if it is an object with at least these keys."""
        if not isinstance(given, dict):
            self.fail(where, "expected an object", given)
        missing = [key for key in keys if key not in given]
        if missing:
            self.fail(where, f"the key {missing[0]!r} is missing", list(given))
        return given

    def listed(self, given: object, where: str) -> list[Any]:
        """Return the value if it is a list, of anything."""
        if not isinstance(given, list):
            self.fail(where, "expected a list", given)
        return given

    def text_of(self, given: object, where: str) -> str:
        """Return the value if it is a string."""
        if not isinstance(given, str):
            self.fail(where, "expected a string", given)
        return given

    def one_of(self, given: object, allowed: Sequence[str], where: str) -> str:
        """Return the value if it is one of the allowed strings."""
        if not isinstance(given, str) or given not in allowed:
            self.fail(where, f"expected one of {', '.join(allowed)}", given)
        return given

    def whole(self, given: object, where: str, least: int = 0, below: int = LARGEST) -> int:
        """Return the value if it is an integer in `[least, below)`."""
        # A bool is an int in Python but not in JSON.
        if type(given) is not int or not least <= given < below:
            limit = f" and below {below}" if below < LARGEST else ""
            self.fail(where, f"expected an integer of at least {least}{limit}", given)
        return given

    def number(self, given: object, where: str, most: float = LARGEST) -> float:
        """Return the value as a float if it is a finite number from 0 to `most`."""
        if type(given) not in (int, float) or not 0 <= given <= most:  # type: ignore[operator]
            span = f"from 0 to {most}" if most < LARGEST else "of at least 0"
            self.fail(where, f"expected a number {span}", given)
        return float(given)  # type: ignore[arg-type]

    def truth(self, given: object, where: str) -> bool:
        """Return the value if it is true or false."""
        if not isinstance(given, bool):
            self.fail(where, "expected true or false", given)
        return given

    def scalar(self, given: object, where: str) -> str | int | float | bool:
        """Return the value if it is a string, a finite number, or true or false."""
        is_finite = isinstance(given, int | float) and math.isfinite(given)
        if not isinstance(given, str | bool) and not is_finite:
            self.fail(where, "expected a string, a finite number, true or false", given)
        return given  # type: ignore[return-value]
