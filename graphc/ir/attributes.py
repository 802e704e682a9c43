"""Validation rules for the attributes of ops, declared beside the types of their fields.

For example, ``rate: Annotated[float, Between(0, below=1)]`` is a number in `[0, 1)`. A rule of a
tuple applies to each of its members. A field declared as bool is always checked to be True or
False. All rules are checked when a node is created, before its op sees the attributes. The op's
`infer` checks conditions on operands or on several attributes.
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
    """A condition on an attribute, or on each member of a tuple attribute."""

    def check(self, name: str, given: Any) -> None:
        """Raise `OptionError` or `DTypeError`, with the allowed values, for an invalid `given`."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `least` to `most`, by default without a limit."""

    least: int = 0
    most: int = 2**62

    def check(self, name: str, given: Any) -> None:
        """Raise `OptionError` unless `given` is a whole number in that range."""
        is_whole = isinstance(given, Integral) and not isinstance(given, bool)
        if not is_whole or not self.least <= given <= self.most:
            least, most = self.least, self.most
            span = f"of at least {least}" if most == 2**62 else f"from {least} to {most}"
            raise OptionError(f"{name} must be an integer {span}, got {quoted(given)}")


@dataclass(frozen=True, slots=True)
class Between:
    """A finite number from `low` up to `high`, and, if given, above `above` and below `below`."""

    low: float = -sys.float_info.max
    high: float = sys.float_info.max
    above: float = -math.inf
    below: float = math.inf

    def check(self, name: str, given: Any) -> None:
        """Raise `OptionError` unless `given` is a finite number in that range."""
        if isinstance(given, np.floating):  # it compares in its own, perhaps low, precision
            given = float(given)
        is_number = isinstance(given, Real) and not isinstance(given, bool)
        if (
            not is_number
            or not self.low <= given <= self.high
            or not self.above < given < self.below
        ):
            raise OptionError(f"{name} must be a finite number{self.range}, got {quoted(given)}")

    @property
    def range(self) -> str:
        """The bounds as words of an error message, such as " from 0 below 1"."""
        bounds = (
            ("from", self.low), ("above", self.above), ("up to", self.high), ("below", self.below)
        )  # fmt: skip
        return "".join(
            f" {word} {bound:g}" for word, bound in bounds if abs(bound) < sys.float_info.max
        )


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of the strings in `words`."""

    words: tuple[str, ...]

    def check(self, name: str, given: Any) -> None:
        """Raise `OptionError` unless `given` is one of the words."""
        choose(name, given, self.words)


@dataclass(frozen=True, slots=True)
class Truth:
    """True or False, also NumPy's: the rule of every attribute that is declared a bool."""

    def check(self, name: str, given: Any) -> None:
        """Raise `OptionError` unless `given` is True or False."""
        truth(name, given)


@dataclass(frozen=True, slots=True)
class DTypeName:
    """The name of an element type, of the given kind if there is one."""

    kind: str = ""

    def check(self, name: str, given: Any) -> None:
        """Raise `DTypeError` or `OptionError` unless `given` names a type of the kind."""
        found = as_dtype(given)
        if self.kind and found.kind != self.kind:
            raise OptionError(f"{name} must be the name of a {self.kind} type, got {quoted(given)}")


def checked_attributes(attributes: Any) -> Any:
    """Check all rules; return the attributes with Python bools and floats where those are declared.

    A value of NumPy's bool becomes a bool, and an integer of an attribute declared as float with a
    rule becomes a float. The first attribute that breaks its rule raises `OptionError` or
    `DTypeError`.
    """
    changed: dict[str, object] = {}
    for name, rule, members in rules_of(attributes.__class__):
        given = getattr(attributes, name)
        if members is None:
            rule.check(name, given)
            if isinstance(given, np.bool_):
                changed[name] = bool(given)
            continue
        if not isinstance(given, tuple) or members not in (ANY, len(given)):
            length = "" if members == ANY else f" of {members}"
            raise OptionError(f"{name} must be a tuple{length}, got {quoted(given)}")
        for member in given:
            rule.check(name, member)
    for name in _float_fields(attributes.__class__):
        given = getattr(attributes, name)
        if not isinstance(given, float) and isinstance(given, Real):
            changed[name] = float(given)
    return replace(attributes, **changed) if changed else attributes


ANY = -1
"""Any number of members of a tuple."""


@functools.cache
def rules_of(kind: Hashable) -> tuple[tuple[str, Rule, int | None], ...]:
    """Return the rules of an attribute class: (field, rule, number of tuple members or None)."""
    hints = _hints(kind)
    truths = ((name, Truth(), None) for name, hint in hints.items() if hint is bool)
    stated = (
        (name, rule, _members(get_args(hint)[0]))
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
        for rule in get_args(hint)[1:]
    )
    return (*stated, *truths)


@functools.cache
def _float_fields(kind: Hashable) -> tuple[str, ...]:
    """Return the names of an attribute class's fields that are declared as float with a rule."""
    return tuple(
        name
        for name, hint in _hints(kind).items()
        if get_origin(hint) is Annotated and get_args(hint)[0] is float
    )


def _hints(kind: Hashable) -> Mapping[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError:  # types local to the function in which a user defined the class
        return {}


def _members(declared: Any) -> int | None:
    """Return the number of members of a declared tuple type; None for other types."""
    if get_origin(declared) is not tuple:
        return None
    members = get_args(declared)
    return ANY if members[-1] is ... else len(members)
