"""Measured times of kernels, and the JSON file that keeps them.

    {"format": 1,
     "device": {"name": "cpu", "machine": "x86_64, 2 x ...", "numpy": "2.4.6"},
     "measured": [{"key": "tanh(f32[64,10]) -> f32[64,10]", "op": "tanh", "seconds": 1.2e-05,
                   "count": 3, "flops": 6400, "bytes": 5120}, ...]}

`runtime.profile` measures, `passes.cost` plans with what was measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from graphc.errors import OptionError
from graphc.files import write_atomically
from graphc.ir.graph import Node
from graphc.ir.op import attribute_items

FORMAT = 1

LARGEST = 1e30
"""Beyond any count or time that means something; sums and products of it stay finite."""

CURE = "`graphc profile MODEL --output FILE` writes such a file"


def node_key(node: Node) -> str:
    """What decides the time of a node's kernel: op, attributes, types; not its scope or phase."""
    inputs = ", ".join(str(value.type) for value in node.inputs)
    outputs = ", ".join(str(type) for type in node.output_types)
    items = [
        f"{name}={value!r}"
        for name, value in attribute_items(node.attributes)
        if name not in node.op.untimed_attributes
    ]
    attributes = f" {{{', '.join(items)}}}" if items else ""
    return f"{node.op.name}({inputs}) -> {outputs}{attributes}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The nodes of one key: how many a step had, the mean seconds of one, and the work of one."""

    key: str
    op: str
    seconds: float
    count: int
    flops: int
    bytes: int
    """Read and written."""


@dataclass(frozen=True)
class MeasuredCosts:
    """Times of one step's kernels; `device` says where they were measured, at least its name."""

    device: Mapping[str, str]
    measured: tuple[Measurement, ...]

    def as_json(self) -> dict[str, Any]:
        """The object that a file holds."""
        measured = [asdict(entry) for entry in self.measured]
        return {"format": FORMAT, "device": dict(self.device), "measured": measured}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file; raises `OptionError` where that cannot be."""
        text = json.dumps(self.as_json(), indent=1) + "\n"
        write_atomically(path, text.encode(), OptionError)


Costs = str | os.PathLike[str] | Mapping[str, Any] | MeasuredCosts
"""A file that `graphc profile` wrote, the object in it, or what `graphc.profile` returned."""


def load_costs(given: Costs) -> MeasuredCosts:
    """Measured costs, wherever they are; raises `OptionError` that says where what is wrong."""
    if isinstance(given, MeasuredCosts):
        return given
    if isinstance(given, Mapping):
        return parse_costs(given)
    if isinstance(given, str | os.PathLike):
        return read_costs(given)
    raise OptionError(f"costs are a path or measured costs, got {given!r}; {CURE}")


def read_costs(path: str | os.PathLike[str]) -> MeasuredCosts:
    """Read a file that `graphc profile` wrote; raises `OptionError`."""
    name = f"costs {os.fspath(path)!r}"
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"cannot read the {name}: {error.strerror}; {CURE}") from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{name} are not JSON: {error}; {CURE}") from None
    return parse_costs(given, name)


def parse_costs(given: object, where: str = "costs") -> MeasuredCosts:
    """Measured costs from the object that a file holds; raises `OptionError`."""
    if not isinstance(given, Mapping) or not isinstance(given.get("measured"), list):
        raise OptionError(f"{where}: an object with a list under 'measured' is expected; {CURE}")
    if given.get("format") != FORMAT:
        raise OptionError(
            f"{where}: the format must be {FORMAT}, got {given.get('format')!r}; measure again, "
            f"{CURE}"
        )
    device = given.get("device")
    if not isinstance(device, Mapping) or not isinstance(device.get("name"), str):
        raise OptionError(
            f"{where}: 'device' is an object with the device's name, got {device!r}; {CURE}"
        )
    measured: dict[str, Measurement] = {}
    for position, entry in enumerate(given["measured"]):
        found = _measurement(entry, f"{where}, measured[{position}]")
        if found.key in measured:
            raise OptionError(
                f"{where}, measured[{position}]: a key stands once, got {found.key!r} again; "
                "remove one of them"
            )
        measured[found.key] = found
    described = {str(name): str(value) for name, value in device.items()}
    return MeasuredCosts(described, tuple(measured.values()))


RULES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number from 0 up"),
    "float": ((int, float), "a number from 0 up"),
}


def _measurement(entry: object, where: str) -> Measurement:
    if not isinstance(entry, Mapping):
        raise OptionError(f"{where}: a measurement is an object, got {entry!r}; {CURE}")
    for field in fields(Measurement):
        kind, rule = RULES[str(field.type)]
        found: Any = entry.get(field.name)
        right = isinstance(found, kind) and not isinstance(found, bool)
        if right and not isinstance(found, str):
            right = 0 <= found <= LARGEST
        if not right:
            raise OptionError(f"{where}: {field.name!r} is {rule}, got {found!r}; {CURE}")
    return Measurement(**{field.name: entry[field.name] for field in fields(Measurement)})
