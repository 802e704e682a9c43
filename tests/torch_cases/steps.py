"""A training step of a module by some way to call it: its peak, and the bits that it leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from graphc.torch.measure import measured_peak

SEED = 1

Case = tuple[nn.Module, tuple[Tensor, ...]]
Bits = dict[str, list[Tensor]]


@dataclass(frozen=True)
class Run:
    """A module, how its loss is called, and the arguments of a step."""

    module: nn.Module
    loss: Callable[..., Tensor]
    args: tuple[Tensor, ...]

    def __call__(self) -> None:
        """A step from the same random numbers, whose gradients are made anew."""
        self.module.zero_grad(set_to_none=True)
        torch.manual_seed(SEED)
        self.loss(*self.args).backward()

    def peak(self) -> int:
        """The largest number of live bytes of a step; a first one, which compiles, goes before."""
        self.module.zero_grad(set_to_none=True)
        return measured_peak(self, (*self.module.parameters(), *self.module.buffers(), *self.args))

    def bits(self) -> Bits:
        """What a step leaves: gradients, buffers and the random state."""
        self()
        gradients = [p.grad.clone() for p in self.module.parameters() if p.grad is not None]
        buffers = [buffer.clone() for buffer in self.module.buffers()]
        return {"gradients": gradients, "buffers": buffers, "random_state": [torch.get_rng_state()]}


def by_aot_eager(case: Case) -> Run:
    """The step that plans must equal to the bit."""
    module, args = case
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=False)

    def loss(*args: Tensor) -> Tensor:
        with torch._dynamo.config.patch(allow_rnn=True):
            return compiled(*args)

    return Run(module, loss, args)


def same_bits(found: Bits, wanted: Bits) -> dict[str, bool]:
    """Whether each kind of tensors is the same."""
    return {
        what: len(found[what]) == len(tensors) and all(map(torch.equal, found[what], tensors))
        for what, tensors in wanted.items()
    }
