"""What the attributes of an op may be: rules that stand beside the types of their fields.

``rate: Annotated[float, Between(0, below=1)]`` is a number in [0, 1). The rule of a tuple holds for
each of its members; a bool needs none to be True or False. All rules are checked where a node is
made, before its op sees the attributes; what depends on operands, or on several attributes, is for
the op's `infer`.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints

import numpy as np

from graphc.errors import OptionError, choose, quoted, truth
from graphc.ir.types import as_dtype


class Rule(Protocol):
    """What an attribute, or each member of one that is a tuple, must be."""

    def check(self, name: str, given: Any) -> None:
        """Raise `OptionError`, with what is allowed, or `DTypeError`."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` up to `most`; kernels count in 32 bits where `most` says so."""

    least: int = 0
    most: int = 2**62

    def check(self, name: str, given: Any) -> None:
        """Raise `OptionError` for what is no whole number of that range."""
        is_whole = isinstance(given, Integral) and not isinstance(given, bool)
        if not is_whole or not self.least <= given <= self.most:
            limit = "up" if self.most == 2**62 else f"to {self.most}"
            raise OptionError(
                f"{name} is a whole number from {self.least} {limit}, got {quoted(given)}"
            )


@dataclass(frozen=True, slots=True)
class Between:
    """A finite number from `low` up to `high`, and, where they are given, `above` and `below`."""

    low: float = -sys.float_info.max
    high: float = sys.float_info.max
    above: float = -math.inf
    below: float = math.inf

    def check(self, name: str, given: Any) -> None:
        """Raise `OptionError` for what is no finite number of that range."""
        if isinstance(given, np.floating):  # which compares in its own, perhaps narrow, precision
            given = float(given)
        is_number = isinstance(given, Real) and not isinstance(given, bool)
        if (
            not is_number
            or not self.low <= given <= self.high
            or not self.above < given < self.below
        ):
            raise OptionError(f"{name} is a finite number{self.range}, got {quoted(given)}")

    @property
    def range(self) -> str:
        """The bounds as a message says them."""
        bounds = (
            ("from", self.low), ("above", self.above), ("up to", self.high), ("below", self.below)
        )  # fmt: skip
        return "".join(
            f" {word} {bound:g}" for word, bound in bounds if abs(bound) < sys.float_info.max
        )


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, name: str, given: Any) -> None:
        """Raise `OptionError` for another word."""
        choose(name, given, self.words)


@dataclass(frozen=True, slots=True)
class Truth:
    """True or False, also NumPy's: the rule of every attribute that is declared a bool."""

    def check(self, name: str, given: Any) -> None:
        """Raise `OptionError` for anything else."""
        truth(name, given)


@dataclass(frozen=True, slots=True)
class DTypeName:
    """The name of an element type, of that kind where one is given."""

    kind: str = ""

    def check(self, name: str, given: Any) -> None:
        """Raise `DTypeError` for what names no such type."""
        found = as_dtype(given)
        if self.kind and found.kind != self.kind:
            raise OptionError(f"{name} is the name of a {self.kind} type, got {quoted(given)}")


def checked_attributes(attributes: Any) -> Any:
    """The attributes, truths as Python's own; the first that breaks its rule raises `OptionError`
    or `DTypeError`.
    """
    truths = {}
    for name, rule, members in rules_of(attributes.__class__):
        given = getattr(attributes, name)
        if members is None:
            rule.check(name, given)
            if isinstance(given, np.bool_):
                truths[name] = bool(given)
            continue
        if not isinstance(given, tuple) or members not in (ANY, len(given)):
            length = "" if members == ANY else f" of {members}"
            raise OptionError(f"{name} is a tuple{length}, got {quoted(given)}")
        for member in given:
            rule.check(name, member)
    return replace(attributes, **truths) if truths else attributes


ANY = -1
"""As many members of a tuple as there are."""


@functools.cache
def rules_of(kind: Hashable) -> tuple[tuple[str, Rule, int | None], ...]:
    """The rules of a class of attributes: the field, its rule, and of how many members that is."""
    try:
        hints: Mapping[str, Any] = get_type_hints(kind, include_extras=True)
    except NameError:  # types that only the function knows in which a user made the class
        return ()
    truths = ((name, Truth(), None) for name, hint in hints.items() if hint is bool)
    stated = (
        (name, rule, _members(get_args(hint)[0]))
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
        for rule in get_args(hint)[1:]
    )
    return (*stated, *truths)


def _members(declared: Any) -> int | None:
    """How many members a tuple of a declared type has; None for what is no tuple."""
    if get_origin(declared) is not tuple:
        return None
    members = get_args(declared)
    return ANY if members[-1] is ... else len(members)
