"""Training steps of networks as chains."""

import pytest
from network_chains import MOST, collapse, training_steps

from graphc.models import MODELS
from graphc.planner.given.replay import replay_steps


@pytest.mark.parametrize(
    ("name", "options", "stages"),
    [
        ("resnet", {"units": (1, 1, 1, 1), "batch": 4}, 8),
        ("unet", {"batch": 1}, 20),
        ("mlp", {}, 3),
    ],
)
def test_a_chain_has_the_seconds_and_about_the_bytes_of_its_network(name, options, stages):
    steps = training_steps(MODELS[name](**options), "a100", "fp32")
    chain, beside = collapse(steps)
    assert stages <= len(chain) <= MOST
    assert sum(chain.forward) + sum(chain.backward) == pytest.approx(sum(steps.cost))
    boundary = steps.runs[0].boundary
    assert sum(chain.forward) == pytest.approx(sum(steps.cost[:boundary]))
    problem = chain.problem()
    produced = {value for values in steps.outputs for value in values}
    given = sum(size for value, size in enumerate(steps.bytes) if value not in produced)
    peak = steps.levels(range(len(steps))).max() - given
    assert replay_steps(problem, problem.order).peak_bytes + beside >= 0.9 * peak
    assert replay_steps(problem, problem.order).peak_bytes + beside <= 1.7 * peak


def test_backward_passes_belong_to_their_stages():
    network = MODELS["resnet"](units=(1, 1, 1, 1), batch=64, form="common")
    chain, _ = collapse(training_steps(network, "a100", "fp32"))
    most = max(chain.forward)
    for forward, backward in zip(chain.forward, chain.backward, strict=True):
        if forward > 0.2 * most:
            assert 0.9 * forward <= backward <= 3 * forward
