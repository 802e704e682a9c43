"""The peers of the step times are the networks of the zoo: equal losses before and after a step.

Parameters of one shape have the same numbers, so they need no common names.
"""

import functools
import math

import numpy as np
import pytest
from step_cases import CASES, OPTIMIZERS, draw_feeds

import graphc
from graphc.models import MODELS

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch_networks

pytestmark = pytest.mark.peers

TOKENS = {"layers": 2, "width": 12, "heads": 3, "seq_len": 7, "batch": 2, "vocab": 11, "drop": 0}
SMALL = {
    "mlp": {"layers": 3, "hidden": 8, "inputs": 6, "classes": 4, "batch": 5},
    "preact_resnet": {"depth": 11, "batch": 3, "image": 16, "classes": 5},
    "resnet": {"units": (1, 1, 1, 2), "form": "common", "batch": 2, "image": 40, "classes": 5},
    "mobilenet_v2": {"batch": 3, "image": 64, "classes": 5, "drop": 0},
    "lstm": {"seq_len": 4, "batch": 3, "layers": 2, "hidden": 6, "inputs": 5, "classes": 7},
    "gpt2": {**TOKENS, "positions": 7},
    "bert": {**TOKENS, "positions": 9, "masked": 3},
    "vit": {
        "layers": 2, "width": 12, "heads": 3, "patch": 8, "image": 24, "batch": 3, "classes": 5,
    },
}  # fmt: skip


STEPS = 2
NETWORKS = [
    pytest.param(model, marks=[pytest.mark.slow] if "image" in SMALL[model] else [])
    for model in SMALL
]


def optimizer_of(model):
    return "adam" if model == "gpt2" else "sgd"


def drawn(shape):
    """Numbers by the shape alone, of about the size that networks begin with."""
    shape = tuple(size for size in shape if size > 1)
    numbers = np.random.default_rng(shape).standard_normal(shape)
    return numbers / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 1 + 0.3 * numbers


@functools.cache
def trained(model):
    """The parameters before the first step, the feeds, and the loss of each step in graphc."""
    loss = MODELS[model](**SMALL[model], dtype="float64")
    optimizer = OPTIMIZERS[optimizer_of(model)](1e-3)
    program = graphc.compile(loss, optimizer=optimizer)
    states = [state for state in program.graph.states if state.trainable]
    start = {state.name: drawn(state.shape).reshape(state.shape) for state in states}
    program.parameters.update(start)
    feeds = draw_feeds(program.graph)
    return start, feeds, [float(program.step(feeds)["loss"]) for _ in range(STEPS)]


def agrees(step, losses):
    assert abs(losses[1] - losses[0]) > 1e-5 * losses[0]
    np.testing.assert_allclose([float(step()) for _ in range(STEPS)], losses, rtol=1e-9)


def test_every_network_that_is_timed_has_its_peers():
    assert {case.model for case in CASES} == set(SMALL) == set(torch_networks.NETWORKS)


@pytest.mark.parametrize("model", NETWORKS)
def test_torch(model):
    _, feeds, losses = trained(model)
    network = torch_networks.NETWORKS[model](SMALL[model]).double()
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            numbers = torch.from_numpy(drawn(tensor.shape))
            if name.startswith("cells."):  # torch has the candidate behind the forget gate
                numbers = torch.cat([numbers.chunk(4)[gate] for gate in (0, 2, 1, 3)])
            tensor.copy_(numbers.reshape(tensor.shape))
    tensors = {name: torch.from_numpy(array) for name, array in feeds.items()}
    agrees(torch_networks.Trainer(network, optimizer_of(model), tensors), losses)


@pytest.mark.parametrize("model", NETWORKS)
def test_jax(model):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    import jax_networks

    start, feeds, losses = trained(model)
    with jax.enable_x64():
        optimizer = optimizer_of(model)
        agrees(jax_networks.Trainer(model, SMALL[model], optimizer, start, feeds), losses)
