"""The link between device and host memory of a problem given as data, and events of a schedule.

With a link, values may be copied to host memory and fetched again later. A schedule is then a list
of events in the order in which they are issued:

    run n     compute node n
    out v     begin the copy of the value v, which is live, to the host
    drop v    free the device bytes of v, after waiting until its copy has ended
    in v      allocate the bytes of v on the device and begin the copy back

clocks.py defines when each event starts and ends.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from graphc.errors import ProblemError
from graphc.ir.host_link import HostLink
from graphc.json_fields import JsonReader

READER = JsonReader(ProblemError)

KEYS = ("to_host", "to_device", "latency", "host_bytes", "both_ways")

FASTEST = 2.0**60
"""The highest rate in bytes per second."""

Kind = Literal["run", "out", "drop", "in"]


class Event(NamedTuple):
    """An event of a schedule: its kind, and a node for `run`, else a value."""

    kind: Kind
    number: int


def parse_link(given: Any, largest: int) -> HostLink:
    """Return the link that the object `link` of a file describes; raises `ProblemError`. Latency
    and host bytes are at most `largest`."""
    found = READER.objects(given, "link", KEYS[:2])
    if unknown := [key for key in found if key not in KEYS]:
        READER.fail("link", f"expected only the keys {', '.join(KEYS)}", unknown[0])
    for key in KEYS[:2]:
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
