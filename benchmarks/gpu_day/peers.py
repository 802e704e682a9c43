"""Torch's training steps of the networks that run.sh measures: eager and compiled, in bf16."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

Parts = tuple[Any, Any, Any]
"""A module, its input and its labels."""

WARM_STEPS, TIMED_STEPS = 6, 15


def milliseconds(
    network: Callable[..., Parts], sizes: Mapping[str, Any], optimizer: str, how: str
) -> float:
    """The median milliseconds of a step between two device events, inputs on the device.

    `how` is ``eager`` or ``compile``, which compiles the forward pass and the loss.
    """
    import torch
    from torch.nn import functional as F  # noqa: N812 - torch's own habit

    torch.manual_seed(0)
    model, x, labels = network(**sizes)
    model = model.cuda()
    if x.dim() == 4:
        model, x = (each.to(memory_format=torch.channels_last) for each in (model, x))
    updates = {
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=1e-4, fused=True),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    }[optimizer]()

    def loss() -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            y = model(x)
        return F.cross_entropy(y.float(), labels)

    run = torch.compile(loss) if how == "compile" else loss

    def step() -> None:
        updates.zero_grad()
        run().backward()
        updates.step()

    for _ in range(WARM_STEPS):
        step()
    found = []
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(TIMED_STEPS):
        start.record()
        step()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found)


def gpt2(batch: int, seq_len: int, drop: float) -> Parts:
    """graphc.models.gpt2 with fused attention: (batch · seq_len, vocabulary) logits."""
    import torch
    import torch_networks

    class Flat(torch.nn.Module):
        """A language model whose logits are rows."""

        def __init__(self) -> None:
            super().__init__()
            self.network = torch_networks.Gpt(12, 768, 12, seq_len, VOCABULARY, drop=drop)

        def forward(self, tokens: Any) -> Any:
            n = self.network
            h = n.token(tokens) + n.position.weight
            for block in n.blocks:
                h = block(h)
            return torch.nn.functional.linear(n.norm(h), n.token.weight).flatten(0, 1)

    tokens = torch.randint(VOCABULARY, (batch, seq_len), device="cuda")
    return Flat(), tokens, torch.randint(VOCABULARY, (batch * seq_len,), device="cuda")


VOCABULARY = 50257


def resnet(depth: int, batch: int) -> Parts:
    """torchvision's ResNet, which graphc.models.resnet is in its form ``common``."""
    import torch
    import torchvision

    model = getattr(torchvision.models, f"resnet{depth}")()
    x = torch.randn(batch, 3, 224, 224, device="cuda")
    return model, x, torch.randint(1000, (batch,), device="cuda")
