"""The networks of step_time.py in JAX, and a step of them that is compiled whole.

Each is a function of parameters under graphc's names, inputs and sizes to logits. Images and
filters have their channels last, which is what XLA's convolutions on a CPU take. Batch norms keep
no running statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
Sizes = Mapping[str, Any]
Inputs = Mapping[str, Array]


class Scope:
    """Parameters by name below a scope, and the layers that use them."""

    def __init__(self, parameters: Mapping[str, Array], prefix: str = "") -> None:
        self.parameters, self.prefix = parameters, prefix

    def __truediv__(self, name: str) -> Scope:
        return Scope(self.parameters, f"{self.prefix}{name}/")

    def __getitem__(self, name: str) -> Array:
        return self.parameters[self.prefix + name]

    def biased(self, x: Array) -> Array:
        """Plus the bias, where there is one."""
        bias = self.parameters.get(self.prefix + "bias")
        return x if bias is None else x + bias

    def linear(self, x: Array) -> Array:
        return self.biased(x @ self["weight"].T)

    def conv(self, x: Array, stride: int = 1, padding: int = 0, groups: int = 1) -> Array:
        found = lax.conv_general_dilated(
            x, self["weight"], (stride, stride), [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
        )  # fmt: skip
        return self.biased(found)

    def batch_norm(self, x: Array) -> Array:
        norm = self / "norm"
        return _normal(x, (0, 1, 2), 1e-5) * norm["scale"] + norm["bias"]

    def layer_norm(self, x: Array, name: str = "norm", epsilon: float = 1e-5) -> Array:
        norm = self / name
        return _normal(x, -1, epsilon) * norm["scale"] + norm["bias"]


def _normal(x: Array, axes: int | tuple[int, ...], epsilon: float) -> Array:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(x.var(axes, keepdims=True) + epsilon)


def mlp(p: Scope, inputs: Inputs, sizes: Sizes) -> Array:
    h = inputs["x"]
    for layer in range(sizes["layers"]):
        h = jax.nn.relu((p / f"layer{layer}").linear(h))
    return (p / "output").linear(h)


def preact_resnet(p: Scope, inputs: Inputs, sizes: Sizes) -> Array:
    h = (p / "stem").conv(inputs["x"], padding=1)
    for stage in range(3):
        for unit in range((sizes["depth"] - 2) // 9):
            q = p / f"stage{stage + 1}" / f"unit{unit}"
            stride, r = 2 if stage > 0 and unit == 0 else 1, h
            for name, step, padding in (("reduce", 1, 0), ("window", stride, 1), ("expand", 1, 0)):
                part = q / name
                r = part.conv(jax.nn.relu(part.batch_norm(r)), step, padding)
            h = r + (h if h.shape == r.shape else (q / "shortcut").conv(h, stride))
    output = p / "output"
    return output.linear(jax.nn.relu(output.batch_norm(h)).mean((1, 2)))


def resnet(p: Scope, inputs: Inputs, sizes: Sizes) -> Array:
    """In the form "common"."""

    def layer(p: Scope, x: Array, window: int, stride: int = 1) -> Array:
        return p.batch_norm(p.conv(x, stride, window // 2))

    h = jax.nn.relu(layer(p / "stem", inputs["x"], 7, 2))
    padding = ((0, 0), (1, 1), (1, 1), (0, 0))
    h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)
    for stage, units in enumerate(sizes["units"]):
        for unit in range(units):
            q = p / f"stage{stage + 1}" / f"unit{unit}"
            stride = 2 if stage > 0 and unit == 0 else 1
            r = jax.nn.relu(layer(q / "reduce", h, 1))
            r = layer(q / "expand", jax.nn.relu(layer(q / "window", r, 3, stride)), 1)
            h = jax.nn.relu(r + (layer(q / "shortcut", h, 1, stride) if unit == 0 else h))
    return (p / "output").linear(h.mean((1, 2)))


def mobilenet_v2(p: Scope, inputs: Inputs, sizes: Sizes) -> Array:
    """Of width 1, without dropout."""

    def layer(p: Scope, x: Array, padding: int = 0, stride: int = 1, groups: int = 1) -> Array:
        return p.batch_norm(p.conv(x, stride, padding, groups))

    h = jax.nn.relu6(layer(p / "stem", inputs["x"], 1, 2))
    counts, strides = (1, 2, 3, 4, 3, 3, 1), (1, 2, 2, 2, 1, 2, 1)
    for stage, (count, first) in enumerate(zip(counts, strides, strict=True)):
        for unit in range(count):
            q, r = p / f"stage{stage + 1}" / f"unit{unit}", h
            if stage > 0:
                r = jax.nn.relu6(layer(q / "expand", r))
            stride = first if unit == 0 else 1
            r = jax.nn.relu6(layer(q / "depthwise", r, 1, stride, r.shape[-1]))
            r = layer(q / "project", r)
            h = h + r if h.shape == r.shape else r
    return (p / "output").linear(jax.nn.relu6(layer(p / "head", h)).mean((1, 2)))


def lstm(p: Scope, inputs: Inputs, sizes: Sizes) -> Array:
    """Each layer's products with its inputs are one; a scan goes over time."""
    h = (p / "embed").linear(inputs["x"])
    for layer in range(sizes["layers"]):
        q = p / f"layer{layer}"

        def cell(state: tuple[Array, Array], x: Array, hidden: Scope = q / "hidden") -> Any:
            i, n, f, o = jnp.split(x + hidden.linear(state[0]), 4, 1)
            c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(n)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros(h.shape[1:], h.dtype)
        h = lax.scan(cell, (zero, zero), (q / "input").linear(h))[1]
    return (p / "output").linear(h)


