"""Names of inputs and states: validation, names in unnamed layers, and a check for duplicates."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator

from graphc.errors import GraphError, OptionError, quoted
from graphc.ir.graph import Graph, Input, Layer, State

FLOAT8_STATES = "fp8/"
"""The start of the names of the states of 8-bit operands."""

_NAME = re.compile(r"[A-Za-z_][\w.-]*(/[\w.-]+)*")


def check_name(name: object) -> str:
    """Return `name` if the text form of graphs allows it; otherwise raises `OptionError`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(
            f"{quoted(name)} is not a valid name; a name starts with a letter or _, contains only "
            "letters, digits and _ . -, and separates parts by single slashes"
        )
    return name


def check_state_name(name: object) -> str:
    """Return `name` if a state may have it, as in `check_name`; it may also begin with a digit."""
    if isinstance(name, str) and name[:1].isdigit():
        return check_name(f"_{name}")[1:]
    return check_name(name)


def is_constant_name(name: str) -> bool:
    """Return whether a name is one that `constant` generates for an unnamed tensor."""
    return re.fullmatch(r"constant/[0-9a-f]{16}", name) is not None


def joined(scope: str, name: str) -> str:
    """Return ``scope/name``; if either is empty, return the other one alone."""
    return "/".join(filter(None, (scope, name)))


def name_layers(graph: Graph) -> None:
    """Name the states of unnamed layers, in order of creation, so that no two names are equal.

    A layer is named only once, so its names are the same in all graphs. Names that the user chose
    take precedence.
    """
    layers = {state.layer for state in graph.states if state.layer is not None}
    if all(layer.is_named for layer in layers):
        return
    taken = {s.name for s in graph.states if s.layer is None or s.layer.is_named}
    counts: Counter[str] = Counter()
    for layer in sorted(layers, key=lambda layer: layer.serial):
        if not layer.is_named:
            taken |= _name(layer, taken, counts[layer.numbered])
        counts[layer.numbered] += 1


def _name(layer: Layer, taken: set[str], count: int) -> set[str]:
    """Name the states of a layer so that no name is in `taken`; return their names.

    `count` is the number of earlier unnamed layers of the same kind and scope.
    """
    inner = {state: state.name.removeprefix(f"{layer.plain}/") for state in layer.states}
    for scope in _scopes(layer, count):
        names = {state: joined(scope, name) for state, name in inner.items()}
        if taken.isdisjoint(names.values()):
            break
    for state, name in names.items():
        object.__setattr__(state, "name", name)
    layer.is_named = True
    return set(names.values())


def _scopes(layer: Layer, count: int) -> Iterator[str]:
    """Yield the scopes that a layer may have, in order of preference."""
    yield layer.plain
    if not count:
        yield layer.numbered
    for number in itertools.count(max(count, 1)):
        yield f"{layer.numbered}_{number}"


def check_names(graph: Graph) -> None:
    """Raise `GraphError` if two inputs or two states have the same name."""
    for kind, sources, cure in (
        ("inputs", graph.inputs, "rename one of them"),
        ("states", graph.states, "give one another name=, or its own graphc.scope(...)"),
    ):
        seen: dict[str, Input | State] = {}
        for source in sources:
            first = seen.setdefault(source.name, source)
            if first is not source:
                raise GraphError(
                    f"two {kind} are named {source.name!r}, {_created(first)} and "
                    f"{_created(source)}; {cure}"
                )


def _created(source: Input | State) -> str:
    """Return the type of a source and the line that created it, if it is known."""
    return f"{source.type} from {source.place}" if source.place else str(source.type)
