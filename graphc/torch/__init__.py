"""Import and memory plans of PyTorch modules.

The package torch is imported only when a function is called. Each public function is defined in a
file that does not import torch, so that it exists without torch.
"""

from graphc.importing.network import Network, Reported
from graphc.torch.budget.plans import audit, frontier, partition_fn, plan
from graphc.torch.importing.loading import load

__all__ = ["Network", "Reported", "audit", "frontier", "load", "partition_fn", "plan"]
