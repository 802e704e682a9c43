"""Parser of the text form of a graph, which `graphc.ir.text` prints."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from graphc.errors import GraphcError, TextError, quoted, window
from graphc.ir import builder
from graphc.ir.contents import read_contents
from graphc.ir.graph import Graph, Initial, Memory, Node, Phase, State, Value
from graphc.ir.names import check_name, check_state_name
from graphc.ir.op import REGISTRY, Op
from graphc.ir.shards import Member, Shard
from graphc.ir.syntax import expression_tree
from graphc.ir.types import TensorType, inner_dtype
from graphc.ir.verify import verify

PHASES: dict[str, Phase] = {
    "forward": "forward",
    "gradient": "gradient",
    "mirror": "mirror",
    "update": "update",
}
ROLES = ("parameter", "moment", "statistic", "counter", "constant")

SOURCE_DETAILS = {"input": ("default",), "constant": ("values", "base64", "digest")}
"""Kind of input or state → names of its attributes, if these are not those of an `Initial`."""

FAULTS = (GraphcError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""Exceptions that an op may raise for unexpected operands and attributes."""

_NAME = r"[%@][\w./-]+"
_DECLARED = re.compile(rf"({_NAME}): (\w+)\[([\d,]*)\]")
_EQUATION = re.compile(
    rf"(?P<left>{_NAME}: \S.*?) = (?P<op>\w+)\((?P<operands>[^()]*)\)"
    r"(?: \{(?P<attributes>.*)\})?(?: \[(?P<marks>[^\[\]]*)\])?(?:  # (?P<scope>\S+))?"
)
_OUTPUT = re.compile(rf"output (?P<name>[\w./-]+) = (?P<value>{_NAME})")


def parse_graph(text: str) -> Graph:
    """Return a graph from its text form; raises `TextError` with the lines around the fault."""
    return _Parser(text).run()


