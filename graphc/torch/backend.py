"""What torch.compile calls: a joint graph comes, a forward and a backward graph go back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd

from graphc.torch.runner import Boxed, runner

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
"""Takes a joint graph, its inputs and ``num_fwd_outputs``; gives the forward and backward graph."""


def backend(partition: Partition, prepared: Callable[[Boxed], Boxed]) -> Any:
    """A backend for torch.compile that runs both graphs as they are; `prepared` wraps the first."""

    def forward(module: fx.GraphModule, _: Sequence[Any]) -> Boxed:
        return prepared(runner(module))

    def backward(module: fx.GraphModule, _: Sequence[Any]) -> Boxed:
        return runner(module)

    return aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=forward,
        partition_fn=partition,
    )
