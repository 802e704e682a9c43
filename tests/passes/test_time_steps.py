"""One product for all time steps: which gradients are merged, and their values."""

import functools

import numpy as np
import pytest

import graphc as g
from graphc.compiler.compilation import Compilation, run, traced
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import before
from graphc.passes.time_steps import merge_time_steps

STEPS, BATCH, WIDTH = 5, 3, 4
X = (STEPS, BATCH, WIDTH)


def sequence(shape=X):
    return g.input("x", shape, "float64")


def recurrent(x, order=range(STEPS), name="layer", dtype="float64"):
    """The states of a layer h = tanh(w · x + u · h + b), by step."""
    with g.scope(name):
        w, u = (
            g.parameter(n, (WIDTH, WIDTH), dtype, g.Initial("uniform", 0.7)) for n in ("w", "u")
        )
        b = g.parameter("b", (WIDTH,), dtype)
    rows = g.affine(x, w)
    h, found = g.full((BATCH, WIDTH), 0.5, dtype), {}
    for step in order:
        found[step] = h = g.tanh(rows[step] + g.affine(h, u, b))
    return [found[step] for step in range(STEPS)]


def squared(h):
    return g.mean(h * h)


def by_layer(x, layers=2, **options):
    for layer in range(layers):
        x = g.stack(recurrent(x, name=f"layer{layer}", **options))
    return squared(x)


def by_step(x):
    """Two layers that alternate at every step."""
    layers = [g.lstm_parameters(WIDTH, WIDTH, "float64") for _ in range(2)]
    states = [(g.full((BATCH, WIDTH), 0.5, "float64"),) * 2 for _ in layers]
    for step in range(STEPS):
        h = x[step]
        for layer, cell in enumerate(layers):
            states[layer] = g.lstm_cell(h, *states[layer], cell)
            h = states[layer][0]
    return squared(h)


def both_directions(x):
    backward = recurrent(x, reversed(range(STEPS)), "backward")
    return squared(g.concat([g.stack(recurrent(x)), g.stack(backward)], axis=2))


def last_state_only(x):
    """No tensor has the hidden states of all steps, so the recurrent products stay apart."""
    return squared(recurrent(x)[-1])


def state_of_zeros_for_a_step(x):
    """One state is not that of the step before, so the run of steps is in two parts."""
    with g.scope("layer"):
        u = g.parameter("u", (WIDTH, WIDTH), "float64", g.Initial("uniform", 0.7))
        w = g.parameter("w", (WIDTH, WIDTH), "float64", g.Initial("uniform", 0.7))
    rows, h, found = g.affine(x, w), g.full((BATCH, WIDTH), 0.5, "float64"), []
    for step in range(STEPS):
        if step == 3:
            h = g.full((BATCH, WIDTH), 0.25, "float64")
        h = g.tanh(rows[step] + g.affine(h, u))
        found.append(h)
    return squared(g.stack(found))


def bias_twice(x):
    """The gradient of the sum at a step is added to itself."""
    with g.scope("layer"):
        w = g.parameter("w", (WIDTH, WIDTH), "float64", g.Initial("uniform", 0.7))
        b = g.parameter("b", (WIDTH,), "float64")
    rows, found = g.affine(x, w), []
    for step in range(STEPS):
        shifted = b + g.constant(np.full(WIDTH, float(step)))
        found.append(g.tanh(rows[step] + shifted + shifted))
    return squared(g.stack(found))


def rows_of_a_vector(x):
    """States of one row, concatenated as vectors."""
    with g.scope("layer"):
        u = g.parameter("u", (WIDTH, WIDTH), "float64", g.Initial("uniform", 0.7))
    h, found = x[0, :1], []
    for step in range(STEPS):
        h = g.tanh(x[step, :1] + g.affine(h, u))
        found.append(g.reshape(h, (WIDTH,)))
    return squared(g.concat(found))


def some_states_twice(x):
    """The states are also in a shorter concatenation."""
    h = recurrent(x)
    return squared(g.stack(h[-2:])) + squared(g.stack(h))


def lstm(x):
    first = [g.full((BATCH, WIDTH), 0.5, "float64")] * 2
    h, _, c = g.lstm_layer(x, *first, g.lstm_parameters(WIDTH, WIDTH, "float64"))
    return squared(h) + squared(c)


def gru(x):
    first = g.full((BATCH, WIDTH), 0.5, "float64")
    return squared(g.gru_layer(x, first, g.gru_parameters(WIDTH, WIDTH, "float64"))[0])


def training(loss, **options):
    """The graph of a step before the pass."""
    given = PlanOptions(loss, optimizer=g.optim.SGD(1.0), **options)
    return run(traced(given), before("time-steps"), Compilation(given))


def over_rows(graph):
    """The number of products of the gradient that sum over the rows of their operands."""
    return sum(
        node.op.name == "matmul" and node.attributes.transpose_a and node.phase == "gradient"
        for node in graph.nodes
    )


