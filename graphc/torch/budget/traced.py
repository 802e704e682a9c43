"""Value numbers of the joint graph that torch traced, for the checker of plans."""

from __future__ import annotations

from torch import fx

from graphc.torch.budget.autograd_rules import is_tangent, placeholders, returned_by
from graphc.torch.budget.checker_input import Plan
from graphc.torch.budget.contents import Numbers, Tree, Walk, tensors_in


class Traced:
    """Value numbers of a joint graph: computations, returned values and written sources."""

    def __init__(self, plan: Plan, numbers: Numbers) -> None:
        walk = Walk(numbers, is_traced=True)
        given = placeholders(plan.joint)
        self.sources = [node for node in given if not is_tangent(node)]
        self.tangents = [node for node in given if is_tangent(node)]
        for place, node in enumerate(self.sources):
            walk.env[node] = walk.outside(node, "source", place)
        for place, node in enumerate(self.tangents):
            walk.env[node] = walk.outside(node, "tangent", place)
        self.nodes: dict[int, fx.Node] = {}
        """The first node of each computation."""
        self.first: dict[fx.Node, fx.Node] = {}
        """Maps each node that computes to the first node of its computation."""
        self.by_name = {node.name: node for node in plan.joint.nodes}
        self.draws: set[int | None] = set()
        for node in plan.joint.nodes:
            if node.op in ("get_attr", "call_function"):
                done = walk.do(node)
                if done.computes is not None:
                    self.first[node] = self.nodes.setdefault(done.computes, node)
                    self.draws.add(done.draws)
        self.returns = [
            walk.seen(node) if isinstance(node, fx.Node) else None
            for node in returned_by(plan.joint)
        ]
        self.left = [written(walk.env[node]) for node in self.sources]

    def namesake(self, node: fx.Node) -> fx.Node | None:
        """Return the node with the name and op of an emitted one, or None."""
        found = self.by_name.get(node.name)
        return found if found is not None and found.target == node.target else None


def written(tree: Tree) -> list[int]:
    """Return the numbers of the writes into the storages of a value."""
    return [tensor.storage.written for tensor in tensors_in(tree)]
