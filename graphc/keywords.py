"""Options as frozen dataclasses: each is declared once, and functions take them as keywords.

A field made by `option` knows what it means, which values it may have, and how the command line
takes it. `takes` turns a function of such an object into one of keywords: what a type checker, the
signature and the docstring say of it all follow from the fields.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Generic, ParamSpec, TypeVar, cast, get_type_hints

import numpy as np

from graphc.errors import OptionError, choose, did_you_mean, given_twice, truth

P = ParamSpec("P")
T = TypeVar("T")
Told = TypeVar("Told", bound="Options")
Result = TypeVar("Result")

INDENT = " " * 4
WIDTH = 96
"""The columns that the text of a docstring has."""


@dataclass(frozen=True, slots=True)
class Flag:
    """How the command line takes an option.

    `help` may hold ``{default}`` and ``{choices}``; `unset` is how a default of None or 0 is told.
    `name` is that of the flag where it is not the option's; `parse` and `action` are argparse's.
    """

    help: str
    metavar: str | None = None
    unset: str = ""
    parse: Callable[[str], object] | None = None
    action: Any = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """What is known of an option beside its name, type and default.

    `check` takes the name and what was given, and raises `OptionError`; without it, a default that
    is a bool allows True and False alone, and others the `choices`, if there are any. None is not
    checked where it is the default. `meaning` may hold ``{choices}``.
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
        """A text about the option, with its braces filled in."""
        return text.format(choices=", ".join(self.choices), default=default)


def option(
    default: T,
    meaning: str,
    *,
    choices: Sequence[str] = (),
    check: Callable[[str, Any], object] | None = None,
    flag: Flag | None = None,
) -> T:
    """Declare an option: the field of a class derived from `Options`."""
    declaration = Option(default, meaning, tuple(choices), check, flag)
    found: T = field(default=default, metadata={"option": declaration})
    return found


def required(meaning: str) -> Mapping[str, Option[Any]]:
    """The metadata of an option that has to be given."""
    return {"option": Option(MISSING, meaning)}


def now_required(kind: type[Options], name: str) -> Mapping[str, Option[Any]]:
    """The metadata of an option of `kind`, for a class in which it has to be given."""
    return {"option": replace(declared(kind)[name], default=MISSING)}


def same(kind: type[Options], name: str) -> Any:
    """An option of `kind` as a field of a class that takes this one, and not the others."""
    declaration = declared(kind)[name]
    return field(default=declaration.default, metadata={"option": declaration})


class Options:
    """The base of frozen dataclasses with fields made by `option`, checked when one is made."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise `OptionError` for what is not allowed; subclasses add what concerns several.

        NumPy's truths become Python's.
        """
        for name, each in declared(type(self)).items():
            given = getattr(self, name)
            each.verify(name, given)
            if isinstance(given, np.bool_):
                object.__setattr__(self, name, bool(given))

    def shared(self, kind: type[Options]) -> dict[str, Any]:
        """The options that `kind` has too, by name."""
        return {name: getattr(self, name) for name in declared(kind) if hasattr(self, name)}


def declared(kind: type[Options]) -> dict[str, Option[Any]]:
    """The options of a class by name."""
    found = fields(kind)  # type: ignore[arg-type]  # the base is no dataclass, what is asked for is
    return {each.name: each.metadata["option"] for each in found}


def takes(
    kind: Callable[P, Told],
) -> Callable[[Callable[[Told], Result]], Callable[P, Result]]:
    """Make a function of an options object one that takes the options as keywords.

    Its docstring goes on with what each option means. An unknown keyword raises `OptionError`.
    """

    def keyworded(function: Callable[[Told], Result]) -> Callable[P, Result]:
        returns = inspect.signature(function).return_annotation
        signature = inspect.signature(kind).replace(return_annotation=returns)
        options = declared(cast(type[Options], kind))
        known = {name: options[name] for name in signature.parameters}

        @functools.wraps(function, assigned=("__module__", "__name__", "__qualname__"))
        def call(*given: P.args, **named: P.kwargs) -> Result:
            for name in named:
                _check_known(function.__name__, name, tuple(known))
            try:
                signature.bind(*given, **named)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            return function(kind(*given, **named))

        call.__signature__ = signature  # type: ignore[attr-defined]
        hints = {**get_type_hints(kind), "return": get_type_hints(function)["return"]}
        call.__annotations__ = {name: hints[name] for name in (*known, "return")}
        call.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{_meanings(known)}\n"
        return call

    return keyworded


def asks(kind: type[T]) -> type[T]:
    """Make a dataclass answer with an `OptionError` a keyword that it does not have, too, and what
    is neither true nor false for a field that is one by default.
    """
    made = kind.__init__
    parameters = inspect.signature(kind).parameters
    known = tuple(parameters)
    truths = [name for name, each in parameters.items() if isinstance(each.default, bool)]

    @functools.wraps(made)
    def begin(self: T, *given: object, **named: object) -> None:
        for name in named:
            _check_known(kind.__name__, name, known)
        made(self, *given, **named)
        for name in truths:
            object.__setattr__(self, name, truth(name, getattr(self, name)))

    kind.__init__ = begin  # type: ignore[assignment, method-assign]
    return kind


def also_called(own: str, other: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Let a function take its keyword `own` as `other`, too; an unknown one is an `OptionError`,
    and so is one that is given twice.
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
    """Make a function answer a keyword that it does not have with an `OptionError`."""
    known = tuple(name for name in inspect.signature(function).parameters if name != "self")

    @functools.wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> Result:
        for name in named:
            _check_known(function.__name__, name, known)
        return function(*given, **named)

    return call


def _check_known(function: str, name: str, known: Sequence[str]) -> None:
    """Raise `OptionError` with the names nearest to an unknown one."""
    if name not in known:
        cure = did_you_mean(name, known) or f"it takes {', '.join(known)}"
        raise OptionError(f"{function} has no option {name!r}; {cure}")


def _meanings(known: Mapping[str, Option[Any]]) -> str:
    """The meaning of each option, as a docstring's section of arguments holds them."""
    return "\n".join(
        textwrap.fill(
            f"{name}: {each.filled(each.meaning)}",
            WIDTH,
            initial_indent=INDENT,
            subsequent_indent=2 * INDENT,
        )
        for name, each in known.items()
    )
