"""Import and memory plans of PyTorch modules.

The package torch is imported only when a function is called. Each public function is defined in a
file that does not import torch, so that it exists without torch.
"""

from graphc.importing.network import Network, Reported
from graphc.torch.loading import load
from graphc.torch.plans import frontier, partition_fn, plan

__all__ = ["Network", "Reported", "frontier", "load", "partition_fn", "plan"]
