"""Options as frozen dataclasses: each is declared once, and functions take them as keywords.

A field created by `option` records its meaning, its allowed values and its command-line flag.
`takes` turns a function of an options object into a function of keywords. Its types, signature
and docstring are derived from the fields.
"""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast, get_type_hints

import numpy as np

from graphc.errors import OptionError, choose, did_you_mean, given_twice, truth

P = ParamSpec("P")
T = TypeVar("T")
Told = TypeVar("Told", bound="Options")
Result = TypeVar("Result")

INDENT = " " * 4
WIDTH = 96
"""Line width of generated docstrings."""

ONLY_FOR_TYPES = ("torch",)
"""Packages that options may name in their types without importing them."""


@dataclass(frozen=True, slots=True)
class Flag:
    """The command-line flag of an option.

    `help` may contain ``{default}`` and ``{choices}``. `unset` is the text for a default of None
    or 0. `name` is the flag's name if it differs from the option's. `parse` and `action` are
    passed to `argparse`.
    """

    help: str
    metavar: str | None = None
    unset: str = ""
    parse: Callable[[str], object] | None = None
    action: Any = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """The declaration of an option: default, meaning, allowed values and flag.

    `check` takes the name and the value, and raises `OptionError`. Without `check`, an option with
    a bool default allows only True and False. Other options allow `choices`, if there are any. None
    is always allowed if it is the default. `meaning` may contain ``{choices}``.
    """

    default: T
    meaning: str
    choices: tuple[str, ...] = ()
    check: Callable[[str, Any], object] | None = None
    flag: Flag | None = None

    def verify(self, name: str, given: object) -> None:
        """Raise `OptionError` for a value outside the allowed ones."""
        if given is None and self.default is None:
            return
        if self.check is not None:
            self.check(name, given)
        elif isinstance(self.default, bool):
            truth(name, given)
        elif self.choices:
            choose(name, cast(str, given), self.choices)

    def filled(self, text: str, default: object = None) -> str:
        """Format a text about the option: fill in ``{choices}`` and ``{default}``."""
        return text.format(choices=", ".join(self.choices), default=default)


def option(
    default: T,
    meaning: str,
    *,
    choices: Sequence[str] = (),
    check: Callable[[str, Any], object] | None = None,
    flag: Flag | None = None,
) -> T:
    """Declare an option as a field of a class derived from `Options`."""
    declaration = Option(default, meaning, tuple(choices), check, flag)
    found: T = field(default=default, metadata={"option": declaration})
    return found


def required(
    meaning: str, check: Callable[[str, Any], object] | None = None
) -> Mapping[str, Option[Any]]:
    """Return the metadata of a required option."""
    return {"option": Option(MISSING, meaning, check=check)}


def now_required(kind: type[Options], name: str) -> Mapping[str, Option[Any]]:
    """Return the metadata of an option of `kind`, for a class that requires it."""
    return {"option": replace(declared(kind)[name], default=MISSING)}


def same(kind: type[Options], name: str) -> Any:
    """Return a copy of an option of class `kind`, to declare it as a field of another class."""
    declaration = declared(kind)[name]
    return field(default=declaration.default, metadata={"option": declaration})


class Options:
    """Base class of frozen dataclasses with `option` fields, which are checked at construction."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise `OptionError` for an invalid value; subclasses add checks across several options.

        NumPy bools are converted to Python bools.
        """
        for name, each in declared(type(self)).items():
            given = getattr(self, name)
            each.verify(name, given)
            if isinstance(given, np.bool_):
                object.__setattr__(self, name, bool(given))

    def shared(self, kind: type[Options]) -> dict[str, Any]:
        """Return the values of the options that class `kind` also declares, by name."""
        return {name: getattr(self, name) for name in declared(kind) if hasattr(self, name)}


def declared(kind: type[Options]) -> dict[str, Option[Any]]:
    """Return the options of a class by name."""
    found = fields(kind)  # type: ignore[arg-type]  # the base is no dataclass, `kind` is
    return {each.name: each.metadata["option"] for each in found}


