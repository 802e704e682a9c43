"""The stream schedule of a plan as an object of its file."""

from __future__ import annotations

from typing import Any

from graphc.ir.graph import Graph
from graphc.json_fields import JsonReader
from graphc.plans.streams import MOST_STREAMS, StreamChoice, Streams, StreamSlot

STREAMS = "streams"
"""The key of the stream schedule in a plan file."""

STREAM_KEYS = ("count", "seconds", "one_stream_seconds", "choices", "nodes")


def streams_object(graph: Graph, streams: Streams) -> dict[str, Any]:
    """Return the schedule as a JSON object: the stream and the waits of each node.

    The waits are the numbers of the nodes that the node waits for.
    """
    slots = [streams.slots.get(node) for node in graph.nodes]
    return {
        "count": streams.count,
        "seconds": streams.seconds,
        "one_stream_seconds": streams.one_stream_seconds,
        "choices": [[choice.arena_bytes, choice.seconds] for choice in streams.choices],
        "nodes": [None if slot is None else [slot.stream, *slot.waits] for slot in slots],
    }


def read_streams(reader: JsonReader, given: object, graph: Graph) -> Streams | None:
    """Return the streams of a file, None if it has none.

    Raises the reader's error for an invalid structure. `check_plan` decides whether the waits are
    sufficient.
    """
    if given is None:
        return None
    found = reader.record(given, STREAM_KEYS, STREAMS)
    nodes = reader.listed(found["nodes"], f"{STREAMS}.nodes")
    if len(nodes) != len(graph.nodes):
        reader.fail(
            f"{STREAMS}.nodes", f"expected one entry for each of {len(graph.nodes)} nodes", nodes
        )
    slots = {}
    for step, (node, entry) in enumerate(zip(graph.nodes, nodes, strict=True)):
        if entry is not None:
            stream, *waits = _slot(reader, entry, f"{STREAMS}.nodes[{step}]")
            slots[node] = StreamSlot(stream, tuple(waits))
    choices = reader.listed(found["choices"], f"{STREAMS}.choices")
    return Streams(
        reader.whole(found["count"], f"{STREAMS}.count", 1, MOST_STREAMS + 1),
        slots,
        reader.number(found["seconds"], f"{STREAMS}.seconds"),
        reader.number(found["one_stream_seconds"], f"{STREAMS}.one_stream_seconds"),
        tuple(_choice(reader, each, f"{STREAMS}.choices[{at}]") for at, each in enumerate(choices)),
    )


def _slot(reader: JsonReader, given: object, where: str) -> list[int]:
    """Return a node's stream and the numbers of the nodes that it waits for."""
    listed = reader.listed(given, where)
    if not listed:
        reader.fail(where, "expected a stream and the nodes that it waits for", given)
    return [reader.whole(number, f"{where}[{at}]") for at, number in enumerate(listed)]


def _choice(reader: JsonReader, given: object, where: str) -> StreamChoice:
    pair = reader.listed(given, where)
    if len(pair) != 2:
        reader.fail(where, "expected [bytes, seconds]", given)
    return StreamChoice(reader.whole(pair[0], where), reader.number(pair[1], where))
