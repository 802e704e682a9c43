import pytest

import graphc as g
from graphc.ir.builder import trace
from graphc.models import MODELS, mlp


def test_parameters_and_shapes():
    plan = g.plan(mlp(layers=50, hidden=1024, inputs=784, classes=10, batch=512))
    count = sum(state.type.elements for state in plan.graph.states)
    assert count == 784 * 1024 + 49 * 1024 * 1024 + 50 * 1024 + 1024 * 10 + 10
    assert {x.name: x.shape for x in plan.graph.inputs} == {"x": (512, 784), "labels": (512,)}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_says_where_it_comes_from_and_names_its_layers(name):
    loss = MODELS[name]()
    assert loss.shape == ()
    assert all("/" in state.name for state in trace({"loss": loss}).states)
