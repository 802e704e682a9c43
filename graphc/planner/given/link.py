"""The link to host memory of a problem given as data."""

from __future__ import annotations

from typing import Any

from graphc.errors import ProblemError
from graphc.json_fields import JsonReader
from graphc.planner.host_link import HostLink

READER = JsonReader(ProblemError)

RATES = ("to_host", "to_device")

FASTEST = 2.0**60
"""The highest rate in bytes per second."""


def parse_link(given: Any, largest: int) -> HostLink:
    """Return the link that the object `link` of a file describes; raises `ProblemError`. Latency
    and host bytes are at most `largest`."""
    found = READER.record(given, RATES, "link", ("latency", "host_bytes", "both_ways"))
    for key in RATES:
        if READER.number(found[key], f"link.{key}", FASTEST) == 0:
            READER.fail(f"link.{key}", "expected a rate above 0 bytes per second", found[key])
    host_bytes = found.get("host_bytes")
    if host_bytes is not None:
        host_bytes = READER.whole(host_bytes, "link.host_bytes", below=largest + 1)
    return HostLink(
        float(found["to_host"]),
        float(found["to_device"]),
        READER.number(found.get("latency", 0), "link.latency", largest),
        host_bytes,
        READER.truth(found.get("both_ways", True), "link.both_ways"),
    )
