"""Conversion of names in other frameworks' models to unique graphc names."""

from __future__ import annotations

import re

from graphc.ir.names import is_constant_name

_FORBIDDEN = re.compile(r"[^\w.-]")


def mangled(name: str) -> str:
    """Return the name with forbidden characters replaced by ``_``; ``_`` alone for an empty one."""
    joined = state_name(name)
    return joined if re.match(r"[A-Za-z_]", joined) else f"_{joined}"


def state_name(name: str) -> str:
    """Return the name of a state, which may also begin with a digit."""
    parts = [_FORBIDDEN.sub("_", part) for part in name.split("/") if part]
    return "/".join(parts) or "_"


class Names:
    """A set of unique names, for example of all states of a network."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, original: str) -> str:
        """Return the mangled name, made unique by an appended number if necessary.

        A number is appended if the name is taken, or if a constant may get the same name.
        """
        return self.take(mangled(original))

    def take(self, wanted: str) -> str:
        """Return `wanted`, made unique by an appended number if necessary.

        A number is appended if the name is taken, or if a constant may get the same name.
        """
        name, number = wanted, 2
        while name in self._taken or is_constant_name(name):
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name
