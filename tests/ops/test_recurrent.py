"""Recurrent layers: the same as their cells in a loop, and what they refuse."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import OptionError, ShapeError

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 5, 2
KINDS = {
    "lstm": (g.lstm_layer, g.lstm_cell, g.lstm_parameters, "hc"),
    "gru": (g.gru_layer, g.gru_cell, g.gru_parameters, "h"),
}


def operands(states, steps=STEPS):
    x = g.input("x", (steps, BATCH, INPUTS), "float64")
    return x, [g.input(name, (BATCH, HIDDEN), "float64") for name in states]


@pytest.mark.parametrize("steps", [1, STEPS])
@pytest.mark.parametrize("kind", KINDS)
def test_layer_is_the_cell_in_a_loop(kind, steps):
    layer, cell, parameters, names = KINDS[kind]
    x, first = operands(names, steps)
    weights = parameters(INPUTS, HIDDEN, "float64")
    of_layer = dict(zip(("all", *names), layer(x, *first, weights), strict=True))
    states, shown = first, []
    for step in range(steps):
        found = cell(x[step], *states, weights)
        states = list(found) if isinstance(found, tuple) else [found]
        shown.append(states[0])
    of_loop = dict(zip(("all", *names), (g.stack(shown), *states), strict=True))
    outputs = {
        f"{n}/{kind}": v[n] for kind, v in (("layer", of_layer), ("loop", of_loop)) for n in v
    }
    program = g.compile(outputs=outputs)
    rng = np.random.default_rng(0)
    program.parameters.update(
        {n: rng.standard_normal(a.shape) for n, a in program.parameters.items()}
    )
    found = program.step({v.name: rng.standard_normal(v.shape) for v in (x, *first)})
    assert found["all/layer"].shape == (steps, BATCH, HIDDEN)
    for name in of_layer:
        np.testing.assert_allclose(found[f"{name}/layer"], found[f"{name}/loop"], rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_layer_refuses(kind):
    layer, _, parameters, names = KINDS[kind]
    x, first = operands(names)
    weights = parameters(INPUTS, HIDDEN, "float64")
    with pytest.raises(
        ShapeError, match=rf"{kind}_layer: x must have the axes \(steps, batch, inp"
    ):
        layer(x[0], *first, weights)
    with pytest.raises(
        OptionError, match=f"must be a result of graphc.{kind}_parameters, got None"
    ):
        layer(x, *first, None)
    for shape in ((BATCH + 1, HIDDEN), (1, HIDDEN), (HIDDEN,)):
        with pytest.raises(
            ShapeError, match=rf"{kind}_layer: initial states must be \(batch, hidden"
        ):
            layer(x, *[g.full(shape, 0.0, "float64") for _ in names], weights)
    other = KINDS["gru" if kind == "lstm" else "lstm"][2](INPUTS, HIDDEN, "float64")
    with pytest.raises(ShapeError, match=rf"{kind}_layer: the cell must have . gates"):
        layer(x, *first, other)
    with pytest.raises(ShapeError, match=r"affine: x must be"):
        layer(g.input("y", (STEPS, BATCH, INPUTS + 1), "float64"), *first, weights)
