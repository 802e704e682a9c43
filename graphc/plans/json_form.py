"""A memory plan as JSON. docs/plan-file.md describes the schema.

The graph is stored in its text form, and values by their names in it. Reading checks only the
structure: types, keys, names, indices. `graphc.load_plan` checks the layout.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast, get_args

from graphc.errors import GraphcError, PlanFileError
from graphc.ir.forms import writes
from graphc.ir.graph import Graph, Value
from graphc.ir.parse import parse_graph
from graphc.ir.text import format_graph
from graphc.json_fields import JsonReader
from graphc.plans.json_device import device_object, read_device
from graphc.plans.json_streams import STREAMS, read_streams, streams_object
from graphc.plans.memory_plan import (
    ALLOCATE,
    COMPARED,
    RECOMPUTE,
    Allocate,
    Buffer,
    Certificate,
    How,
    Kind,
    Lifetime,
    MemoryPlan,
    Placement,
    Recomputation,
    Slot,
    Way,
    check_alignment,
)

FORMAT = "graphc.plan"
VERSION = 1
"""The version of the schema; a reader accepts no other."""

CURE = "create a plan file with `graphc plan MODEL --output FILE`"

READER = JsonReader(PlanFileError, CURE)

UNSEALED = ("sha256", "planning_seconds")
"""The keys that the checksum does not cover: the checksum itself, and the planning time, which
differs between runs."""

SLOTS, HOST = "slots", "host_bytes"
"""Keys that are present only in files of plans with slots, and of plans with values on the host, as
the key of streams is. So adding these keys did not change files of other plans."""

KEYS = (
    "format", "version", "recompute", "allocate", "alignment", "device", "settings", "certificate",
    "recomputation", "arena_bytes", "feature_map_bytes", "strategy_bytes", "graph", "buffers",
    "placements", "workspaces", "sha256", "planning_seconds",
)  # fmt: skip
BUFFER_KEYS = ("kind", "offset", "bytes", "lifetime")
SLOT_KEYS = ("value", "way", "buffer")
PLACEMENT_KEYS = ("buffer", "offset", "strides", "how", "over")


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The contents of a plan file: a plan with valid structure, and the stated checksum."""

    plan: MemoryPlan
    sha256: str


@writes(MemoryPlan, "json")
def plan_to_json(plan: MemoryPlan) -> str:
    """Return the plan as JSON, with one line per node, buffer, placement and workspace.

    The same plan gives the same bytes, except for `planning_seconds`.
    """
    lines = [f"{json.dumps(key)}: {_laid_out(entry)}" for key, entry in plan_object(plan).items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _laid_out(entry: Any) -> str:
    """Format an entry as JSON.

    Long lists and nested objects have one line per element.
    """
    if isinstance(entry, list) and entry:
        return "[\n " + ",\n ".join(json.dumps(part) for part in entry) + "\n]"
    if isinstance(entry, dict) and any(isinstance(part, dict) for part in entry.values()):
        parts = (f"{json.dumps(key)}: {json.dumps(part)}" for key, part in entry.items())
        return "{\n " + ",\n ".join(parts) + "\n}"
    return json.dumps(entry, allow_nan=False)


def plan_object(plan: MemoryPlan) -> dict[str, Any]:
    """Return the JSON object of a plan file."""
    graph, names = plan.graph, plan.graph.names
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "recompute": plan.recompute,
        "allocate": plan.allocate,
        "alignment": plan.alignment,
        "device": device_object(plan.device),
        "settings": dict(plan.settings),
        "certificate": None if plan.certificate is None else asdict(plan.certificate),
        "recomputation": asdict(plan.recomputation),
        "arena_bytes": plan.arena_bytes,
        "feature_map_bytes": plan.feature_map_bytes,
        "strategy_bytes": dict(plan.strategy_bytes),
        "graph": format_graph(graph).splitlines(),
        "buffers": [
            {
                "kind": buffer.kind,
                "offset": buffer.offset,
                "bytes": buffer.bytes,
                "lifetime": [buffer.lifetime.first, buffer.lifetime.last],
            }
            for buffer in plan.buffers
        ],
        "placements": {names[v]: _placement_object(plan, v) for v in graph.values},
        "workspaces": [
            {"step": graph.position[node], "buffer": buffer.index}
            for node, buffer in plan.workspaces.items()
        ],
    }
    if plan.slots:
        content[SLOTS] = [
            {"value": names[slot.value], "way": slot.way, "buffer": slot.buffer.index}
            for slot in plan.slots
        ]
    if plan.host_bytes:
        content[HOST] = plan.host_bytes
    if plan.streams is not None:
        content[STREAMS] = streams_object(graph, plan.streams)
    sha256 = checksum(content)
    return {**content, "sha256": sha256, "planning_seconds": plan.planning_seconds}


