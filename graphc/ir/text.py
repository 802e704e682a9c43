"""The text form of a graph; what `format_graph` prints, `parse_graph` reads back.

    graph {
      %x: f32[64,784] = input()
      @layer0/weight: f32[10,784] = parameter() {initial='uniform', scale=0.08}
      %0: f32[64,10] = matmul(%x, @layer0/weight) {transpose_a=False, transpose_b=True}  # layer0
      %0.m1: f32[64,10] = ...                     the first mirrored copy of %0
      output loss = %7
    }

Square brackets after the attributes hold what is not the default: the phase, ``mirror=2`` (how
often the node may be computed again) and ``keep``. A node can only read what stands above it, so a
cycle cannot be written.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn

from graphc.errors import GraphcError, TextError, window
from graphc.ir import builder
from graphc.ir.graph import Graph, Initial, Input, Node, Phase, State, Value
from graphc.ir.op import REGISTRY, attribute_items
from graphc.ir.types import TensorType, as_dtype

PHASES: dict[str, Phase] = {
    "forward": "forward",
    "gradient": "gradient",
    "mirror": "mirror",
    "update": "update",
}
ROLES = ("parameter", "moment", "statistic", "counter")


def format_graph(graph: Graph) -> str:
    """The whole graph, one line a source, node or output."""
    lines = ["graph {"]
    lines += [f"  {_format_source(graph, source)}" for source in graph.sources]
    lines += [f"  {format_node(graph, node)}" for node in graph.nodes]
    lines += [f"  output {name} = {graph.names[value]}" for name, value in graph.outputs.items()]
    return "\n".join([*lines, "}"]) + "\n"


def _format_source(graph: Graph, source: Value) -> str:
    details: dict[str, Any] = {}
    kind = "input"
    if isinstance(source, Input):
        details = {} if source.default is None else {"default": source.default}
    elif isinstance(source, State):
        kind = source.role
        details = {"initial": source.initial.kind, "scale": source.initial.scale}
        if source.role == "parameter" and not source.trainable:
            details["trainable"] = False
    return f"{graph.names[source]}: {source.type} = {kind}(){_braces(details)}"


def format_node(graph: Graph, node: Node) -> str:
    """One node as a typed equation."""
    names = graph.names
    left = ", ".join(f"{names[value]}: {value.type}" for value in node.outputs)
    operands = ", ".join(names[value] for value in node.inputs)
    marks: list[str] = [] if node.phase == "forward" else [node.phase]
    marks += [f"mirror={node.mirror}"] if node.mirror else []
    marks += ["keep"] if any(value in graph.kept for value in node.outputs) else []
    suffix = f" [{', '.join(marks)}]" if marks else ""
    suffix += f"  # {node.scope}" if node.scope else ""
    braces = _braces(dict(attribute_items(node.attributes)))
    return f"{left} = {node.op.name}({operands}){braces}{suffix}"


def _braces(details: dict[str, Any]) -> str:
    inner = ", ".join(f"{key}={value!r}" for key, value in details.items())
    return f" {{{inner}}}" if inner else ""


_NAME = r"[%@][\w./-]+"
_DECLARED = re.compile(rf"({_NAME}): (\w+)\[([\d,]*)\]")
_EQUATION = re.compile(
    rf"(?P<left>{_NAME}: \S.*?) = (?P<op>\w+)\((?P<operands>[^()]*)\)"
    r"(?: \{(?P<attributes>.*)\})?(?: \[(?P<marks>[^\[\]]*)\])?(?:  # (?P<scope>\S+))?"
)
_OUTPUT = re.compile(rf"output (?P<name>[\w./-]+) = (?P<value>{_NAME})")


def parse_graph(text: str) -> Graph:
    """Read a graph from its text form; raises `TextError` with the lines around the fault."""
    return _Parser(text).run()


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines = text.strip().splitlines()
        self.at = 0
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.outputs: dict[str, Value] = {}
        self.kept: set[Value] = set()

    def fail(self, message: str) -> NoReturn:
        raise TextError(f"line {self.at + 1}: {message}\n{window(self.lines, self.at)}")

    def run(self) -> Graph:
        if not self.lines or self.lines[0].strip() != "graph {" or self.lines[-1].strip() != "}":
            self.fail("a graph begins with a line 'graph {' and ends with a line '}'")
        for at, line in enumerate(map(str.strip, self.lines)):
            self.at = at
            if at in (0, len(self.lines) - 1):
                continue
            if match := _OUTPUT.fullmatch(line):
                self.outputs[match["name"]] = self.find(match["value"])
            elif match := _EQUATION.fullmatch(line):
                self.equation(match)
            elif line:
                self.fail("expected '%name: type = op(operands)' or 'output name = %value'")
        graph = Graph(tuple(self.nodes), self.outputs, frozenset(self.kept))
        builder.check_names(graph)
        return graph

    def find(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        later = (i for i in range(self.at, len(self.lines)) if f"{name}:" in self.lines[i])
        defined = next(later, None)
        if defined is not None:
            self.fail(
                f"{name} is read before line {defined + 1} defines it; a graph lists nodes in "
                "execution order, so a node reads only what stands above it and no cycle can exist"
            )
        return self.fail(f"{name} is not defined anywhere")

    def declared(self, left: str) -> list[tuple[str, TensorType]]:
        found = []
        for name, dtype, extents in _DECLARED.findall(left):
            if name in self.values:
                self.fail(f"{name} is defined a second time")
            shape = tuple(int(extent) for extent in extents.split(",") if extent)
            try:
                found.append((name, TensorType(shape, as_dtype(dtype))))
            except GraphcError as error:
                self.fail(str(error))
        return found

    def equation(self, match: re.Match[str]) -> None:
        declared = self.declared(match["left"])
        details = self.details(match["attributes"] or "")
        if match["op"] == "input" or match["op"] in ROLES:
            if len(declared) != 1:
                self.fail(f"{match['op']} defines exactly one value")
            name, type = declared[0]
            self.values[name] = self.source(match["op"], name, type, details)
            return
        node = self.node(match, details)
        stated = [type for _, type in declared]
        if stated != list(node.output_types):
            inferred = ", ".join(map(str, node.output_types))
            self.fail(f"stated as {', '.join(map(str, stated))}, but the op yields {inferred}")
        self.nodes.append(node)
        for (name, _), value in zip(declared, node.outputs, strict=True):
            self.values[name] = value
            if "keep" in (match["marks"] or ""):
                self.kept.add(value)

    def details(self, source: str) -> dict[str, Any]:
        try:
            call = ast.parse(f"f({source})", mode="eval").body
            assert isinstance(call, ast.Call)
            return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        except (SyntaxError, ValueError):
            self.fail(f"attributes {{{source}}} are not 'name=literal, ...'")

    def source(self, kind: str, name: str, type: TensorType, details: dict[str, Any]) -> Value:
        label = name[1:]
        if (kind == "input") != name.startswith("%"):
            self.fail("inputs are named %name, states @name")
        if kind == "input":
            return Input(type, name=label, default=details.get("default"))
        initial = Initial(details.get("initial", "constant"), details.get("scale", 0.0))
        trainable = kind == "parameter" and details.get("trainable", True)
        return State(type, name=label, initial=initial, role=kind, trainable=trainable)  # type: ignore[arg-type]

    def node(self, match: re.Match[str], details: dict[str, Any]) -> Node:
        op = REGISTRY.get(match["op"])
        if op is None:
            self.fail(
                f"unknown op {match['op']!r}; `graphc ops` lists the {len(REGISTRY)} known ones"
            )
        expected = [field.name for field in fields(op.attributes)]
        if list(details) != expected:
            self.fail(f"{op.name} has the attributes {expected}, got {list(details)}")
        operands = [self.find(name) for name in match["operands"].split(", ") if name]
        marks = [mark for mark in (match["marks"] or "").split(", ") if mark]
        context = builder.Context(scope=match["scope"] or "")
        for mark in marks:
            if mark in PHASES:
                context = replace(context, phase=PHASES[mark])
            elif mark.startswith("mirror=") and mark[7:].isdigit():
                context = replace(context, mirror=int(mark[7:]))
            elif mark != "keep":
                self.fail(f"unknown mark {mark!r}")
        try:
            node = builder.create(op, operands, op.attributes(**details), context)
        except GraphcError as error:
            self.fail(str(error))
        return self.copied(node, match["left"])

    def copied(self, node: Node, left: str) -> Node:
        """Restore what a mirrored copy says in its name: ``%6.m1`` is the first copy of ``%6``."""
        found = re.match(r"([%@][\w./-]+)\.m(\d+):", left)
        if found is None or node.phase != "mirror":
            return node
        return replace(node, copy_of=self.find(found[1]).producer, level=int(found[2]))


def text_window(graph: Graph, node: Node, radius: int = 3) -> str:
    """The nodes around one, with an arrow: for errors."""
    step = graph.position[node]
    around: Sequence[Node] = graph.nodes[max(0, step - radius) : step + radius + 1]
    return window([format_node(graph, other) for other in around], around.index(node))
