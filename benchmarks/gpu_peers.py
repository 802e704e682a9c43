"""What a user would run on a GPU instead of graphc: torch eager, with checkpointing, compiled; JAX.

A system is a name and a function that gives a step, the stream it runs on, and None: its bytes are
not known before it runs.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

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
    network = torch_networks.Gpt(12, 768, 12, seq_len, vocab)
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
    import jax.numpy as jnp

    jax.config.update(
        "jax_default_matmul_precision", {"fp32": "highest", "tf32": "tensorfloat32"}[precision]
    )
    layers, hidden, batch = sizes["layers"], sizes["hidden"], sizes["batch"]
    rng = np.random.default_rng(0)
    widths = [784, *[hidden] * layers, 10]
    weights = [
        (jnp.asarray(rng.normal(0, a**-0.5, (a, b)), jnp.float32), jnp.zeros(b, jnp.float32))
        for a, b in itertools.pairwise(widths)
    ]
    zeros = jax.tree.map(jnp.zeros_like, weights)
    x = jnp.asarray(rng.normal(size=(batch, 784)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 10, batch))

    def loss(weights: Any) -> Any:
        h = x
        for weight, bias in weights[:-1]:
            h = jax.nn.relu(h @ weight + bias)
        logits = h @ weights[-1][0] + weights[-1][1]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    @jax.jit
    def update(weights: Any, first: Any, second: Any, count: Any) -> Any:
        gradients = jax.grad(loss)(weights)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
        rate = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        weights = jax.tree.map(
            lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, first, second
        )
        return weights, first, second

    state = [weights, zeros, zeros]
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        state[:] = update(*state, float(count))
        jax.block_until_ready(state)

    return step, cupy.cuda.Stream.null, None
