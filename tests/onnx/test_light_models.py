"""The light models of onnx's package with drawn weights: results, training, budgets."""

import numpy as np
import pytest
from onnx_cases.light import NAMES, light_model

import graphc

STEPS = 20


def loaded(name, batch=1):
    """(the model, its network, its input's name and numbers)."""
    model = light_model(name)
    (fed,) = model.graph.input
    shape = (batch, *(d.dim_value for d in fed.type.tensor_type.shape.dim[1:]))
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return model, graphc.onnx.load(model, dims={fed.name: shape}), fed.name, x


def forward(network, x):
    program = graphc.compile(outputs={"y": network.output})
    network.initialize(program)
    (source,) = network.inputs.values()
    return program.step({source.name: x})["y"]


def by_onnxruntime(model, name, x):
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, {name: x})[0]


def check_against_onnxruntime(name):
    model, network, fed, x = loaded(name)
    expected = by_onnxruntime(model, fed, x)
    difference = np.abs(forward(network, x) - expected).max()
    assert difference <= 1e-6 * np.abs(expected).max()


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_onnxruntime(name):
    check_against_onnxruntime(name)


def trained(network, x, **options):
    """(plan, losses, parameters) of some steps on one batch."""
    logits = graphc.reshape(network.output, (x.shape[0], -1))
    labels = graphc.input("labels", (x.shape[0],), "int32")
    loss = graphc.softmax_cross_entropy(logits, labels)
    program = graphc.compile(loss, optimizer=graphc.optim.SGD(1e-4), **options)
    network.initialize(program)
    (source,) = network.inputs.values()
    feeds = {source.name: x, "labels": np.arange(x.shape[0], dtype=np.int32)}
    losses = [program.step(feeds)["loss"].tobytes() for _ in range(STEPS)]
    return program.plan, losses, {n: a.tobytes() for n, a in program.parameters.items()}


def check_training(name, batch):
    _, network, _, x = loaded(name, batch)
    plan, losses, parameters = trained(network, x)
    budget = max(2 * plan.arena_bytes // 3, least_bytes(network, x))
    tight, again, same = trained(network, x, budget=budget)
    assert tight.arena_bytes <= budget < plan.arena_bytes
    assert len(set(losses)) == STEPS
    assert losses == again
    assert parameters == same


def least_bytes(network, x):
    """An arena that recomputation can reach where most bytes are weights."""
    del network, x
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_training_within_two_thirds_of_the_arena_has_the_same_bits(name):
    check_training(name, batch=2)
