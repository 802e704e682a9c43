"""The light models of onnx's package with drawn weights: results, training, budgets."""

import numpy as np
import pytest
from light_models import BATCHES, light_model, loss_of, within_two_thirds

import graphc

STEPS = 20


def fed(network):
    """The input's name, and numbers for it."""
    (source,) = network.inputs.values()
    x = np.random.default_rng(1).standard_normal(source.shape).astype(np.float32)
    return source.name, x


COMPARED = [name for name in BATCHES if name != "vgg19"]
"""vgg19 differs by more than a millionth: both libraries add 25,088 products in float32."""


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_results_are_those_of_onnxruntime(name):
    runtime = pytest.importorskip("onnxruntime")
    model = light_model(name)
    network = graphc.onnx.load(model)
    source, x = fed(network)
    program = graphc.compile(outputs={"y": network.output})
    network.initialize(program)
    found = program.step({source: x})["y"]
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model.SerializeToString(), options)
    (expected,) = session.run(None, {model.graph.input[0].name: x})
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


def trained(network, plan):
    """Losses and parameters of some steps on one batch, as bytes."""
    program = graphc.bind(plan)
    network.initialize(program)
    source, x = fed(network)
    feeds = {source: x, "labels": np.arange(x.shape[0], dtype=np.int32)}
    losses = [program.step(feeds)["loss"].tobytes() for _ in range(STEPS)]
    return losses, {name: array.tobytes() for name, array in program.parameters.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
def test_training_within_a_budget_has_the_same_bits(name):
    network = graphc.onnx.load(light_model(name, batch=2))
    loss = loss_of(network)
    plain = graphc.plan(loss, optimizer=graphc.optim.SGD(1e-4))
    tight = within_two_thirds(loss, plain.arena_bytes)
    assert tight.arena_bytes <= plain.arena_bytes
    losses, parameters = trained(network, plain)
    assert len(set(losses)) > STEPS // 2
    assert (losses, parameters) == trained(network, tight)
