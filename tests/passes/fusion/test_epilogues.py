"""Activations that become a part of the linear layer before them."""

from collections import Counter

import numpy as np
import pytest

import graphc as g
from graphc import Program, load_plan, save_plan
from graphc.errors import OptionError, TextError
from graphc.ir.builder import apply, trace
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.ops.matmul import Linear, LinearAttributes
from graphc.passes.fusion.epilogues import fuse_epilogues


def activations(graph):
    """How many linear nodes have each activation."""
    return Counter(n.attributes.activation for n in graph.nodes if n.op.name == "linear")


def ops(graph):
    return Counter(node.op.name for node in graph.nodes)


def gelu(x):
    return g.gelu(x, "tanh")


def network(activation=gelu, shape=(6, 5)):
    h = activation(g.linear(g.input("x", shape), 8, name="a"))
    return g.linear(activation(g.linear(h, 7, name="b")), 4, name="c")


def feeds(graph):
    rng = np.random.default_rng(1)
    return {
        x.name: rng.integers(0, 4, x.shape, np.int32)
        if x.type.dtype.kind == "int"
        else rng.standard_normal(x.shape).astype(x.type.dtype.numpy)
        for x in graph.inputs
    }


def results(graph):
    """Two steps by NumPy, with all states."""
    program = Program(Allocation(graph).plan("packed"), seed=3, poison=True)
    steps = [program.step(feeds(graph)) for _ in range(2)]
    return [*steps, {name: program.states[name].copy() for name in program.states}]


def check_same_bits(before, after):
    verify(after)
    for one, other in zip(results(before), results(after), strict=True):
        assert one.keys() == other.keys()
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name], strict=True)


@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5)], ids=["rows", "in another shape"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_gelu_in_inference(dtype, shape):
    x = g.input("x", shape, dtype)
    y = gelu(g.linear(x, 8))
    graph = g.plan(outputs={"y": y}).graph
    fused = fuse_epilogues(graph)
    assert ops(fused) == ops(graph) - Counter(gelu_tanh=1)
    assert activations(fused) == {"gelu": 1}
    if dtype in ("float32", "float64"):
        check_same_bits(graph, fused)
        return
    one, other = (results(each)[0]["y"].astype(np.float64) for each in (graph, fused))
    np.testing.assert_allclose(one, other, rtol=2e-2, atol=1e-2)  # rounded once, not twice


def test_gelu_in_training_stays():
    """Its gradient reads what it is applied to."""
    loss = g.mean(network())
    graph = g.plan(loss, optimizer=g.optim.SGD(0.1)).graph
    assert fuse_epilogues(graph) is graph


@pytest.mark.parametrize(
    "build",
    [
        lambda h: {"y": g.gelu(h)},  # exact, which no BLAS has
        lambda h: {"y": g.relu(h)},  # that of a BLAS hides NaN
        lambda h: {"y": gelu(h), "h": h},  # an output
        lambda h: {"y": gelu(g.keep(h))},
        lambda h: {"y": gelu(h) + h},  # read twice
        lambda h: {"y": gelu(g.reshape(h, (-1,))), "z": g.exp(h)},
        lambda h: {"y": gelu(g.transpose(h))},
        lambda h: {"y": gelu(g.tanh(h))},
        lambda h: {"y": g.tanh(h)},
    ],
)
def test_unsupported_epilogues_are_not_fused(build):
    graph = trace(build(g.linear(g.input("x", (6, 5)), 8)))
    assert fuse_epilogues(graph) is graph


def test_one_activation_alone_is_taken():
    graph = fuse_epilogues(trace({"y": gelu(gelu(g.linear(g.input("x", (6, 5)), 8)))}))
    assert (activations(graph), ops(graph)["gelu_tanh"]) == ({"gelu": 1}, 1)
    assert fuse_epilogues(graph) is graph


def test_nodes_that_are_recomputed_apart_stay_apart():
    h = g.linear(g.input("x", (6, 5)), 8)
    with g.mirror(1):
        graph = trace({"y": gelu(h)})
    assert fuse_epilogues(graph) is graph
    with g.segment("s"):
        graph = trace({"y": gelu(h)})
    assert fuse_epilogues(graph) is graph


def test_plans_for_a_gpu_have_them():
    options = {"outputs": [network()]}
    assert activations(g.plan(**options, device="cuda").graph) == {"gelu": 2, "none": 1}
    assert activations(g.plan(**options).graph) == {"none": 3}


def test_text_and_files_keep_the_activation(tmp_path):
    plan = g.plan(outputs=[network()], device="cuda")
    text = g.format_graph(plan.graph)
    assert text.count("{activation='gelu'}") == 2
    assert "activation='none'" not in text
    assert g.format_graph(g.parse_graph(text)) == text
    save_plan(plan, tmp_path / "plan.json")
    assert g.format_graph(load_plan(tmp_path / "plan.json").graph) == text
    with pytest.raises(TextError, match="activation"):
        g.parse_graph(text.replace("'gelu'", "'relu'"))


def test_a_gradient_through_an_epilogue_is_refused():
    values = [g.input(n, s) for n, s in (("x", (3, 4)), ("w", (5, 4)), ("b", (5,)))]
    y = apply(Linear, *values, attributes=LinearAttributes("gelu")).output
    with pytest.raises(OptionError, match="apply the activation as a separate op"):
        g.gradient(g.sum(y), values)
