"""Plans as one self-contained HTML page: style, script and data are embedded."""

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
from graphc.plans.names import kind_label
from graphc.view.clock import Clock
from graphc.view.matching import identities
from graphc.view.page_model import HOWS, PHASES, kinds_of, page_model

SCRIPTS = (
    "plan.js", "map.js", "limit.js", "panels.js", "scopes.js", "neighbours.js", "pointer.js",
    "help.js", "address.js", "host.js", "page.js",
)  # fmt: skip
"""Scripts of the page, which share one scope; the last one starts the page."""

FOR_HOST = re.compile(r".*// with a host map\n")
"""Lines of scripts that call ``host.js``; pages of plans without copies have neither."""


class Limit(NamedTuple):
    """A capacity of the arena in bytes, and where it comes from, such as the name of a device."""

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
    """Return the page of one or several plans, a tab each, on common axes.

    `plans` maps the label of each tab to its plan, and `clocks` maps it to node times, by default
    those of the roofline of the plan's device. `notes` are sentences shown beside the map, and
    `lowering` sentences on how to reduce a plan's arena. `limits` are capacities, drawn as a line
    if they are near. `opened` is the label of the tab shown first, on the axes of its own plan
    instead of those of all.
    """
    models = _models(plans, clocks or {}, lowering or {}, limits or {})
    at = None if opened is None else list(plans).index(opened)
    return page_of(models, title, notes, at, kinds_of(*plans.values()))


def page_of(
    models: Sequence[Mapping[str, Any]],
    title: str,
    notes: Sequence[str],
    opened: int | None,
    kinds: Sequence[str],
) -> str:
    """Return the page of several models.

    Models are objects from `page_model` with the additional entries ``same``, ``lowering`` and
    ``limit``. Buffer kinds are numbered as in `kinds`. Each kind has a color in the style sheet.
    The model numbered `opened` is shown first, on its own axes; None shows the first model, on axes
    that fit all models.
    """
    content = {
        "title": title,
        "kinds": list(kinds),
        "kind_labels": [kind_label(kind) for kind in kinds],
        "hows": HOWS,
        "phases": PHASES,
        "notes": list(notes),
        "opened": opened or 0,
        "fitted": opened is not None,
        "plans": list(models),
    }
    has_host = any("host_bytes" in model for model in models)
    scripts = "\n".join(_template(name) for name in SCRIPTS if has_host or name != "host.js")
    parts = {
        "title": html.escape(title),
        "style": _template("page.css") + (_template("host.css") if has_host else ""),
        "host": _template("host.html") if has_host else "",
        "content": _embedded(content),
        "script": scripts if has_host else FOR_HOST.sub("", scripts),
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
    """Return one model per plan.

    Values that match across plans have equal numbers in all models.
    """
    models = []
    same = identities([plan.graph for plan in plans.values()])
    for (label, plan), numbers in zip(plans.items(), same, strict=True):
        model = page_model(plan, label, clocks.get(label), kinds_of(*plans.values()))
        model["values"]["same"] = list(numbers.values())
        model["lowering"] = list(lowering.get(label, ()))
        model["limit"] = limits[label]._asdict() if label in limits else None
        models.append(model)
    return models


def _template(name: str) -> str:
    return files("graphc.view").joinpath("template", name).read_text("utf-8")


def _embedded(content: Any) -> str:
    """Encode JSON with zlib (to about a fifth) and base64, so it cannot end the script element."""
    text = json.dumps(content, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")
