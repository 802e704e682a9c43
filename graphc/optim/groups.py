"""Different optimizers for different parameters, by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from graphc.errors import OptionError
from graphc.ir import builder
from graphc.ir.graph import Node, State, Value
from graphc.ir.types import DType
from graphc.keywords import asks
from graphc.optim.rates import Optimizer, Updater, optimizer_of


@asks
@dataclass(frozen=True)
class Groups:
    """Optimizers by parameter name: the first group whose pattern matches a name applies.

    `groups` are pairs of a regular expression and an optimizer or its name. An expression may match
    any part of a name such as ``layer0/bias``. `default` is for all other parameters. The learning
    rate of group i, counted from 0, is the input ``group{i}/learning_rate``. The learning rate of
    the default optimizer is the input ``learning_rate``. Raises `OptionError` for an invalid
    expression or optimizer. Planning a step raises `OptionError` for a group without a parameter.
    """

    groups: Sequence[tuple[str, Optimizer | str]]
    default: Optimizer | str

    def __post_init__(self) -> None:
        for pair in self.groups:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise OptionError(
                    f"groups must be pairs of a pattern and an optimizer, got {pair!r}"
                )
        *pairs, (_, default) = self._members()
        object.__setattr__(self, "groups", tuple(pairs))
        object.__setattr__(self, "default", default)

    def _members(self) -> list[tuple[str, Optimizer]]:
        """Return (pattern, optimizer) of each group, and last of the default."""
        pairs = (*self.groups, ("default", self.default))
        for pattern, _ in pairs:
            _compiled(pattern)
        return [(p, optimizer_of(f"the optimizer of {p!r}", given)) for p, given in pairs]

    @property
    def is_elementwise(self) -> bool:
        return all(getattr(each, "is_elementwise", False) for _, each in self._members())

    def begin(self, dtype: DType) -> Updater:
        *groups, (_, default) = self._members()
        members = []
        for number, (pattern, optimizer) in enumerate(groups):
            with builder.scope(f"group{number}"):
                members.append(_Group(_compiled(pattern), optimizer.begin(dtype)))
        return _GroupsUpdater(members, default.begin(dtype))


def _compiled(pattern: object) -> re.Pattern[str]:
    try:
        return re.compile(pattern)  # type: ignore[call-overload, no-any-return]
    except (TypeError, re.error) as error:
        raise OptionError(f"{pattern!r} is not a valid regular expression: {error}") from None


@dataclass
class _Group:
    pattern: re.Pattern[str]
    updater: Updater
    size: int = 0


@dataclass(frozen=True)
class _GroupsUpdater:
    groups: Sequence[_Group]
    default: Updater
    names: list[str] = field(default_factory=list)

    def update(self, parameter: State, gradient: Value) -> Node:
        return self.of(parameter.name).update(parameter, gradient)

    def of(self, name: str) -> Updater:
        """Return the updater of the parameter of that name."""
        self.names.append(name)
        for group in self.groups:
            if group.pattern.search(name):
                group.size += 1
                return group.updater
        return self.default

    def finish(self) -> None:
        """Raise `OptionError` for a group without a parameter."""
        for group in self.groups:
            if not group.size:
                raise OptionError(
                    f"no parameter belongs to the group {group.pattern.pattern!r}; the pattern "
                    "matches no name, or earlier groups contain all matches; the names are "
                    f"{', '.join(self.names)}"
                )
