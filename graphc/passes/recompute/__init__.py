"""What to compute again: policies, and the one form in which they all end."""

from graphc.passes.recompute.apply import recompute
from graphc.passes.recompute.budget_planner import OptimalPlanner
from graphc.passes.recompute.sequence import materialise, mirrored_sequence

__all__ = ["OptimalPlanner", "materialise", "mirrored_sequence", "recompute"]