def _placement_object(plan: MemoryPlan, value: Value) -> dict[str, Any]:
    placement = plan.placements[value]
    return {
        "buffer": placement.buffer,
        "offset": placement.offset,
        "strides": None if placement.strides is None else list(placement.strides),
        "how": placement.how,
        "over": None if placement.over is None else plan.graph.names[placement.over],
    }


def checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of an object's JSON with sorted keys and no spaces."""
    sealed = {key: entry for key, entry in content.items() if key not in UNSEALED}
    text = json.dumps(sealed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def read_plan_json(text: str | bytes) -> PlanFile:
    """Read the output of `plan_to_json`; raises `PlanFileError` if its structure is invalid."""
    found = READER.objects(READER.parse(text), "the file")
    _check_version(found)
    rare: dict[str, Any] = {SLOTS: [], HOST: 0, STREAMS: None}
    READER.record({**rare, **found}, (*KEYS, *rare), "the file")
    graph = _graph(READER.listed(found["graph"], "graph"))
    buffers = tuple(_buffers(READER.listed(found["buffers"], "buffers"), len(graph.nodes)))
    allocate = READER.one_of(found["allocate"], ALLOCATE, "allocate")
    compared = tuple(dict.fromkeys((*COMPARED, allocate)))
    sizes = READER.record(found["strategy_bytes"], compared, "strategy_bytes")
    settings = READER.objects(found["settings"], "settings")
    plan = MemoryPlan(
        graph=graph,
        recompute=READER.one_of(found["recompute"], RECOMPUTE, "recompute"),
        allocate=cast(Allocate, allocate),
        alignment=_alignment(found["alignment"]),
        device=read_device(READER, found["device"]),
        buffers=buffers,
        placements=_placements(
            READER.objects(found["placements"], "placements"), graph, len(buffers)
        ),
        workspaces={
            graph.nodes[step]: buffers[index]
            for step, index in _workspaces(
                READER.listed(found["workspaces"], "workspaces"), buffers
            )
        },
        arena_bytes=READER.whole(found["arena_bytes"], "arena_bytes"),
        feature_map_bytes=READER.whole(found["feature_map_bytes"], "feature_map_bytes"),
        strategy_bytes={
            name: READER.whole(sizes[name], f"strategy_bytes.{name}") for name in sizes
        },
        recomputation=_recomputation(found["recomputation"]),
        planning_seconds=READER.number(found["planning_seconds"], "planning_seconds"),
        certificate=_certificate(found["certificate"]),
        settings={
            name: READER.scalar(given, f"settings.{name}") for name, given in settings.items()
        },
        slots=tuple(_slots(READER.listed(found.get(SLOTS, []), SLOTS), graph, buffers)),
        streams=read_streams(READER, found.get(STREAMS), graph),
        host_bytes=READER.whole(found.get(HOST, 0), HOST),
    )
    return PlanFile(plan, READER.text_of(found["sha256"], "sha256"))


def _check_version(found: dict[str, Any]) -> None:
    if found.get("format") != FORMAT:
        READER.fail("format", f"expected {FORMAT!r}, the format of plan files", found.get("format"))
    given = found.get("version")
    if type(given) is not int or given != VERSION:
        raise PlanFileError(
            f"version: this version of graphc reads version {VERSION} of the format, got "
            f"{given!r}; use the version of graphc that wrote the file, or plan again: {CURE}"
        )


def _graph(lines: list[Any]) -> Graph:
    for at, line in enumerate(lines):
        if len(READER.text_of(line, f"graph[{at}]").splitlines()) != 1:
            READER.fail(f"graph[{at}]", "expected one line", line)
    try:
        graph = parse_graph("\n".join(lines))
    except GraphcError as error:
        raise PlanFileError(f"graph: {error}") from None
    return graph


def _alignment(given: object) -> int:
    try:
        return check_alignment(READER.whole(given, "alignment"))
    except GraphcError as error:
        raise PlanFileError(f"alignment: {error}; {CURE}") from None


def _recomputation(given: object) -> Recomputation:
    keys = [field.name for field in fields(Recomputation)]
    found = READER.record(given, keys, "recomputation")
    fractions = (READER.number(found[key], f"recomputation.{key}") for key in keys[1:])
    return Recomputation(READER.whole(found["nodes"], "recomputation.nodes"), *fractions)


def _certificate(given: object) -> Certificate | None:
    if given is None:
        return None
    found = READER.record(given, [field.name for field in fields(Certificate)], "certificate")
    return Certificate(
        READER.text_of(found["goal"], "certificate.goal"),
        READER.whole(found["bound_bytes"], "certificate.bound_bytes"),
        READER.number(found["extra_time_bound"], "certificate.extra_time_bound"),
    )


def _buffers(entries: list[Any], steps: int) -> Iterator[Buffer]:
    for index, entry in enumerate(entries):
        where = f"buffers[{index}]"
        found = READER.record(entry, BUFFER_KEYS, where)
        lifetime = READER.listed(found["lifetime"], f"{where}.lifetime")
        if len(lifetime) != 2:
            READER.fail(f"{where}.lifetime", "expected [first step, last step + 1]", lifetime)
        first = READER.whole(lifetime[0], f"{where}.lifetime[0]", below=steps + 1)
        last = READER.whole(lifetime[1], f"{where}.lifetime[1]", first + 1, steps + 2)
        yield Buffer(
            index,
            cast(Kind, READER.one_of(found["kind"], get_args(Kind), f"{where}.kind")),
            READER.whole(found["offset"], f"{where}.offset"),
            READER.whole(found["bytes"], f"{where}.bytes", 1),
            Lifetime(first, last),
        )


def _placements(entries: dict[str, Any], graph: Graph, buffers: int) -> dict[Value, Placement]:
    named = {name: value for value, name in graph.names.items()}
    for name in named.keys() - entries.keys():
        READER.fail(
            "placements",
            f"the placement of the value {name!r} is missing",
            f"{len(entries)} placements",
        )
    for name in entries.keys() - named.keys():
        READER.fail("placements", "expected only values of the graph", name)
    placements = {}
    for value in graph.values:
        name = graph.names[value]
        where = f"placements[{name!r}]"
        found = READER.record(entries[name], PLACEMENT_KEYS, where)
        over = found["over"]
        if over is not None and READER.text_of(over, f"{where}.over") not in named:
            READER.fail(f"{where}.over", "expected the name of a value in the graph, or null", over)
        placements[value] = Placement(
            READER.whole(found["buffer"], f"{where}.buffer", below=buffers),
            READER.whole(found["offset"], f"{where}.offset"),
            _strides(found["strides"], value, f"{where}.strides"),
            cast(How, READER.one_of(found["how"], get_args(How), f"{where}.how")),
            None if over is None else named[over],
        )
    return placements


def _strides(given: object, value: Value, where: str) -> tuple[int, ...] | None:
    if given is None:
        return None
    strides = READER.listed(given, where)
    if len(strides) != value.type.rank:
        READER.fail(where, f"expected one number for each of the {value.type.rank} axes", given)
    return tuple(READER.whole(stride, f"{where}[{axis}]") for axis, stride in enumerate(strides))


def _slots(entries: list[Any], graph: Graph, buffers: tuple[Buffer, ...]) -> Iterator[Slot]:
    """Return the slots of a file; `check_plan` decides which values must have one."""
    named = {name: value for value, name in graph.names.items()}
    for at, entry in enumerate(entries):
        where = f"{SLOTS}[{at}]"
        found = READER.record(entry, SLOT_KEYS, where)
        if READER.text_of(found["value"], f"{where}.value") not in named:
            READER.fail(f"{where}.value", "the name of a value in the graph", found["value"])
        index = READER.whole(found["buffer"], f"{where}.buffer", below=len(buffers))
        way = READER.one_of(found["way"], get_args(Way), f"{where}.way")
        yield Slot(named[found["value"]], cast(Way, way), buffers[index])


def _workspaces(entries: list[Any], buffers: tuple[Buffer, ...]) -> Iterator[tuple[int, int]]:
    """Yield the workspaces of a file as (step, buffer), with distinct steps and buffers."""
    steps: set[int] = set()
    taken: set[int] = set()
    for at, entry in enumerate(entries):
        where = f"workspaces[{at}]"
        found = READER.record(entry, ("step", "buffer"), where)
        index = READER.whole(found["buffer"], f"{where}.buffer", below=len(buffers))
        step = READER.whole(found["step"], f"{where}.step")
        if buffers[index].kind != "workspace" or index in taken:
            READER.fail(
                f"{where}.buffer",
                "expected a buffer of the kind 'workspace' that no other node uses",
                index,
            )
        lifetime = buffers[index].lifetime
        if lifetime != Lifetime(step, step + 1) or step in steps:
            READER.fail(f"{where}.step", f"expected the only step of the lifetime {lifetime}", step)
        steps.add(step)
        taken.add(index)
        yield step, index
