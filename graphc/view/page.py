"""Plans as one HTML page that needs nothing else: style, script and numbers stand in it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from graphc.ir.plan import MemoryPlan
from graphc.passes.cost import CostModel
from graphc.view.page_model import HOWS, KINDS, PHASES, page_model

SCRIPTS = ("plan.js", "map.js", "panels.js", "page.js")
"""One scope on the page; the last one sets all in motion."""


def page(
    plans: Mapping[str, MemoryPlan],
    title: str,
    costs: CostModel | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The page of one plan or of several, a tab each, on common axes.

    `plans` maps what stands on a tab to its plan; `notes` are sentences shown beside the map;
    `costs` gives the axis of seconds, by default the roofline of each plan's device.
    """
    content = {
        "title": title,
        "kinds": KINDS,
        "hows": HOWS,
        "phases": PHASES,
        "notes": list(notes),
        "plans": [page_model(plan, label, costs) for label, plan in plans.items()],
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


def _template(name: str) -> str:
    return files("graphc.view").joinpath("template", name).read_text("utf-8")


def _embedded(content: Any) -> str:
    """JSON for a script element, which a name such as ``</script>`` must not end."""
    text = json.dumps(content, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
