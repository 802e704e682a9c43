"""Plans as one HTML page that needs nothing else: style, script and numbers stand in it."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from graphc.plans.memory_plan import MemoryPlan
from graphc.view.clock import Clock
from graphc.view.matching import identities
from graphc.view.page_model import HOWS, PHASES, kinds_of, page_model

SCRIPTS = (
    "plan.js", "map.js", "limit.js", "panels.js", "scopes.js", "neighbours.js", "pointer.js",
    "help.js", "address.js", "page.js",
)  # fmt: skip
"""One scope on the page; the last one sets all in motion."""


class Limit(NamedTuple):
    """The bytes that an arena may have, and what they are of."""

    bytes: int
    name: str


def page(
    plans: Mapping[str, MemoryPlan],
    title: str,
    clocks: Mapping[str, Clock] | None = None,
    notes: Sequence[str] = (),
    *,
    lowering: Mapping[str, Sequence[str]] | None = None,
    limits: Mapping[str, Limit] | None = None,
    opened: str | None = None,
) -> str:
    """The page of one plan or of several, a tab each, on common axes.

    `plans` maps what stands on a tab to its plan, and `clocks` to how long its nodes take, by
    default by the roofline of its device; `notes` are sentences shown beside the map, `lowering`
    those on what would lower a plan's arena, and `limits` what it may have, drawn as a line where
    that is near. `opened` is the tab that is shown first.
    """
    models = _models(plans, clocks or {}, lowering or {}, limits or {})
    at = list(plans).index(opened) if opened is not None else 0
    return page_of(models, title, notes, at, kinds_of(*plans.values()))


def page_of(
    models: Sequence[Mapping[str, Any]],
    title: str,
    notes: Sequence[str],
    opened: int,
    kinds: Sequence[str],
) -> str:
    """The page of models as `page_model` makes them, each with ``same``, ``lowering``, ``limit``.

    The kinds of buffers are numbered as in `kinds`, each of which has a colour in the style.
    """
    content = {
        "title": title,
        "kinds": list(kinds),
        "hows": HOWS,
        "phases": PHASES,
        "notes": list(notes),
        "opened": opened,
        "plans": list(models),
    }
    parts = {
        "title": html.escape(title),
        "style": _template("page.css"),
        "content": _embedded(content),
        "script": "\n".join(_template(name) for name in SCRIPTS),
    }
    pieces = re.split(r"@(\w+)@", _template("page.html"))
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces)


def _models(
    plans: Mapping[str, MemoryPlan],
    clocks: Mapping[str, Clock],
    lowering: Mapping[str, Sequence[str]],
    limits: Mapping[str, Limit],
) -> list[dict[str, Any]]:
    """A model a plan, with numbers that are the same for what is the same value in all of them."""
    models = []
    same = identities([plan.graph for plan in plans.values()])
    for (label, plan), numbers in zip(plans.items(), same, strict=True):
        model = page_model(plan, label, clocks.get(label))
        model["values"]["same"] = list(numbers.values())
        model["lowering"] = list(lowering.get(label, ()))
        model["limit"] = limits[label]._asdict() if label in limits else None
        models.append(model)
    return models


def _template(name: str) -> str:
    return files("graphc.view").joinpath("template", name).read_text("utf-8")


def _embedded(content: Any) -> str:
    """JSON, compressed to about a fifth; in base64, no name in it can end the script element."""
    text = json.dumps(content, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")
