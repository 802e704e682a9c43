"""Workspaces that libraries allocate on a GPU at their first call and keep.

PyTorch gives cuBLAS one workspace for each thread that computes a product, and cuBLASLt one for
products with a bias. Autograd runs a backward pass on a GPU in a thread of its own.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

import torch

from graphc.devices.device import CPU, DEFAULT_GPU, Device, find_device
from graphc.devices.device_memory import DeviceMemory, gpu_memory, machine_memory
from graphc.torch.budget.plan.steps import device_of
from graphc.torch.budget.trace.joint import Joint
from graphc.torch.fit.allocator import KIB
from graphc.torch.fit.gpu_workspaces import CUBLAS, CUBLASLT, PRODUCTS, kept_bytes
from graphc.torch.private import cublas_workspace_size, cublaslt_workspace_size


def library_workspaces(joint: Joint, profile: Device | None) -> int:
    """Return the workspace bytes that libraries keep after the first step of a joint graph.

    The forward thread has a workspace if the forward pass has a product. The backward thread has
    one if either pass has a product, since a plan may recompute any. On a CPU, the result is 0.
    """
    nodes = [step.node for step in joint.steps]
    sizes: dict[str, int] = {}
    if profile is not None:
        for node in nodes:
            sizes.update(kept_bytes(node.target, profile))
    else:
        for node in nodes:
            if node.target in PRODUCTS and (device := device_of(node)).type == "cuda":
                sizes.update(_kept_on(node.target, device))
    is_in_forward = any(node.target in PRODUCTS for node in nodes[: joint.boundary])
    threads = 2 if is_in_forward else 1
    return threads * sizes.get(CUBLAS, 0) + sizes.get(CUBLASLT, 0)


def _kept_on(function: object, device: torch.device) -> dict[str, int]:
    """Return the sizes of the workspaces of an op on this machine's GPU."""
    kept = kept_bytes(function, profile_of(device))
    chosen = {CUBLAS: _cublas_bytes(), CUBLASLT: cublaslt_workspace_size()}
    return {name: size if chosen[name] is None else chosen[name] for name, size in kept.items()}


def profile_of(device: torch.device) -> Device:
    """Return a profile with the kind and the architecture of this machine's CPU or GPU."""
    if device.type != "cuda":
        return CPU
    major, minor = torch.cuda.get_device_capability(device)
    return replace(find_device(DEFAULT_GPU), architecture=10 * major + minor)


def memory_of(profile: Device | None, device: torch.device) -> DeviceMemory | None:
    """Return the memory of a profile, or of this machine's CPU or GPU; None if it is unknown."""
    if profile is not None and profile.kind == "cuda":
        return gpu_memory(profile.name)
    if device.type != "cuda":
        return machine_memory()
    properties = torch.cuda.get_device_properties(device)
    return gpu_memory(properties.name, properties.total_memory)


def _cublas_bytes() -> int | None:
    """Return the size that torch uses; None for the default of the GPU.

    Versions of torch below 2.14 do not tell it, so the variable that sets it is read as they do.
    """
    known: int | None = cublas_workspace_size()
    if known is not None:
        return known
    parts = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(int(size) * int(count) for size, count in parts) * KIB if parts else None
