"""Reductions over sliding windows of maps: pooling and its gradients."""
