"""Matching of values between plans of one network, and lookup of values by name.

Numbers such as ``%12`` follow the order of nodes and differ between plans. Values are therefore
matched by the expressions that compute them, as in value numbering.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from graphc.errors import OptionError
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.host_copies import is_fetched, original
from graphc.ir.op import REGISTRY, Op
from graphc.ops.choice import CastAttributes
from graphc.ops.fused import Fused, FusedAttributes, members_of
from graphc.ops.fused_reduce import FusedReduce, reduction_of
from graphc.ops.matmul import Linear, MatmulAttributes, activation_of
from graphc.ops.product_with_sums import ProductWithSums
from graphc.ops.reduce import ReduceAttributes
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.names import called, listed, origin
from graphc.view.page_model import Table

LISTED = 8
"""Maximum number of values that an error lists."""


def identities(graphs: Sequence[Graph]) -> list[dict[Value, int]]:
    """Assign a number to each value of each graph; values that match across graphs share a number.

    Two values match if the same ops with the same attributes compute them from the same sources. It
    does not matter how ops are grouped in fused nodes. If several values of one graph match, their
    order tells them apart. An operand may be a recomputed copy or its original, but a copy itself
    only matches copies of the same level. A value fetched from the host has the number of the value
    that was copied there; other values of copies match by what they copy.
    """
    table = Table[Hashable]()
    return [_numbers(graph, table) for graph in graphs]


def _numbers(graph: Graph, table: Table[Hashable]) -> dict[Value, int]:
    contents: dict[Value, int] = {}
    numbers: dict[Value, int] = {}
    seen: Counter[Hashable] = Counter()
    for value in graph.values:
        node = value.node
        if node is None:
            contents[value] = table.number((graph.names[value], value.type))
            numbers[value] = table.number(graph.names[value])
            continue
        if is_fetched(value):
            source = original(value)
            contents[value], numbers[value] = contents[source], numbers[source]
            continue
        if value not in contents:
            found = _contents(node, [contents[operand] for operand in node.inputs], table)
            contents.update(zip(node.outputs, found, strict=True))
        key = (contents[value], node.level if node.phase == "mirror" else None)
        numbers[value] = table.number((*key, seen[key]))
        seen[key] += 1
    return numbers


def _contents(node: Node, operands: Sequence[int], table: Table[Hashable]) -> list[int]:
    """Return the numbers of a node's outputs, derived from its op and its operands' numbers."""

    def computed(op: Op, attributes: Any, *given: Hashable, output: int = 0) -> int:
        return table.number((op.name, repr(attributes), given, output))

    def replayed(group: FusedAttributes, given: Sequence[int]) -> list[int]:
        known: dict[str, Hashable] = {f"x{i}": number for i, number in enumerate(given)}
        members = []
        for number, member in enumerate(members_of(group)):
            read = [known.get(name, name) for name in member.operands]  # a constant is its text
            members.append(computed(member.op, member.attributes, *read))
            known[f"m{number}"] = members[-1]
        return [members[number] for number in group.results]

    op, attributes = node.op, node.attributes
    if isinstance(op, Fused):
        return replayed(attributes, operands)
    if isinstance(op, FusedReduce):
        reduced = replayed(attributes.group, operands) if attributes.members else operands
        result = [computed(*reduction_of(attributes), *reduced)]
        return replayed(attributes.behind, result) if attributes.after else result
    if isinstance(op, Linear) and attributes.activation != "none":
        after = activation_of(node)
        sums = computed(op, replace(attributes, activation="none"), *operands)
        return [computed(after, after.attributes(), sums)]
    if isinstance(op, ProductWithSums):
        flags = MatmulAttributes(transpose_a=True, wide=attributes.wide)
        sums = computed(REGISTRY["sum"], ReduceAttributes((0,), False), operands[0])
        if node.outputs[1].type.dtype != node.inputs[0].type.dtype:
            sums = computed(REGISTRY["cast"], CastAttributes(node.outputs[1].type.dtype.name), sums)
        return [computed(REGISTRY["matmul"], flags, *operands), sums]
    return [computed(op, attributes, *operands, output=i) for i in range(len(node.outputs))]


def pairs(before: Graph, after: Graph) -> Iterator[tuple[Value | None, Value | None]]:
    """Yield every value of both graphs once, with its match in the other graph or None.

    Values that `identities` does not match are matched in order by scope, op, phase, level and
    type.
    """
    first, second = identities((before, after))
    by_number: dict[int, list[Value]] = {}  # a value and its copies from the host share a number
    for value, number in second.items():
        by_number.setdefault(number, []).append(value)
    matched = {
        value: by_number[number].pop(0) if by_number.get(number) else None
        for value, number in first.items()
    }
    rest = _by_place(itertools.chain.from_iterable(by_number.values()))
    for key, value in _by_place(v for v, match in matched.items() if match is None).items():
        matched[value] = rest.pop(key, None)
    yield from matched.items()
    for value in rest.values():
        yield None, value


def _by_place(values: Iterable[Value]) -> dict[Hashable, Value]:
    seen: Counter[Hashable] = Counter()
    found: dict[Hashable, Value] = {}
    for value in values:
        key: Hashable = value
        if value.node is not None:
            node = value.node
            key = (node.label, node.phase, node.level, value.index, value.type)
        found[key, seen[key]] = value
        seen[key] += 1
    return found


def find_value(plan: MemoryPlan, text: str) -> Value:
    """Find a value by name (``%12``, ``@layer0/weight``, an output's name) or by scope and op.

    If several values have exactly this scope and op, the first one is returned. If none has, `text`
    may be a substring of the description of exactly one value. Otherwise `OptionError` lists
    candidates.
    """
    names = plan.graph.names
    if not text:
        raise OptionError("give the name of a value, such as %0, or scope and op; got nothing")
    if text in plan.graph.outputs:
        return plan.graph.outputs[text]
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
            + (f"similar names are {', '.join(alike)}" if alike else "no name is similar")
            + "; `graphc plan --text` prints all values with name, scope and op"
        )
    fitting = listed([called(plan, value) for value in near], LISTED)
    raise OptionError(f"{text!r} matches {len(near)} values; choose one of: {fitting}")
