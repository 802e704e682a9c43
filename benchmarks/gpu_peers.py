"""What a user would run on a GPU instead of graphc: torch eager, with checkpointing, compiled; JAX.

A system is a name and a function that gives a step, the stream it runs on, and None: its bytes are
not known before it runs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from step_cases import draw_feeds, initial_parameters

import graphc
from graphc.models import MODELS

Made = tuple[Callable[[], Any], Any, None]
Parts = tuple[list[Any], Any, Any]
"""A network as a chain of modules, its input and its labels."""

UNITS = {50: (3, 4, 6, 3), 1001: (15, 121, 182, 15)}


def give_back() -> None:
    """Make torch return what it holds without using it."""
    if "torch" in sys.modules:
        import torch

        torch.cuda.empty_cache()


def systems(
    network: Callable[..., Parts] | None, sizes: Mapping[str, Any], optimizer: str, precision: str
) -> Iterator[tuple[str, Callable[[], Made]]]:
    """All peers that are installed."""
    if network is None:
        return
    try:
        import torch  # noqa: F401
    except ImportError:
        return
    for how in ("eager", "checkpoint", "compile"):
        yield f"torch {how}", lambda how=how: _torch(network, sizes, optimizer, precision, how)
    try:
        import jax  # noqa: F401
    except ImportError:
        return
    if network is mlp:
        yield "jax", lambda: _jax_mlp(sizes, precision)


def _torch(
    network: Callable[..., Parts],
    sizes: Mapping[str, Any],
    optimizer: str,
    precision: str,
    how: str,
) -> Made:
    import torch
    from torch.nn import functional as F  # noqa: N812 - torch's own habit
    from torch.utils.checkpoint import checkpoint_sequential

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    parts, x, labels = network(**sizes)
    model = torch.nn.Sequential(*parts).cuda()
    if x.dim() == 4:
        model, x = (each.to(memory_format=torch.channels_last) for each in (model, x))
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    updates = kinds[optimizer](model.parameters(), lr=1e-3)
    narrow = precision == "bf16"

    def loss() -> Any:
        with torch.autocast("cuda", torch.bfloat16) if narrow else contextlib.nullcontext():
            if how == "checkpoint":
                pieces = max(1, int(len(parts) ** 0.5))
                y = checkpoint_sequential(model, pieces, x, use_reentrant=False)
            else:
                y = model(x)
        return F.cross_entropy(y.float(), labels)

    run = torch.compile(loss) if how == "compile" else loss

    def step() -> None:
        updates.zero_grad()
        run().backward()
        updates.step()

    import cupy

    return step, cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream), None


def _drawn(*shape: int) -> Any:
    import torch

    return torch.randn(shape, device="cuda")


def _labels(count: int, classes: int) -> Any:
    import torch

    return torch.randint(classes, (count,), device="cuda")


def mlp(layers: int, hidden: int, batch: int) -> Parts:
    """graphc.models.mlp."""
    import torch_networks

    return list(torch_networks.mlp(layers, hidden, 784, 10)), _drawn(batch, 784), _labels(batch, 10)


def lstm(seq_len: int) -> Parts:
    """graphc.models.lstm with cuDNN's recurrent kernels."""
    import torch_networks

    network = torch_networks.Lstm(4, 1024, 50, 5000)
    return [network], _drawn(seq_len, 64, 50), _labels(64 * seq_len, 5000)


def gpt2(batch: int, seq_len: int, drop: float) -> Parts:
    """graphc.models.gpt2 with fused attention."""
    import torch
    import torch_networks

    class Embedding(torch.nn.Module):
        """Tokens and positions."""

        def __init__(self, network: torch_networks.Gpt) -> None:
            super().__init__()
            self.token, self.position = network.token, network.position

        def forward(self, tokens: Any) -> Any:
            """Rows of width 768."""
            return self.token(tokens) + self.position.weight

    class Head(torch.nn.Module):
        """Logits by the token table."""

        def __init__(self, network: torch_networks.Gpt) -> None:
            super().__init__()
            self.norm, self.token = network.norm, network.token

        def forward(self, x: Any) -> Any:
            """(batch · seq_len, vocab)."""
            return torch.nn.functional.linear(self.norm(x), self.token.weight).flatten(0, 1)

    vocab = 50257
    network = torch_networks.Gpt(12, 768, 12, seq_len, vocab, drop=0.0)
    tokens = torch.randint(vocab, (batch, seq_len), device="cuda")
    return (
        [Embedding(network), *network.blocks, Head(network)],
        tokens,
        _labels(batch * seq_len, vocab),
    )


def resnet(depth: int, batch: int) -> Parts:
    """graphc.models.resnet in its baseline form: every convolution has a bias, batch norm, relu."""
    import torch
    from torch import nn

    def layer(before: int, after: int, window: int, stride: int, padding: int) -> list[Any]:
        convolution = nn.Conv2d(before, after, window, stride, padding)
        return [convolution, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]

    class Unit(nn.Module):
        """A bottleneck and its shortcut."""

        def __init__(self, before: int, filters: int, stride: int, project: bool) -> None:
            super().__init__()
            after = 4 * filters
            self.path = nn.Sequential(
                *layer(before, filters, 1, 1, 0), *layer(filters, filters, 3, stride, 1),
                *layer(filters, after, 1, 1, 0),
            )  # fmt: skip
            around = layer(before, after, 1, stride, 0) if project else []
            self.around = nn.Sequential(*around)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Their sum."""
            return self.path(x) + self.around(x)

    parts: list[Any] = [*layer(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2)]
    before = 64
    for stage, count in enumerate(UNITS[depth]):
        for unit in range(count):
            stride = 2 if stage > 0 and unit == 0 else 1
            parts.append(Unit(before, 64 * 2**stage, stride, unit == 0))
            before = 256 * 2**stage
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000)]
    return parts, _drawn(batch, 3, 224, 224), _labels(batch, 1000)


def _jax_mlp(sizes: Mapping[str, Any], precision: str) -> Made:
    """The MLP and Adam, jitted whole."""
    import cupy
    import jax
    import jax_networks

    jax.config.update(
        "jax_default_matmul_precision", {"fp32": "highest", "tf32": "tensorfloat32"}[precision]
    )
    graph = graphc.plan(MODELS["mlp"](**sizes), training=True).graph
    parameters, feeds = initial_parameters(graph), draw_feeds(graph)
    return (
        jax_networks.Trainer("mlp", sizes, "adam", parameters, feeds),
        cupy.cuda.Stream.null,
        None,
    )