def takes(
    kind: Callable[P, Told],
) -> Callable[[Callable[[Told], Result]], Callable[P, Result]]:
    """Turn a function of an options object into a function that takes the options as keywords.

    The meaning of each option is appended to its docstring. An unknown keyword raises
    `OptionError`.
    """

    def keyworded(function: Callable[[Told], Result]) -> Callable[P, Result]:
        returns = inspect.signature(function).return_annotation
        signature = inspect.signature(kind).replace(return_annotation=returns)
        options = declared(cast(type[Options], kind))
        known = {name: options[name] for name in signature.parameters}

        @functools.wraps(function, assigned=("__module__", "__name__", "__qualname__"))
        def call(*given: P.args, **named: P.kwargs) -> Result:
            for name in named:
                check_known(function.__name__, name, tuple(known))
            try:
                signature.bind(*given, **named)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            return function(kind(*given, **named))

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = _hints(kind, function, (*known, "return"))
        call.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{_meanings(known)}\n"
        return call

    return keyworded


def _hints(kind: Any, function: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the types of options and of a result by name, as texts if they name a package that is
    only imported for type checks."""
    try:
        hints = {**get_type_hints(kind), "return": get_type_hints(function)["return"]}
    except NameError as error:
        if error.name not in ONLY_FOR_TYPES:
            raise
        hints = {**{each.name: each.type for each in fields(kind)}, **function.__annotations__}
    return {name: hints[name] for name in names}


def asks(kind: type[T]) -> type[T]:
    """Make a dataclass raise `OptionError` for invalid keywords and bools.

    It raises for an unknown keyword, and for a value other than True or False in a field with a
    bool default.
    """
    made = kind.__init__
    parameters = inspect.signature(kind).parameters
    known = tuple(parameters)
    truths = [name for name, each in parameters.items() if isinstance(each.default, bool)]

    @functools.wraps(made)
    def begin(self: T, *given: object, **named: object) -> None:
        for name in named:
            check_known(kind.__name__, name, known)
        made(self, *given, **named)
        for name in truths:
            object.__setattr__(self, name, truth(name, getattr(self, name)))

    kind.__init__ = begin  # type: ignore[assignment, method-assign]
    return kind


def also_called(own: str, other: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Give keyword `own` of a function the alias `other`.

    An unknown keyword, or a value given twice, raises `OptionError`.
    """

    def decorate(function: Callable[P, Result]) -> Callable[P, Result]:
        place = list(inspect.signature(function).parameters).index(own)
        checked = checks_keywords(function)

        @functools.wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> Result:
            if own in named and other in named:
                raise OptionError(f"{function.__name__}: give {own} or {other}, not both")
            for name in (own, other):
                if name in named and len(given) > place:
                    twice = given_twice(given[place], named[name])
                    raise OptionError(f"{function.__name__}: {name} {twice}")
            if other in named:
                named[own] = named.pop(other)
            return checked(*given, **named)

        return call

    return decorate


def checks_keywords(function: Callable[P, Result]) -> Callable[P, Result]:
    """Make a function or a class's ``__init__`` raise `OptionError` for an unknown keyword."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return function
    known = tuple(name for name in parameters if name != "self")
    where = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> Result:
        for name in named:
            check_known(where, name, known)
        return function(*given, **named)

    return call


def check_keywords_of(names: Sequence[str], namespace: dict[str, Any]) -> None:
    """Replace functions in a namespace by those of `checks_keywords`.

    Those of `takes` and `also_called` check their keywords and stay. A replaced function is also
    replaced in the module that defines it, where pickle looks it up.
    """
    for name in names:
        found = namespace[name]
        if isinstance(found, FunctionType) and found.__globals__ is not globals():
            namespace[name] = checks_keywords(found)
            setattr(sys.modules[found.__module__], found.__name__, namespace[name])


def check_known(function: str, name: str, known: Sequence[str]) -> None:
    """Raise `OptionError` for an unknown name, with the closest known names."""
    if name not in known:
        cure = did_you_mean(name, known) or f"its options are {', '.join(known)}"
        raise OptionError(f"{function} has no option {name!r}; {cure}")


def _meanings(known: Mapping[str, Option[Any]]) -> str:
    """Format the meanings of options as the ``Args`` section of a docstring."""
    return "\n".join(
        textwrap.fill(
            f"{name}: {each.filled(each.meaning)}",
            WIDTH,
            initial_indent=INDENT,
            subsequent_indent=2 * INDENT,
        )
        for name, each in known.items()
    )
