"""What `graphc.onnx.load` makes of a model: names, extents, weights, control flow, errors."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_cases.models import FLOAT, INT64, array, layers, model, run

import graphc
from graphc.errors import OnnxError, OptionError


def test_values_names_scopes_and_results():
    made, tensors = layers()
    network = graphc.onnx.load(made, dims={"N": 2})
    assert network.names["x:0"] == network.inputs["x:0"].name == "x_0"
    assert network.names["onnx::MatMul_12"] == "onnx__MatMul_12"
    assert network.output.shape == (2, 3)
    program = graphc.compile(outputs={"y": network.output})
    graph = graphc.plan(outputs={"y": network.output}, fuse=False).graph
    assert [node.scope for node in graph.nodes] == ["fc1", "", "fc2", "fc2", "Scale_7"]
    network.initialize(program)
    x = array((2, 4), 9)
    hidden = np.maximum(x @ tensors["fc1.weight"].T + tensors["fc1.bias"], 0)
    expected = 2 * (hidden @ tensors["onnx::MatMul_12"] + tensors["fc2.bias"])
    np.testing.assert_allclose(program.step(x_0=x)["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_model_is_left_as_it_is_and_read_from_a_path_alike(tmp_path):
    made, _ = layers()
    text = made.SerializeToString(deterministic=True)
    first = graphc.onnx.load(made, dims={"N": 2})
    assert made.SerializeToString(deterministic=True) == text
    path = tmp_path / "model.onnx"
    path.write_bytes(text)
    second = graphc.onnx.load(path, dims={"N": 2})
    plans = [graphc.plan(outputs=dict(n.outputs)) for n in (first, second)]
    assert graphc.format_graph(plans[0].graph) == graphc.format_graph(plans[1].graph)


def test_the_report_says_what_learns_and_why():
    made, _ = layers()
    report = {entry.name: entry for entry in graphc.onnx.load(made, dims={"N": 2}).report}
    kinds = {name: (entry.kind, entry.is_trained) for name, entry in report.items()}
    learnt, fixed = ("parameter", True), ("constant", False)
    assert kinds == {
        "fc1.weight": learnt, "fc1.bias": learnt, "onnx::MatMul_12": learnt, "fc2.bias": learnt,
        "two": fixed,
    }  # fmt: skip
    assert report["fc1.weight"].reason == "weight of Gemm '/fc1/Gemm'"
    assert report["two"].reason == "a scalar"
    assert report["two"].state is None
    assert report["fc2.bias"].shape == (3,)


@pytest.mark.parametrize(
    ("trainable", "learnt"),
    [
        (None, {"fc1.weight", "fc1.bias", "onnx::MatMul_12", "fc2.bias"}),
        (False, set()),
        (r"^fc1\.", {"fc1.weight", "fc1.bias"}),
        (["fc2.bias"], {"fc2.bias"}),
    ],
)
def test_trainable_chooses(trainable, learnt):
    made, _ = layers()
    network = graphc.onnx.load(made, dims={"N": 2}, trainable=trainable)
    assert {entry.name for entry in network.report if entry.is_trained} == learnt
    if learnt:
        plan = graphc.plan(graphc.mean(network.output), optimizer=graphc.optim.SGD(0.1))
        moved = [node for node in plan.graph.nodes if node.op.has_effect]
        assert len(moved) == len(learnt)


@pytest.mark.parametrize(
    ("trainable", "told"),
    [("nothing", "no tensor of the model matches"), (["fc1.weigth"], "did you mean fc1.weight"),
     (["q"], r"no tensor 'q'; choose one of: fc1\.weight, fc1\.bias, ")],
)  # fmt: skip
def test_a_choice_of_nothing_is_refused(trainable, told):
    with pytest.raises(OptionError, match=f"trainable: .*{told}"):
        graphc.onnx.load(layers()[0], dims={"N": 2}, trainable=trainable)


def test_training_begins_with_the_file_and_moves():
    made, tensors = layers()
    network = graphc.onnx.load(made, dims={"N": 2})
    program = graphc.compile(graphc.mean(network.output), optimizer=graphc.optim.SGD(0.5))
    network.initialize(program)
    np.testing.assert_array_equal(program.parameters["fc2.bias"], tensors["fc2.bias"])
    program.step(x_0=array((2, 4)))
    expected = tensors["fc2.bias"] - np.float32(0.5 * 2 / 3)
    np.testing.assert_allclose(program.parameters["fc2.bias"], expected, rtol=1e-5)


def test_without_weights_states_begin_as_layers_do():
    network = graphc.onnx.load(layers()[0], dims={"N": 2}, weights=False)
    assert not network.states
    program = graphc.compile(outputs=dict(network.outputs))
    bound = np.sqrt(6 / 4)
    weight = program.parameters["fc1.weight"]
    assert 0 < np.abs(weight).max() <= bound
    assert not program.parameters["fc1.bias"].any()
    with pytest.raises(OptionError, match=r"without its weights.*weights=True"):
        network.initialize(program)


def test_a_program_of_another_network_is_not_initialized():
    network = graphc.onnx.load(layers()[0], dims={"N": 2})
    x = graphc.input("x", (2, 3))
    for other in (graphc.relu(x), graphc.linear(x, 4)):
        with pytest.raises(OptionError, match="no state of this network; compile the outputs"):
            network.initialize(graphc.compile(outputs={"y": other}))


def test_weights_that_no_output_reads_need_no_program():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["x"], ["y"])]
    made = model(nodes, {"x": (FLOAT, (2, 3))}, {"y": (FLOAT, (2, 3))}, {"w": array((3, 4))})
    x = array((2, 3), 1)
    np.testing.assert_array_equal(run(graphc.onnx.load(made), x=x)["y"], np.maximum(x, 0))


# --- what is missing ---


def loop_of(node, turns):
    """A Loop whose body is one node of the number of the turn."""
    make = helper.make_tensor_value_info
    going = helper.make_node("Identity", ["go"], ["on"])
    inputs = [make("turn", INT64, ()), make("go", TensorProto.BOOL, ())]
    outputs = [make("on", TensorProto.BOOL, ()), make(node.output[0], INT64, None)]
    body = helper.make_graph([going, node], "body", inputs, outputs)
    return helper.make_node("Loop", [turns, ""], ["looped"], body=body)


def test_one_error_lists_all_that_is_missing():
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], "first", domain="com.example"),
        helper.make_node("Frobnicate", ["a"], ["b"], "second", domain="com.example"),
        helper.make_node("NonZero", ["x"], ["c"], "third"),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Range", ["zero", "two", "zero"], ["known"], "still"),
        helper.make_node("Abs", ["known"], ["folded"]),
        helper.make_node("Celu", ["d"], ["e"]),
        loop_of(helper.make_node("Unique", ["turn"], ["u"], "in the body"), "d"),
    ]
    tensors = {"zero": np.int64(0), "two": np.int64(2)}
    others = {"s": (TensorProto.STRING, (1,)), "q": (TensorProto.INT8, (1,))}
    lines = (
        "operator com.example::Frobnicate: 2 occurrences, first in 'first'",
        "operator NonZero: 1 occurrences, first in 'third'",
        "operator Unique: 1 occurrences, first in 'in the body'",
        "Range 'still': the step of a Range must not be 0",
    )

    def told(shape, others):
        inputs, outputs = {"x": (FLOAT, shape), **others}, {"b": (FLOAT, None)}
        with pytest.raises(OnnxError) as caught:
            graphc.onnx.load(model(nodes, inputs, outputs, tensors, domains=("com.example",)))
        return str(caught.value)

    for text in (told((2, 2), {}), told(("N", 2), others)):  # whatever the nodes are given
        assert all(line in text for line in lines)
        assert not any(name in text for name in ("Relu", "Abs", "Celu", "Loop"))
    assert "'x' is [N, 2]" in text
    assert "'s' has the element type string" in text
    assert "'q' has the element type int8" in text


def test_operators_are_counted():
    nodes = [helper.make_node("NonZero", ["x"], [f"y{i}"], f"n{i}") for i in range(3)]
    made = model(nodes, {"x": (FLOAT, (2,))}, {"y0": (INT64, None)})
    with pytest.raises(OnnxError, match="NonZero: 3 occurrences, first in 'n0'"):
        graphc.onnx.load(made)


def test_a_tensor_that_two_nodes_compute_is_refused():
    nodes = [helper.make_node(op, ["x"], ["y"], op.lower()) for op in ("Relu", "Tanh")]
    made = model(nodes, {"x": (FLOAT, (2,))}, {"y": (FLOAT, (2,))})
    with pytest.raises(OnnxError, match="Tanh 'tanh': an earlier node already computes 'y'"):
        graphc.onnx.load(made)


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x09"])
def test_other_objects_than_models_are_refused(content, tmp_path):
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    with pytest.raises(OnnxError):
        graphc.onnx.load(path)
    with pytest.raises(OnnxError, match="cannot be read"):
        graphc.onnx.load(tmp_path / "missing.onnx")
    with pytest.raises(OptionError, match=r"a path or an onnx\.ModelProto"):
        graphc.onnx.load(42)


# --- norms in training ---


def test_batch_norm_is_trained_with_moving_statistics():
    tensors = {
        "scale": np.ones(3, np.float32), "bias": np.zeros(3, np.float32),
        "mean": array(3), "variance": np.full(3, 2, np.float32),
    }  # fmt: skip
    node = helper.make_node("BatchNormalization", ["x", *tensors], ["y"], momentum=0.75)
    made = model([node], {"x": (FLOAT, (4, 3, 2))}, {"y": (FLOAT, (4, 3, 2))}, tensors, opset=15)
    network = graphc.onnx.load(made)
    kinds = {entry.name: entry.kind for entry in network.report}
    assert (kinds["mean"], kinds["variance"]) == ("statistic", "statistic")
    x = array((4, 3, 2), 5)
    centred = (x - tensors["mean"][:, None]) / np.sqrt(2 + 1e-5)
    np.testing.assert_allclose(run(network, x=x)["y"], centred, rtol=1e-5, atol=1e-6)
    program = graphc.compile(
        graphc.mean(graphc.mul(network.output, network.output)), optimizer=graphc.optim.SGD(0.1)
    )
    network.initialize(program)
    program.step(x=x)
    expected = 0.75 * tensors["mean"] + 0.25 * x.mean((0, 2))
    np.testing.assert_allclose(program.states["mean"], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # onnx makes its cases with NaN and overflow
def test_the_runner_of_onnx_takes_the_backend():
    from onnx.backend.test import BackendTest

    tests = BackendTest(graphc.onnx.Backend, __name__).include("^test_relu_cpu$").test_cases
    names = [n for kind in tests.values() for n in dir(kind) if n.startswith("test_relu_cpu")]
    assert names == ["test_relu_cpu"]
    (kind,) = [kind for kind in tests.values() if hasattr(kind, "test_relu_cpu")]
    kind("test_relu_cpu").debug()
    assert onnx.__version__


def test_random_numbers_have_their_distribution():
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["n"], mean=3.0, scale=2.0),
        helper.make_node("RandomUniform", [], ["u"], shape=[100, 100], low=-1.0, high=3.0),
        helper.make_node("Bernoulli", ["x"], ["b"]),
    ]
    shape = (100, 100)
    made = model(nodes, {"x": (FLOAT, shape)}, dict.fromkeys("nub", (FLOAT, shape)))
    found = run(graphc.onnx.load(made), x=np.full(shape, 0.25, np.float32))
    expected = {"n": (3, 2), "u": (1, 4 / np.sqrt(12)), "b": (0.25, np.sqrt(0.25 * 0.75))}
    for name, (mean, deviation) in expected.items():  # of 10,000 numbers, within 5 deviations
        assert abs(found[name].mean() - mean) < 5 * deviation / 100
        assert abs(found[name].std() - deviation) < 0.05 * deviation
    assert set(np.unique(found["b"])) == {0, 1}
