"""Names of another framework's model as names of graphc, each different from the others."""

from __future__ import annotations

import re

from graphc.ir.builder import is_constant_name

_FORBIDDEN = re.compile(r"[^\w.-]")


def mangled(name: str) -> str:
    """The name with what graphc's names cannot hold as ``_``; ``_`` alone for an empty one."""
    joined = state_name(name)
    return joined if re.match(r"[A-Za-z_]", joined) else f"_{joined}"


def state_name(name: str) -> str:
    """The name of a state, which may begin with a digit, too."""
    parts = [_FORBIDDEN.sub("_", part) for part in name.split("/") if part]
    return "/".join(parts) or "_"


class Names:
    """Names that are given out once each, for example to all states of a network."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, original: str) -> str:
        """The mangled name, with a number behind it where another, or a constant, may have it."""
        return self.take(mangled(original))

    def take(self, wanted: str) -> str:
        """The name itself, with a number behind it where another, or a constant, may have it."""
        name, number = wanted, 2
        while name in self._taken or is_constant_name(name):
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name
