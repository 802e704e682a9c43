"""What torch.compile calls: a joint graph comes, a forward and a backward graph go back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import fx
from torch._dynamo.backends.common import aot_autograd

from graphc.torch.runner import Boxed

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
"""Takes a joint graph, its inputs and ``num_fwd_outputs``; gives the forward and backward graph."""


Part = Literal["forward", "backward", "inference"]


def backend(partition: Partition, run_of: Callable[[fx.GraphModule, Part], Boxed]) -> Any:
    """A backend for torch.compile that runs graphs as they are; `run_of` makes them functions."""

    def compiler(part: Part) -> Callable[[fx.GraphModule, Sequence[Any]], Boxed]:
        return lambda module, _: run_of(module, part)

    return aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        partition_fn=partition,
    )
