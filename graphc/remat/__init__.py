"""Recomputation: policies, the search under a budget, and schedules as graphs."""

from graphc.remat.budget import BudgetPlanner
from graphc.remat.policies import recompute
from graphc.remat.schedule import materialise, mirrored_sequence

__all__ = ["BudgetPlanner", "materialise", "mirrored_sequence", "recompute"]
