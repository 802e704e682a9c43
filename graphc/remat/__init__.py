"""What to compute again: policies, and the one form in which they all end."""

from graphc.remat.budget import BudgetPlanner
from graphc.remat.policies import recompute
from graphc.remat.schedule import materialise, mirrored_sequence

__all__ = ["BudgetPlanner", "materialise", "mirrored_sequence", "recompute"]
