"""Values of a joint graph that may be copied to host memory and back."""

from __future__ import annotations

import torch

from graphc.torch.budget.joint import Joint, mutates
from graphc.torch.budget.measure import allocated_bytes, bytes_alone
from graphc.torch.budget.steps import TorchSteps


def movable(torch_steps: TorchSteps) -> frozenset[int]:
    """Return the values that a step computes, that only its graphs refer to, and whose tensors are
    dense and fill their storages. No op writes into them, and none returns an alias of them beside
    a new tensor."""
    joint, steps = torch_steps.joint, torch_steps.steps
    device = device_of_copies(joint)
    fixed = joint.source_values | torch_steps.returned
    for step in joint.steps:
        if mutates(step.node):
            fixed |= set(step.reads)
        fixed |= set(joint.values[step.node]) - set(step.makes)
    found = set()
    for value, node in enumerate(joint.base):
        producer = steps.producer[value]
        fake = node.meta.get("val")
        if (
            value not in fixed
            and producer >= 0
            and torch_steps.nodes[producer] is not None
            and isinstance(fake, torch.Tensor)
            and fake.device == device
            and _fills_its_storage(fake)
            and steps.bytes[value] == allocated_bytes(fake) > 0
        ):
            found.add(value)
    return frozenset(found)


def device_of_copies(joint: Joint) -> torch.device:
    """Return the GPU of a joint graph, or the CPU if it has none."""
    for node in joint.base:
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and fake.device.type == "cuda":
            return fake.device
    return torch.device("cpu")


def _fills_its_storage(fake: torch.Tensor) -> bool:
    """Return whether each element of a storage is one element of the tensor."""
    expected = 1
    for stride, size in sorted(zip(fake.stride(), fake.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return bytes_alone(fake) == allocated_bytes(fake)
