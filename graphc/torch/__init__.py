"""PyTorch's modules in graphc. The package torch is imported when a function here is called.

Each public function stands in a file that does not import torch, so that it is there without it.
"""
