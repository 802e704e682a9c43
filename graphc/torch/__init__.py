"""PyTorch's modules in graphc. The package torch is imported when a function here is called.

Each public function stands in a file that does not import torch, so that it is there without it.
"""

from graphc.importing.network import Network, Reported
from graphc.torch.loading import load
from graphc.torch.plans import frontier, partition_fn, plan

__all__ = ["Network", "Reported", "frontier", "load", "partition_fn", "plan"]
