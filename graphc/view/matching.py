"""Values of two plans of one network that are the same value, and values by what people call them.

Numbers such as ``%12`` follow the order of nodes and differ between plans, so values are matched by
what computes them: scope, op, phase, which copy, and its rank among those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from difflib import get_close_matches

from graphc.errors import OptionError
from graphc.ir.graph import Graph, Value
from graphc.ir.plan import MemoryPlan
from graphc.view.page_model import origin

LISTED = 8
"""Values that an error lists."""


def pairs(before: Graph, after: Graph) -> Iterator[tuple[Value | None, Value | None]]:
    """Every value of both graphs once, beside its match in the other graph or None."""
    first, second = _by_key(before), _by_key(after)
    for key, value in first.items():
        yield value, second.get(key)
    for key, value in second.items():
        if key not in first:
            yield None, value


def _by_key(graph: Graph) -> dict[Hashable, Value]:
    seen: Counter[Hashable] = Counter()
    found: dict[Hashable, Value] = {}
    for value in graph.values:
        key: Hashable = graph.names[value]
        if value.node is not None:
            node = value.node
            key = (node.label, node.phase, node.level, value.index, value.type)
        found[key, seen[key]] = value
        seen[key] += 1
    return found


def find_value(plan: MemoryPlan, text: str) -> Value:
    """The value of that name, such as ``%12`` or ``@layer0/weight``, or from that scope and op.

    Where several values come from there, the first node's counts, unless the text is only a part
    of what they are called. Raises `OptionError` with what there is.
    """
    names = plan.graph.names
    for value, name in names.items():
        if text in (name, name[1:]):
            return value
    exact = [value for value in plan.graph.values if origin(value) == text]
    if exact:
        return exact[0]
    near = [value for value in plan.graph.values if text.lower() in called(plan, value).lower()]
    if len(near) == 1:
        return near[0]
    if not near:
        known = dict.fromkeys(part for value in names for part in (names[value], origin(value)))
        alike = get_close_matches(text, known, LISTED)
        raise OptionError(
            f"the plan has no value {text!r}; "
            + (f"close to it are {', '.join(alike)}" if alike else "none is called alike")
            + "; `graphc plan --text` prints all, by name and by scope and op"
        )
    listed = ", ".join(called(plan, value) for value in near[:LISTED])
    more = f" and {len(near) - LISTED} more" if len(near) > LISTED else ""
    raise OptionError(f"{text!r} fits {len(near)} values; choose one of: {listed}{more}")


def called(plan: MemoryPlan, value: Value) -> str:
    """A value's name, with the scope and op that it comes from."""
    return f"{plan.graph.names[value]} {origin(value)}".rstrip()
