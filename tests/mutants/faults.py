"""Small faults that can be put into a Python file, one at a time: `faults_in` lists them all.

A fault replaces the text of one expression or statement, so the numbers of other lines stay. Left
out is what no test should notice: annotations, docstrings, texts, what an error says, imports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

OPERATORS: dict[type[ast.AST], type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Fault:
    """A text of a file, from byte `start` to byte `end`, and what replaces it."""

    path: str
    function: str
    line: int
    start: int
    end: int
    text: str
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """The file with the fault in it."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} in {self.function}: {self.before}  ->  {self.after}"


def faults_in(root: Path, path: str) -> list[Fault]:
    """All faults of a file of the package, in the order of the text."""
    source = (root / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, text, function in _changes(ast.parse(source), path):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        head, tail = starts[node.lineno - 1], starts[node.end_lineno or 0]
        before = source[head:tail]
        after = source[head:start] + text.encode() + source[end:tail]
        shown = (" ".join(lines.decode().split()) for lines in (before, after))
        found.append(Fault(path, function, node.lineno, start, end, text, *shown))
    return found


def _changes(tree: ast.Module, path: str) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """What can be replaced, by which text, and the function that it is in."""
    left: list[tuple[ast.AST, str]] = [(tree, Path(path).stem)]
    while left:
        node, function = left.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}"
        if isinstance(node, ast.expr | ast.stmt):
            for text in _replacements(node):
                yield node, text, function
        for test in _conditions(node):
            yield test, f"(not ({ast.unparse(test)}))", function
        left += [(child, function) for child in _children(node)]


def _children(node: ast.AST) -> Iterable[ast.AST]:
    """The parts of a node in which a fault is worth a test."""
    match node:
        case ast.Raise() | ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Assert():
            return ()
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return ()
        case ast.Assign(targets=[target], value=value) if ast.unparse(target).isupper():
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            return [part for part in parts if not _is_measured(part)]
        case ast.AnnAssign(value=value):
            return () if value is None else (value,)
        case ast.FunctionDef(args=args, body=body):
            defaults = [default for default in args.kw_defaults if default is not None]
            return (*args.defaults, *defaults, *body)
        case ast.ClassDef(body=body):
            return body
        case ast.keyword(arg="strict"):  # of zip: it asserts, and decides nothing
            return ()
    return ast.iter_child_nodes(node)


def _conditions(node: ast.AST) -> list[ast.expr]:
    """The conditions of a node that can be negated; of `a == b` that is a fault already."""
    match node:
        case ast.comprehension(ifs=tests):
            found = tests
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            found = [test]
        case _:
            return []
    left_out = ast.Constant | ast.Compare
    return [t for t in found if not isinstance(t, left_out) and ast.unparse(t) != "TYPE_CHECKING"]


def _replacements(node: ast.expr | ast.stmt) -> Iterator[str]:
    """The texts that a node may be replaced by."""
    match node:
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield f"({value + 1!r})"
            if value:
                yield f"({value - 1!r})"
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                changed = [*ops[:at], OPERATORS[type(op)](), *ops[at + 1 :]]
                yield _text(ast.Compare(node.left, changed, node.comparators))
        case ast.BinOp(op=op) if type(op) in OPERATORS and not _of_texts(node):
            yield _text(ast.BinOp(node.left, OPERATORS[type(op)](), node.right))
        case ast.BoolOp(op=op):
            yield _text(ast.BoolOp(OPERATORS[type(op)](), node.values))
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield _text(operand)
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            yield _text(ast.Call(ast.Name(FUNCTIONS[name]), node.args, node.keywords))
        case ast.Call(func=ast.Name(id="sorted")):
            yield _text(ast.Call(ast.Name("list"), node.args, []))
        case ast.Return(value=value) if not isinstance(value, ast.Constant | None):
            yield "return None"
        case ast.AugAssign(op=op, value=value) if type(op) in OPERATORS and not _of_texts(value):
            yield ast.unparse(ast.AugAssign(node.target, OPERATORS[type(op)](), value))
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Raise() | ast.Delete():
            yield "pass"
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield "pass"
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"


def _is_measured(node: ast.expr) -> bool:
    """Whether this is a limit that was chosen by measuring: one more or less is as good."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value >= 64


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _of_texts(node: ast.expr) -> bool:
    """Whether texts are put together here."""
    return any(
        isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )
