"""Docstrings start with a noun or a verb, in at most 25 words, without private terms."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EVASIVE = re.compile(r"(What|Whether|How|Of|Where|As)\b")
"""First words that describe a thing by a question or a relative clause."""

PRIVATE = re.compile(r"\b(lies|stands|made again|the turn|room)\b", re.IGNORECASE)
"""Words for which there are standard terms, such as boundary, capacity or workspace."""

MOST_WORDS = 25


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of statements that hold further statements."""


def _blocks(node):
    """Yield a node and all statements within it that hold statements; expressions are skipped."""
    yield node
    for name in BLOCKS:
        for inner in getattr(node, name, ()):
            if hasattr(inner, "body"):
                yield from _blocks(inner)


@functools.cache
def docstrings():
    """Return the place and the text of each docstring of the package, parsed once."""
    return [each for path in sorted((ROOT / "graphc").rglob("*.py")) for each in _texts(path)]


def _texts(path):
    for node in _blocks(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                name = getattr(node, "name", "the module")
                yield f"{path.relative_to(ROOT)}: {name}", text
        for statement in node.body:  # strings below constants, fields
            match statement:
                case ast.Expr(ast.Constant(str(text))) if text.strip():
                    where = f"{path.relative_to(ROOT)}:{statement.lineno}"
                    yield where, text.strip()


def test_docstrings_start_with_a_noun_or_a_verb():
    found = docstrings()
    assert len(found) > 4000
    assert [place for place, text in found if EVASIVE.match(text)] == []


def test_first_lines_of_docstrings_are_short():
    lines = ((place, text.splitlines()[0]) for place, text in docstrings())
    words = ((place, re.findall(r"[^\W\d_]{2,}", line)) for place, line in lines)
    assert [place for place, found in words if len(found) > MOST_WORDS] == []


def test_docstrings_use_standard_terms():
    assert [place for place, text in docstrings() if PRIVATE.search(text)] == []
