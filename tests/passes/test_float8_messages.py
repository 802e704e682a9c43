"""Errors of precision fp8, and the row of a plan that lists layers without 8-bit operands."""

import numpy as np
import pytest
from passes.test_float8 import mlp, plan_of, training

import graphc as g
from graphc.errors import CheckpointError, OptionError, PlanError


@pytest.mark.parametrize(("device", "instead"), [("a100", "bf16"), ("v100", "fp16")])
def test_gpus_without_8_bit_products_are_refused(device, instead):
    message = rf"{device} is sm_.*choose a GPU from sm_89 on.*or precision='{instead}'"
    with pytest.raises(OptionError, match=message):
        plan_of(mlp(), device=device)
    assert plan_of(mlp(), device="l4").arena_bytes


def test_a_checkpoint_of_bf16_names_the_line_that_takes_its_states(tmp_path):
    path = str(tmp_path / "saved")
    old, new = training(mlp(), precision="bf16"), training(mlp())
    old.save(path)
    with pytest.raises(CheckpointError, match=r"missing fp8/.*program\.states\.update"):
        new.load(path)
    new.states.update({name: old.states[name] for name in old.states})
    assert all(np.array_equal(old.states[name], new.states[name]) for name in old.states)


def test_sizes_with_other_8_bit_layers_name_the_multiple():
    with pytest.raises(PlanError, match="a multiple of 16 in every size"):
        g.family(mlp, [{"batch": 16}, {"batch": 24}], optimizer=g.optim.SGD(), precision="fp8")


@pytest.mark.parametrize(
    ("loss", "row"),
    [
        (lambda: mlp(), "3 of 4 linear layers; in bf16: last/weight (10 is no multiple of 16)"),
        (lambda: mlp(inputs=40), "layer0/weight (40 is no multiple of 16)"),
        (
            lambda: g.mean(g.relu(g.input("x", (2, 16, 32)) @ g.parameter("w", (32, 32))) ** 2),
            "w (a product of 3 axes)",
        ),
    ],
)
def test_a_plan_says_why_layers_are_in_16_bits(loss, row):
    assert row in " ".join(str(plan_of(loss())).split())


def test_sharded_weights_are_listed_as_well():
    plan = plan_of(mlp(), ranks=2, shard="states")
    assert "3 of 4 linear layers; in bf16: last/linear" in " ".join(str(plan).split())
