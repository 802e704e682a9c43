"""Depth-first postorders by Liu's rule.

In a tree, a step runs after the subtrees of its operands, one subtree after the other. If subtree i
peaks at P(i) bytes and leaves R(i), running subtrees by decreasing P(i) - R(i) gives the lowest
peak of all postorders (Liu, "On the storage requirement in the out-of-core multifrontal method",
1986; for equal sizes this is the register rule of Sethi and Ullman). Graphs that are not trees are
traversed as if they were: a step that has been visited is not visited again.

Such an order is a starting point that does not depend on the given order. The same rule applied
backwards, from a step to its consumers, suits graphs that fan out.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.planner.order.precedence import Precedence


def postorders(problem: Precedence) -> list[list[int]]:
    """Return two legal orders: the postorder over operands, and the reversed postorder over
    consumers."""
    count, steps = len(problem), problem.steps
    read = [steps.total(inputs) for inputs in steps.inputs]
    forward = _postorder(range(count), problem.predecessors, problem.needed, problem.retained)
    backward = _postorder(range(count - 1, -1, -1), problem.successors, problem.needed, read)
    return [forward, backward[::-1]]


def _postorder(
    order: Sequence[int],
    predecessors: Sequence[Sequence[int]],
    needed: Sequence[int],
    left: Sequence[int],
) -> list[int]:
    """Return a postorder over `predecessors`.

    `order` lists each step after its predecessors. A step takes `needed` bytes in addition to its
    operands while it runs, and leaves `left` bytes.
    """
    peak = [0] * len(needed)
    children: list[list[int]] = [[]] * len(needed)

    def by_gain(chosen: Sequence[int]) -> list[int]:
        return sorted(chosen, key=lambda step: (left[step] - peak[step], step))

    is_root = [True] * len(needed)
    for step in order:
        children[step], level = by_gain(predecessors[step]), 0
        for child in children[step]:
            is_root[child] = False
            peak[step] = max(peak[step], level + peak[child])
            level += left[child]
        peak[step] = max(peak[step], level + needed[step])
    visited = [False] * len(needed)
    found: list[int] = []
    # Children are pushed above their parent, the first one on top.
    stack = by_gain([step for step in order if is_root[step]])[::-1]
    while stack:
        step = stack[-1]
        if visited[step]:
            stack.pop()
            continue
        waiting = [child for child in children[step] if not visited[child]]
        if waiting:
            stack += waiting[::-1]
        else:
            visited[step] = True
            found.append(step)
            stack.pop()
    return found
