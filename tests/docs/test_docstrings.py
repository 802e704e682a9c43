"""Docstrings begin with what a thing is or does."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EVASIVE = re.compile(r"(What|Whether|How|Of|Where|As)\b")
"""First words that describe a thing by a question or a relative clause."""


def _statements(node):
    body = getattr(node, "body", ())
    return body if isinstance(body, list) else ()


def first_lines():
    """The place and the first line of each docstring of the package."""
    for path in sorted((ROOT / "graphc").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    name = getattr(node, "name", "the module")
                    yield f"{path.relative_to(ROOT)}: {name}", text.splitlines()[0]
            for statement in _statements(node):  # strings below constants, fields
                match statement:
                    case ast.Expr(ast.Constant(str(text))) if text.strip():
                        where = f"{path.relative_to(ROOT)}:{statement.lineno}"
                        yield where, text.strip().splitlines()[0]


def test_docstrings_begin_with_a_noun_or_a_verb():
    found = list(first_lines())
    assert len(found) > 4000
    assert [place for place, line in found if EVASIVE.match(line)] == []
