"""Python syntax trees, parsed by one thread at a time."""

from __future__ import annotations

import ast

from graphc.forks import lock_across_forks

_READING = lock_across_forks()


def expression_tree(source: str) -> ast.expr:
    """Return the tree of one expression; raises the errors of `ast.parse`.

    CPython before December 2023 counts a tree's depth for all threads together (gh-106905). If
    garbage collection switches to another thread that parses, too, both fail with a SystemError.
    """
    with _READING:
        return ast.parse(source, mode="eval").body
