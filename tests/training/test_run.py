"""What a training run says of itself when its loss is no number any more."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import NonFiniteError
from graphc.models import mlp
from graphc.training.recipe import Recipe
from graphc.training.run import TrainingRun


def test_a_run_whose_loss_is_no_number_has_done_that_step(tmp_path):
    """The step count of its notes is that of its states."""
    recipe = Recipe(optimizer="adam")
    network = mlp(layers=2, hidden=4, inputs=3, classes=2, batch=4)
    run = TrainingRun(recipe, g.compile(network, **recipe.compile_options(5)), 5)
    good = {"x": np.ones((4, 3), np.float32), "labels": np.zeros(4, np.int32)}
    run.step(good)
    with pytest.raises(NonFiniteError, match="the loss of step 2 is nan"):
        run.step({**good, "x": np.full((4, 3), np.nan, np.float32)})
    assert run.done == run.training.states["counter/step"] == 2
    run.save(tmp_path / "run.safetensors")
    assert g.read_notes(tmp_path / "run.safetensors")["steps_done"] == "2"