CASES = {
    # A layer has a product for its inputs, and for its states one for each step: 1 + STEPS. The
    # first state is in no tensor with the others, so after the pass it has 1 + 2.
    "by layer": (by_layer, 2 * 6, 2 * 3),
    "lstm": (lstm, 6, 3),
    "some states twice": (some_states_twice, 6, 3),
    "bias twice": (bias_twice, 1, 1),
    "rows of a vector": (rows_of_a_vector, 5, 5),
    "both directions": (both_directions, 2 * 6, 2 * 3),
    "a state of zeros for a step": (state_of_zeros_for_a_step, 6, 1 + 2 + 1 + 1),
    "last state only": (last_state_only, 6, 6),
    # The gradients of a gated unit's two products differ.
    "gru": (gru, 6, 6),
    "by step": (by_step, 4 * STEPS, 4 * STEPS),
}


@functools.cache
def merged_in(name):
    """Return the graph of a case before and after the pass."""
    graph = training(CASES[name][0](sequence()))
    return graph, merge_time_steps(graph)


@pytest.mark.parametrize("name", CASES)
def test_number_of_products(name):
    assert tuple(map(over_rows, merged_in(name))) == CASES[name][1:]


@pytest.mark.parametrize("name", CASES)
def test_graphs_without_such_products_are_returned_as_they_are(name):
    _, plain, merged = CASES[name]
    graph, found = merged_in(name)
    # The sum for a bias needs only the gradients of all steps.
    has_runs = plain > merged or name == "last state only"
    assert (found is graph) != has_runs


def test_biases_of_all_steps_are_one_sum():
    def sums(graph):
        return sum(node.op.name == "sum" and node.phase == "gradient" for node in graph.nodes)

    graph = training(by_layer(sequence(), layers=1))
    assert (sums(graph), sums(merge_time_steps(graph))) == (STEPS, 1)


@functools.cache
def differentiated(name):
    """Return a program of a case's gradients. Without an optimizer, nothing is merged."""
    loss = CASES[name][0](sequence())
    weights = [s for s in g.plan(loss, training=True).graph.states if s.trainable]
    named = dict(zip((w.name for w in weights), g.gradient(loss, weights), strict=True))
    return loss, g.compile(outputs=named, kernels="numpy")


VARIANTS = [{}, {"accumulate": 3}, {"recompute": "sublinear"}]
QUICK = ("by layer", "lstm")
"""Cases under every option in quick tests."""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, marks=[] if not options or name in QUICK else pytest.mark.slow)
        for name in CASES
        for options in VARIANTS
    ],
    ids=str,
)
def test_gradients_are_those_of_the_gradient_pass(name, options):
    """A step of SGD with rate 1 subtracts the gradient."""
    loss, plain = differentiated(name)
    kernels = "native" if name in QUICK else "numpy"
    trained = g.compile(loss, optimizer=g.optim.SGD(1.0), kernels=kernels, poison=True, **options)
    rng = np.random.default_rng(0)
    start = {n: rng.standard_normal(a.shape) for n, a in plain.parameters.items()}
    xs = [rng.standard_normal(X) for _ in range(options.get("accumulate", 1))]
    plain.parameters.update(start)
    trained.parameters.update(start)
    gradients = [{n: a.copy() for n, a in plain.step(x=x).items()} for x in xs]
    trained.step(x=np.stack(xs) if len(xs) > 1 else xs[0])
    for parameter, before_step in start.items():
        wanted = np.mean([found[parameter] for found in gradients], axis=0)
        found = before_step - trained.parameters[parameter]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_every_micro_batch_has_its_own_product():
    """Otherwise the rows of the first would be stored until the last has run."""
    for count in (2, 3):
        graph = merge_time_steps(training(by_layer(sequence(), layers=1), accumulate=count))
        assert over_rows(graph) == count * 3
        assert sum(node.op.name == "concat" for node in graph.nodes) == count * 2


def test_a_graph_with_merged_steps_is_in_order():
    """Every node reads only results of earlier nodes, and every result is read."""
    from graphc.ir.verify import verify

    for name in CASES:
        _, graph = merged_in(name)
        verify(graph)
        read = {value for node in graph.nodes for value in node.inputs}
        read |= set(graph.outputs.values())
        for node in graph.nodes:
            assert node.op.has_effect or not read.isdisjoint(node.outputs)


def test_products_in_16_bits_are_merged():
    loss = by_layer(g.input("x", X), dtype="float32")
    graph = training(loss, precision="bf16")
    assert (over_rows(graph), over_rows(merge_time_steps(graph))) == (12, 6)
    assert all(
        node.attributes.wide
        for node in merge_time_steps(graph).nodes
        if node.op.name == "matmul" and node.attributes.transpose_a
    )
