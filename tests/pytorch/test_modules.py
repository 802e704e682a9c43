"""Fifteen modules of torch: loss and gradients in float64, and training under a budget."""

import functools

import numpy as np
import pytest

import graphc as g

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_cases.comparison import agrees  # noqa: E402 - these need torch
from torch_cases.modules import MODULES, seeded, vae  # noqa: E402

every_module = pytest.mark.parametrize("name", MODULES)
LONG = {"DenseNet", "preact-ResNet"}
"""Convolutional networks whose ops other modules have, too."""
STEPS = 20
ONE_NODE = {"ConvNeXt"}
"""Modules whose peak, at this size, is one node with its operands, which nothing lowers."""
ONE_PRODUCT = {"ResNet-50", "LSTM", "ViT"}
"""Those of which it is a native product with its workspace: NumPy's kernels need none."""
RATES = {"LSTM": 2.0, "MLP": 8.0, "preact-ResNet": 0.02, "VAE": 1e-4}
FALLS = {"MLP": 0.99}
"""Losses behind 20 steps, as parts of the first; labels are random: deep nets learn them late."""


def drawn(name):
    """A module and its arguments; noise is an argument."""
    make = seeded(functools.partial(vae, feeds_noise=True)) if name == "VAE" else MODULES[name]
    return make("small")


def without_dropout(module):
    """The module dropping nothing, since graphc draws other numbers than torch."""
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
        if isinstance(getattr(part, "drop", None), float):
            part.drop = 0.0
    return module


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in MODULES]
)
def test_loss_and_gradients(name):
    module, args = drawn(name)
    network, program, _ = agrees(without_dropout(module), *args)
    trained = {entry.name for entry in network.report if entry.is_trained}
    assert trained == {name for name, _ in module.named_parameters()}
    assert {network.names[name] for name in trained} <= set(program.states)


@pytest.mark.slow
@every_module
def test_training_under_a_budget(name):
    """With dropout, 20 steps: the bytes of the budget hold, and the bits are those without it."""
    module, args = drawn(name)
    network = g.torch.load(module, args)
    optimizer = g.optim.SGD(RATES.get(name, 0.05))
    options = {"optimizer": optimizer, "kernels": "numpy" if name in ONE_PRODUCT else "native"}
    plain = g.compile(network.output, **options)
    least = g.plan(network.output, **options, max_extra_flops=0.5).arena_bytes
    budget = (least + plain.arena_bytes) // 2
    tight = g.compile(network.output, **options, budget=budget)
    assert tight.arena_bytes <= budget
    assert (budget < plain.arena_bytes) == (name not in ONE_NODE)
    feeds = {
        source.name: tensor.numpy()
        for source, tensor in zip(network.inputs.values(), args, strict=True)
    }
    losses = []
    for program in (plain, tight):
        network.initialize(program)
        losses.append([program.step(feeds)["loss"] for _ in range(STEPS)])
    np.testing.assert_array_equal(*losses)
    for state in plain.states:
        np.testing.assert_array_equal(plain.states[state], tight.states[state])
    assert np.mean(losses[0][-3:]) < FALLS.get(name, 0.98) * losses[0][0]
    assert np.isfinite(losses).all()
