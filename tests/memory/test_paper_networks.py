"""Feature maps of the paper's networks against limits, within extra flops and at MXNet's bytes."""

import pytest

import graphc as g
from graphc.models import lstm, resnet

MIB = 2**20

LIMITS = [
    # network, MiB of feature maps within one more forward pass, within 3 % more flops
    pytest.param(lambda: resnet(50), 700, 1500, marks=pytest.mark.slow),
    pytest.param(lambda: resnet(200), 1050, 4300, marks=pytest.mark.slow),
    pytest.param(lambda: resnet(1001), 2200, 20000, marks=pytest.mark.slow),
    pytest.param(lambda: lstm(64), 90, 520, marks=pytest.mark.slow),
    pytest.param(lambda: lstm(128), 125, 1000, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("build", "forward", "little"), LIMITS)
def test_the_paper_networks_within_extra_flops(build, forward, little):
    for part, mebibytes in ((0.33, forward), (0.03, little)):
        found = g.plan(build(), optimizer=g.optim.SGD(), feature_map_budget=mebibytes * MIB)
        assert found.feature_map_bytes <= mebibytes * MIB
        assert found.recomputation.extra_flops_fraction <= part


AT_MXNETS = [
    # network, MiB of MXNet's plan (reference planner, square root of n), extra flops
    pytest.param(lambda: resnet(50), 1250, 0.03, marks=pytest.mark.slow),
    pytest.param(lambda: resnet(200), 1957, 0.09, marks=pytest.mark.slow),
    pytest.param(lambda: resnet(1001), 4148, 0.22, marks=pytest.mark.slow),
    pytest.param(lambda: lstm(64), 518, 0.02, marks=pytest.mark.slow),
    pytest.param(lambda: lstm(128), 701, 0.05, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("build", "mebibytes", "flops"), AT_MXNETS)
def test_the_paper_networks_at_the_memory_of_mxnets_plan(build, mebibytes, flops):
    found = g.plan(build(), optimizer=g.optim.SGD(), feature_map_budget=mebibytes * MIB)
    assert found.feature_map_bytes <= mebibytes * MIB
    assert found.recomputation.extra_flops_fraction <= flops
