"""The link to host memory of a problem given as data."""

from __future__ import annotations

from typing import Any

from graphc.byte_sizes import parse_bytes
from graphc.errors import ProblemError
from graphc.json_fields import JsonReader
from graphc.planner.host_link import HostLink

READER = JsonReader(ProblemError)

RATES = ("to_host", "to_device")

FASTEST = 2.0**60
"""The highest rate in bytes per second."""


def parse_limit(given: Any, where: str, largest: int) -> int | None:
    """Return a limit in bytes, a number or a text such as ``7GiB``; None if there is none."""
    if isinstance(given, str):
        given = parse_bytes(where, given, ProblemError)
    return None if given is None else READER.whole(given, where, below=largest + 1)


def parse_link(given: Any, largest: int) -> HostLink:
    """Return the link that the object `link` of a file describes; raises `ProblemError`. Latency
    and host bytes are at most `largest`."""
    found = READER.record(given, RATES, "link", ("latency", "host_bytes", "both_ways"))
    for key in RATES:
        if READER.number(found[key], f"link.{key}", FASTEST) == 0:
            READER.fail(f"link.{key}", "expected a rate above 0 bytes per second", found[key])
    return HostLink(
        float(found["to_host"]),
        float(found["to_device"]),
        READER.number(found.get("latency", 0), "link.latency", largest),
        parse_limit(found.get("host_bytes"), "link.host_bytes", largest),
        READER.truth(found.get("both_ways", True), "link.both_ways"),
    )
