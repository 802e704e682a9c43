"""Python's syntax trees, read by one thread at a time."""

from __future__ import annotations

import ast

from graphc.forks import lock_across_forks

_READING = lock_across_forks()


def expression_tree(source: str) -> ast.expr:
    """The tree of one expression. Raises what `ast.parse` raises.

    CPython before December 2023 counts a tree's depth for all threads together (gh-106905): where a
    collection of garbage lets another thread in, a second reader ends both by a SystemError.
    """
    with _READING:
        return ast.parse(source, mode="eval").body