def _attend(p: Scope, x: Array, heads: int, causal: bool = False) -> Array:
    p = p / "attention"
    q, k, v = (
        part.reshape(*x.shape[:2], heads, -1) for part in jnp.split((p / "qkv").linear(x), 3, -1)
    )
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5
    if causal:
        scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
    mixed = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), v)
    return (p / "project").linear(mixed.reshape(x.shape))


def _feed_forward(p: Scope, x: Array, approximate: bool = False) -> Array:
    p = p / "mlp"
    return (p / "project").linear(jax.nn.gelu((p / "widen").linear(x), approximate))


def gpt2(p: Scope, inputs: Inputs, sizes: Sizes) -> Array:
    e = p / "embedding"
    h = e["token"][inputs["tokens"]] + e["position"][: sizes["seq_len"]]
    for layer in range(sizes["layers"]):
        q = p / f"layer{layer}"
        h = h + _attend(q, q.layer_norm(h, "norm1"), sizes["heads"], causal=True)
        h = h + _feed_forward(q, q.layer_norm(h, "norm2"), approximate=True)
    return (p / "output").layer_norm(h) @ e["token"].T


def bert(p: Scope, inputs: Inputs, sizes: Sizes) -> Array:
    e, tiny = p / "embedding", 1e-12
    h = e["token"][inputs["tokens"]] + e["position"][: sizes["seq_len"]]
    h = e.layer_norm(h + (e / "segment")["weight"][inputs["segments"]], epsilon=tiny)
    for layer in range(sizes["layers"]):
        q = p / f"layer{layer}"
        h = q.layer_norm(h + _attend(q, h, sizes["heads"]), "norm1", tiny)
        h = q.layer_norm(h + _feed_forward(q, h), "norm2", tiny)
    output = p / "output"
    h = h.reshape(-1, h.shape[-1])[inputs["places"]]
    h = output.layer_norm(jax.nn.gelu((output / "transform").linear(h), False), epsilon=tiny)
    return h @ e["token"].T + output["bias"]


def vit(p: Scope, inputs: Inputs, sizes: Sizes) -> Array:
    e, tiny = p / "embedding", 1e-6
    patches = (e / "patch").conv(inputs["x"], sizes["patch"])
    patches = patches.reshape(len(patches), -1, patches.shape[-1])
    first = jnp.broadcast_to(e["class_token"], (len(patches), 1, patches.shape[-1]))
    h = jnp.concatenate([first, patches], 1) + e["position"]
    for layer in range(sizes["layers"]):
        q = p / f"layer{layer}"
        h = h + _attend(q, q.layer_norm(h, "norm1", tiny), sizes["heads"])
        h = h + _feed_forward(q, q.layer_norm(h, "norm2", tiny))
    output = p / "output"
    return output.linear(output.layer_norm(h[:, 0], epsilon=tiny))


NETWORKS: dict[str, Callable[[Scope, Inputs, Sizes], Array]] = {
    network.__name__: network
    for network in (mlp, preact_resnet, resnet, mobilenet_v2, lstm, gpt2, bert, vit)
}


def _channels_last(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    return array.transpose(order) if array.ndim == 4 else array


class Trainer:
    """One step of a network on fixed feeds, from parameters under graphc's names; states are
    donated, so that a step writes them where they are.
    """

    def __init__(
        self,
        model: str,
        sizes: Sizes,
        optimizer: str,
        parameters: Mapping[str, np.ndarray],
        feeds: Mapping[str, np.ndarray],
    ) -> None:
        weights = {
            name: jnp.array(_channels_last(array, (2, 3, 1, 0)))
            for name, array in parameters.items()
        }
        moments = 2 if optimizer == "adam" else 0
        self.states = (
            weights,
            *(jax.tree.map(jnp.zeros_like, weights) for _ in range(moments)),
            jnp.zeros((), "int32"),
        )
        self.feeds = {n: jnp.array(_channels_last(a, (0, 2, 3, 1))) for n, a in feeds.items()}

        def loss(weights: Mapping[str, Array], feeds: Inputs) -> Array:
            logits = NETWORKS[model](Scope(weights), feeds, sizes)
            chances = jax.nn.log_softmax(logits.reshape(-1, logits.shape[-1]))
            return -jnp.take_along_axis(chances, feeds["labels"].reshape(-1, 1), 1).mean()

        updated = _adam if optimizer == "adam" else _sgd

        def step(states: Any, feeds: Inputs) -> tuple[Any, Array]:
            found, gradients = jax.value_and_grad(loss)(states[0], feeds)
            return updated(*states, gradients), found

        jitted = jax.jit(step, donate_argnums=0)
        self.step = jitted.lower(self.states, self.feeds).compile()

    def __call__(self) -> Array:
        """Forward, backward, update; the loss."""
        self.states, loss = self.step(self.states, self.feeds)
        return jax.block_until_ready((self.states, loss))[1]


def _sgd(weights: Any, count: Array, gradients: Any) -> tuple[Any, Array]:
    return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients), count


def _adam(weights: Any, first: Any, second: Any, count: Array, gradients: Any) -> Any:
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
    one, two = 1 - 0.9**count, 1 - 0.999**count

    def moved(w: Array, m: Array, v: Array) -> Array:
        return w - (1e-3 / one).astype(w.dtype) * m / (jnp.sqrt(v / two.astype(v.dtype)) + 1e-8)

    return jax.tree.map(moved, weights, first, second), first, second, count