class _Parser:
    """A line-by-line parser of one text; `at` is the current line, for messages."""

    def __init__(self, text: str) -> None:
        self.lines = text.strip().splitlines()
        self.at = 0
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.outputs: dict[str, Value] = {}
        self.kept: set[Value] = set()
        self.known_details: dict[str, Mapping[str, Any]] = {}

    def fail(self, message: str) -> NoReturn:
        raise TextError(f"line {self.at + 1}: {message}\n{window(self.lines, self.at)}")

    def run(self) -> Graph:
        if not self.lines or self.lines[0].strip() != "graph {" or self.lines[-1].strip() != "}":
            self.fail("a graph must begin with the line 'graph {' and end with the line '}'")
        for at, line in enumerate(map(str.strip, self.lines)):
            self.at = at
            if at in (0, len(self.lines) - 1):
                continue
            if match := _OUTPUT.fullmatch(line):
                if match["name"] in self.outputs:
                    self.fail(f"output {match['name']!r} is defined twice")
                self.outputs[match["name"]] = self.find(match["value"])
            elif match := _EQUATION.fullmatch(line):
                self.equation(match)
            elif line:
                self.fail("expected '%name: type = op(operands)' or 'output name = %value'")
        graph = Graph(tuple(self.nodes), self.outputs, frozenset(self.kept))
        try:
            verify(graph)
        except GraphcError as error:
            raise TextError(str(error)) from None
        return graph

    def find(self, name: str) -> Value:
        """Return the value called `name`.

        If a later line defines the value, the error message includes the number of that line.
        """
        if name in self.values:
            return self.values[name]
        later = (i for i in range(self.at, len(self.lines)) if f"{name}:" in self.lines[i])
        defined = next(later, None)
        if defined is not None:
            self.fail(
                f"{name} is read before line {defined + 1} defines it; list nodes in execution "
                "order, so that each node reads only values defined above it"
            )
        return self.fail(f"{name} is not defined")

    def checked_name(self, name: str) -> str:
        """Return the name of a scope or a segment, with the same rules as in the builder."""
        try:
            return check_name(name)
        except GraphcError as error:
            self.fail(str(error))

    def declared(self, left: str) -> list[tuple[str, TensorType]]:
        """Return the names and types on the left of an equation."""
        found = []
        if not re.fullmatch(rf"{_DECLARED.pattern}(, {_DECLARED.pattern})*", left):
            self.fail(f"expected 'name: type, ...', got {left!r}")
        for name, dtype, extents in _DECLARED.findall(left):
            if name in self.values:
                self.fail(f"{name} is defined twice")
            try:
                shape = tuple(map(_whole, filter(None, extents.split(","))))
                found.append((name, TensorType(shape, inner_dtype(dtype))))
            except (GraphcError, ValueError) as error:
                self.fail(str(error))
        return found

    def equation(self, match: re.Match[str]) -> None:
        """Parse a line that defines an input, a state or the outputs of a node."""
        declared = self.declared(match["left"])
        details = self.details(match["attributes"] or "")
        if match["op"] == "input" or match["op"] in ROLES:
            if len(declared) != 1:
                self.fail(f"{match['op']} defines exactly one value")
            name, type = declared[0]
            self.values[name] = self.source(match["op"], name, type, details)
            if match["marks"] == "keep":
                self.kept.add(self.values[name])
            return
        node = self.node(match, details)
        stated = [type for _, type in declared]
        if stated != list(node.output_types):
            inferred = ", ".join(map(str, node.output_types))
            self.fail(
                f"the line declares {', '.join(map(str, stated))}, but the op returns {inferred}"
            )
        self.nodes.append(node)
        for (name, _), value in zip(declared, node.outputs, strict=True):
            self.values[name] = value
            if {"keep", f"keep={value.index}"} & set((match["marks"] or "").split(", ")):
                self.kept.add(value)

    def details(self, source: str) -> Mapping[str, Any]:
        """Return the attributes in braces, cached by text, since deep networks repeat texts."""
        if source not in self.known_details:
            self.known_details[source] = self.parsed(source)
        return self.known_details[source]

    def parsed(self, source: str) -> Mapping[str, Any]:
        try:
            call = expression_tree(f"f({source})")
            assert isinstance(call, ast.Call)
            assert not call.args
            return {str(k.arg): _literal(k.value) for k in call.keywords}
        except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
            self.fail(f"attributes must have the form 'name=literal, ...', got {{{source}}}")

    def source(self, kind: str, name: str, type: TensorType, details: Mapping[str, Any]) -> Value:
        label = name[1:]
        if (kind == "input") != name.startswith("%"):
            self.fail("names of inputs must begin with %, names of states with @")
        known = SOURCE_DETAILS.get(kind, ("initial", "scale", "trainable", "memory"))
        if "members" in details and kind in ("parameter", "moment"):
            known = ("ranks", "members")
        if not set(details) <= set(known):
            self.fail(f"{kind} needs the details {known}, got {list(details)}")
        try:
            (check_name if kind == "input" else check_state_name)(label)
            if kind == "constant":
                return builder.constant_named(label, read_contents(type, details))
            if kind == "input":
                return builder.input(label, type.shape, type.dtype, details.get("default"))
            initial = self.initial(label, type, details)
        except GraphcError as error:
            self.fail(str(error))
        trainable = kind == "parameter" and details.get("trainable", True)
        if not isinstance(trainable, bool):
            self.fail(f"trainable must be True or False, got {trainable!r}")
        memory = details.get("memory", "device")
        if memory not in get_args(Memory):
            self.fail(f"memory must be one of {get_args(Memory)}, got {memory!r}")
        return State(
            type, name=label, initial=initial, role=kind, trainable=trainable, memory=memory,  # type: ignore[arg-type]
        )  # fmt: skip

    def initial(self, label: str, type: TensorType, details: Mapping[str, Any]) -> Initial | Shard:
        if "members" not in details:
            initial = Initial(details.get("initial", "constant"), details.get("scale", 0.0))
            builder.check_initial(label, type, initial)
            return initial
        try:
            members = [
                Member(name, tuple(shape), Initial(kind, scale))
                for name, shape, kind, scale in details["members"]
            ]
            shard = Shard(details.get("ranks", 0), tuple(members))
            builder.check_shard(label, type, shard)
        except (TypeError, ValueError):
            self.fail(f"members of {label!r} must be tuples (name, shape, initial kind, scale)")
        return shard

    def node(self, match: re.Match[str], details: Mapping[str, Any]) -> Node:
        op = REGISTRY.get(match["op"])
        if op is None:
            self.fail(
                f"unknown op {match['op']!r}; `graphc ops` lists the {len(REGISTRY)} known ops"
            )
        known = fields(op.attributes)
        needed = {field.name for field in known if field.default is MISSING}
        if not needed <= set(details) <= {field.name for field in known}:
            expected = [field.name for field in known]
            self.fail(f"{op.name} needs the attributes {expected}, got {list(details)}")
        for name, given in details.items():
            if not fits(given, attribute_types(op)[name]):
                wanted = attribute_types(op)[name]
                kind = wanted.__name__ if isinstance(wanted, type) else wanted
                self.fail(f"{op.name}: {name} must have the type {kind}, got {quoted(given)}")
        operands = [self.find(name) for name in match["operands"].split(", ") if name]
        marks = [mark for mark in (match["marks"] or "").split(", ") if mark]
        context = builder.Context(scope=self.checked_name(match["scope"]) if match["scope"] else "")
        for mark in marks:
            if mark in PHASES:
                context = replace(context, phase=PHASES[mark])
            elif re.fullmatch(r"mirror=[0-9]{1,9}", mark):
                context = replace(context, mirror=int(mark[7:]))
            elif mark.startswith("segment="):
                context = replace(context, segment=self.checked_name(mark[8:]))
            elif not re.fullmatch(r"keep(=[0-9]+)?", mark):
                self.fail(f"unknown mark {mark!r}")
        try:
            node = builder.create(op, operands, op.attributes(**details), context)
        except FAULTS as error:
            self.fail(f"{op.name} does not accept these operands and attributes: {error}")
        return self.copied(node, match["left"])

    def copied(self, node: Node, left: str) -> Node:
        """Restore the mirrored copy that a name denotes: ``%6.m1`` is the first copy of ``%6``."""
        found = re.match(r"([%@][\w./-]+)\.m([0-9]{1,9}):", left)
        if found is None or node.phase != "mirror":
            return node
        original = self.find(found[1]).node
        same = original and (node.op, node.attributes, node.output_types) == (
            original.op,
            original.attributes,
            original.output_types,
        )
        if not same:
            self.fail(
                f"{left.partition(':')[0]} is marked as a copy of {found[1]}, but differs from it"
            )
        return replace(node, copy_of=original, level=int(found[2]))


def _whole(digits: str) -> int:
    """Return a number as an integer.

    Raises `ValueError` above 18 digits, which might exceed 64 bits.
    """
    if len(digits) > 18:
        raise ValueError(f"an extent of {len(digits)} digits is too large")
    return int(digits)


@functools.cache
def attribute_types(op: Op) -> dict[str, Any]:
    """Return the declared types of an op's attributes, by name."""
    return get_type_hints(op.attributes)


def fits(given: Any, declared: Any) -> bool:
    """Return whether a literal has a declared type.

    Types that have no literals accept any literal.
    """
    if declared in (int, bool, str):
        return type(given) is declared
    if declared is float:
        return type(given) in (int, float)
    if get_origin(declared) is tuple:
        if not isinstance(given, tuple):
            return False
        parts = get_args(declared)
        if parts[-1:] == (...,):
            return all(fits(part, parts[0]) for part in given)
        return len(given) == len(parts) and all(map(fits, given, parts))
    return True


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal.

    The names inf and nan are floats, although Python parses them as variables.
    """
    match node:
        case ast.Name(id="inf" | "nan"):
            return float(node.id)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf" | "nan" as name)):
            return -float(name)
    return ast.literal_eval(node)
