"""The light models of onnx's package with drawn weights: results, training, budgets."""

import numpy as np
import onnx
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
"""Both libraries' vgg19 are within a millionth of float64, and 1.04 millionths from one another."""


LONGEST_SUM = 25_088
"""Products that are summed for a result of vgg19."""

NEAR = LONGEST_SUM**0.5 * 2.0**-24
"""How far float32 may be, as a part of the largest result: what independent roundings of a sum come
to (Higham and Mary, 2019). Libraries, and kernels of one for several processors, sum in other
orders."""


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["numpy", "native"])
@pytest.mark.parametrize("name", COMPARED)
def test_results_are_those_of_onnxruntime(name, kernels):
    runtime = pytest.importorskip("onnxruntime")
    model = light_model(name)
    network = graphc.onnx.load(model)
    source, x = fed(network)
    program = graphc.compile(outputs={"y": network.output}, kernels=kernels)
    network.initialize(program)
    found = program.step({source: x})["y"]
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model.SerializeToString(), options)
    (expected,) = session.run(None, {model.graph.input[0].name: x})
    assert np.abs(found - expected).max() <= NEAR * np.abs(expected).max()


def in_float64(model):
    """The model with weights, inputs and results of twice the width."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for tensor in wide.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for value in (*wide.graph.input, *wide.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    del wide.graph.value_info[:]
    return wide


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["numpy", "native"])
def test_results_of_vgg19_are_near_those_in_float64(kernels):
    results = []
    for model in (light_model("vgg19"), in_float64(light_model("vgg19"))):
        network = graphc.onnx.load(model)
        source, x = fed(network)
        program = graphc.compile(outputs={"y": network.output}, kernels=kernels)
        network.initialize(program)
        results.append(program.step({source: x.astype(network.output.type.dtype.numpy)})["y"])
    found, expected = results
    assert (found.dtype, expected.dtype) == (np.float32, np.float64)
    assert np.abs(found - expected).max() <= NEAR * np.abs(expected).max()


def trained(network, plan):
    """Losses and parameters of some steps on one batch, as bytes."""
    program = graphc.bind(plan)
    network.initialize(program)
    source, x = fed(network)
    feeds = {source: x, "labels": np.arange(x.shape[0], dtype=np.int32)}
    losses = [program.step(feeds)["loss"].tobytes() for _ in range(STEPS)]
    return losses, {name: array.tobytes() for name, array in program.parameters.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["densenet121", "shufflenet", "squeezenet"])
def test_training_within_a_budget_has_the_same_bits(name):
    network = graphc.onnx.load(light_model(name, batch=2))
    loss = loss_of(network)
    plain = graphc.plan(loss, optimizer=graphc.optim.SGD(1e-4))
    tight = within_two_thirds(loss, plain.arena_bytes)
    if 3 * tight.arena_bytes > 2 * plain.arena_bytes:  # most bytes are weights
        assert tight.arena_bytes <= plain.arena_bytes
        with pytest.raises(graphc.BudgetError):
            graphc.plan(loss, optimizer=graphc.optim.SGD(1e-4), budget=tight.arena_bytes - 1)
    losses, parameters = trained(network, plain)
    assert len(set(losses)) > STEPS // 2
    assert (losses, parameters) == trained(network, tight)
