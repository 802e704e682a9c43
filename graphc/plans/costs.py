"""Measured times of kernels, and their JSON file.

    {"format": 1,
     "device": {"name": "cpu", "machine": "x86_64, 2 x ...", "numpy": "2.4.6",
                "kernels": "native"},
     "measured": [{"key": "tanh(f32[64,10]) -> f32[64,10]", "op": "tanh", "seconds": 1.2e-05,
                   "count": 3, "flops": 6400, "bytes": 5120}, ...],
     "host_link": {"to_host": 2.4e10, "to_device": 2.5e10, "latency": 8e-06, "both_ways": true}}

Rates of the link between device and host memory are in bytes per second; `host_link` is optional.
`graphc.runtime.profile` measures the times; `graphc.plans.cost_model` derives node costs from them.
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
from graphc.json_fields import JsonReader
from graphc.planner.host_link import HostLink

FORMAT = 1

CURE = "create one with `graphc profile MODEL --output FILE`"

LINK_KEYS = ("to_host", "to_device", "latency", "both_ways")

READER = JsonReader(OptionError, CURE)


def node_key(node: Node) -> str:
    """Return the key of a node: its op, attributes and types.

    Nodes with the same key are assumed to take the same time.
    """
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
    """The measurement of all nodes with one key.

    It has their number in a step, and the mean seconds, flops and bytes of one node.
    """

    key: str
    op: str
    seconds: float
    count: int
    flops: int
    bytes: int
    """The bytes that one node reads and writes."""


@dataclass(frozen=True)
class MeasuredCosts:
    """Measured seconds of the kernels of one step, and the measured link to host memory if any.

    `device` describes the device that ran them; it has at least a name.
    """

    device: Mapping[str, str]
    measured: tuple[Measurement, ...]
    host_link: HostLink | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the file."""
        measured = [asdict(entry) for entry in self.measured]
        found = {"format": FORMAT, "device": dict(self.device), "measured": measured}
        if self.host_link is not None:
            found["host_link"] = {name: getattr(self.host_link, name) for name in LINK_KEYS}
        return found

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file; raises `OptionError` if that fails."""
        text = json.dumps(self.as_json(), indent=1) + "\n"
        write_atomically(path, text.encode(), OptionError)


Costs = str | os.PathLike[str] | Mapping[str, Any] | MeasuredCosts
"""A file written by `graphc profile`, its JSON object, or the result of `graphc.profile`."""


def load_costs(given: Costs) -> MeasuredCosts:
    """Return measured costs from any of the forms in `Costs`.

    Raises `OptionError` with the position of the error.
    """
    if isinstance(given, MeasuredCosts):
        return given
    if isinstance(given, Mapping):
        return parse_costs(dict(given))
    if isinstance(given, str | os.PathLike):
        return read_costs(given)
    raise OptionError(f"costs must be a path or measured costs, got {given!r}; {CURE}")


def read_costs(path: str | os.PathLike[str]) -> MeasuredCosts:
    """Read a file that `graphc profile` wrote; raises `OptionError`."""
    name = f"costs {os.fspath(path)!r}"
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"cannot read the {name}: {error.strerror}; {CURE}") from None
    return parse_costs(READER.parse(content, name), name)


def parse_costs(given: object, where: str = "costs") -> MeasuredCosts:
    """Return measured costs from a JSON object; raises `OptionError`.

    `where` is the path of the object, for messages.
    """
    found = READER.objects(given, where, ("format", "device", "measured"))
    if found["format"] != FORMAT:
        READER.fail(f"{where}, format", f"expected {FORMAT}", found["format"])
    device = READER.objects(found["device"], f"{where}, device", ("name",))
    READER.text_of(device["name"], f"{where}, device.name")
    measured: dict[str, Measurement] = {}
    for position, entry in enumerate(READER.listed(found["measured"], f"{where}, measured")):
        place = f"{where}, measured[{position}]"
        measurement = _measurement(entry, place)
        if measurement.key in measured:
            READER.fail(place, "each key must be unique", measurement.key)
        measured[measurement.key] = measurement
    link = _host_link(found["host_link"], f"{where}, host_link") if "host_link" in found else None
    described = {str(name): str(value) for name, value in device.items()}
    return MeasuredCosts(described, tuple(measured.values()), link)


def _host_link(given: object, where: str) -> HostLink:
    found = READER.objects(given, where, LINK_KEYS)
    to_host, to_device, latency = (
        READER.number(found[name], f"{where}.{name}") for name in LINK_KEYS[:3]
    )
    for name in LINK_KEYS[:2]:
        if not found[name]:
            READER.fail(f"{where}.{name}", "expected bytes per second above 0", found[name])
    both_ways = READER.truth(found["both_ways"], f"{where}.both_ways")
    return HostLink(to_host, to_device, latency, both_ways=both_ways)


def _measurement(entry: object, where: str) -> Measurement:
    found = READER.objects(entry, where, [field.name for field in fields(Measurement)])
    return Measurement(
        key=READER.text_of(found["key"], f"{where}.key"),
        op=READER.text_of(found["op"], f"{where}.op"),
        seconds=READER.number(found["seconds"], f"{where}.seconds"),
        count=READER.whole(found["count"], f"{where}.count"),
        flops=READER.whole(found["flops"], f"{where}.flops"),
        bytes=READER.whole(found["bytes"], f"{where}.bytes"),
    )
