"""Plans under autocast: the option of the plan applies to every call."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import OptionError  # noqa: E402

X = torch.randn(64, 64)


def module():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


@pytest.mark.parametrize("option", [torch.bfloat16, torch.autocast("cpu", torch.bfloat16)])
def test_the_plan_and_each_call_are_under_autocast(option):
    plain = module()
    step = graphc.torch.plan(plain, (X,), "knee", autocast=option)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = plain(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a second plan
        found = step(X)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(step(X), wanted)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted)
    assert not torch.is_autocast_enabled("cpu")
    assert len(step.plans) == 1
    assert step.verify().same_bits


def test_the_frontier_is_under_autocast():
    points = graphc.torch.frontier(module(), (X,), autocast=torch.bfloat16)
    step = graphc.torch.plan(module(), (X,), "knee", autocast=torch.bfloat16)
    assert list(points) == list(step.report.frontier)


def test_a_disabled_autocast_disables_that_around_the_call():
    off = torch.autocast("cpu", torch.bfloat16, enabled=False)
    step = graphc.torch.plan(module(), (X,), "knee", autocast=off)
    with torch.autocast("cpu", torch.bfloat16):
        assert step(X).dtype == torch.float32
    assert len(step.plans) == 1


def test_another_option_is_refused():
    with pytest.raises(OptionError, match=r"autocast must be a dtype.* got 'bf16'"):
        graphc.torch.plan(module(), (X,), autocast="bf16")
