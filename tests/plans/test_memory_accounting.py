"""The demonstration of an article on the memory of backpropagation, reproduced from plans.

Input 100, hidden 100, 200 bias-free hidden layers, output 10, batch 64, Adam. The article measured
5,171,200 bytes of activations and 8,135,168 of gradients, with an allocator that rounds to 512.
"""

import pytest

import graphc as g
from graphc.ir.types import align

GRANULE = 512
BATCH, WIDTH, LAYERS = 64, 100, 200


def network(freeze=0, relu=False):
    h = g.input("x", (BATCH, WIDTH))
    h = g.linear(h, WIDTH, name="first")
    for number in range(LAYERS):
        h = g.linear(h, WIDTH, bias=False, trainable=number >= freeze, name=f"hidden{number}")
        h = g.relu(h) if relu else h
    return g.sum(g.linear(h, 10, name="last"))


def training_plan(**options):
    return g.plan(network(**options), optimizer=g.optim.Adam(), alignment=GRANULE)


def rounded(values):
    return sum(align(value.type.bytes, GRANULE) for value in values)


def parameters(plan):
    return [state for state in plan.graph.states if state.role == "parameter"]


def test_activations_gradients_and_moments():
    plan = training_plan()
    assert rounded(plan.saved()) == 5_171_200
    gradients = [
        node.named_inputs()["g"] for node in plan.graph.nodes if node.op.name == "adam_update"
    ]
    assert rounded(gradients) == 8_135_168
    moments = [state for state in plan.graph.states if state.role == "moment"]
    assert rounded(parameters(plan)) == 8_135_168
    assert rounded(moments) == 2 * rounded(parameters(plan))


def saved_layers(plan):
    return sum(value.shape == (BATCH, WIDTH) for value in plan.saved())


def test_frozen_linear_layers_keep_no_activations():
    """The first and the last layer train: only their inputs are kept."""
    plan = training_plan(freeze=LAYERS)
    assert saved_layers(plan) == 2
    assert rounded(state for state in plan.graph.states if state.role == "moment") == 2 * rounded(
        state for state in parameters(plan) if state.trainable
    )


def test_frozen_layers_with_relu_keep_them_again():
    plan = training_plan(freeze=LAYERS, relu=True)
    assert saved_layers(plan) == LAYERS + 1


def test_nothing_is_kept_for_frozen_layers_behind_frozen_inputs():
    """No gradient is needed below the only layer that trains."""
    h = g.input("x", (BATCH, WIDTH))
    for number in range(10):
        h = g.relu(g.linear(h, WIDTH, trainable=number == 9, name=f"hidden{number}"))
    plan = g.plan(g.sum(h), optimizer=g.optim.SGD())
    assert saved_layers(plan) == 2  # the input of the last layer, and its relu's output
    assert sum(node.op.name == "relu_gradient" for node in plan.graph.nodes) == 1


@pytest.mark.parametrize("batch", [32, 64])
def test_activations_scale_with_the_batch_and_moments_do_not(batch):
    x = g.input("x", (batch, 50))
    h = g.relu(g.linear(x, 50, name="a"))
    plan = g.plan(g.mean(g.linear(h, 50, name="b")), optimizer=g.optim.Adam())
    assert sum(value.type.bytes for value in plan.saved()) == 2 * batch * 50 * 4
    moments = [state for state in plan.graph.states if state.role == "moment"]
    assert sum(state.type.bytes for state in moments) == 2 * (2 * 50 * 50 + 2 * 50) * 4
