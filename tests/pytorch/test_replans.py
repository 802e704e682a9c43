"""The warning about a second plan for the same shapes: the guard, its value, and when it comes."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import TorchError  # noqa: E402
from graphc.torch.versions import is_before  # noqa: E402

X = torch.randn(4, 8)


class Config:
    def __init__(self):
        self.cache, self.kind, self.scale = True, None, 1.5


class Reads(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
        self.config, self.activation = Config(), torch.relu

    def forward(self, x):
        found = self.activation(super().forward(x)) * self.config.scale
        if self.config.kind is None:
            found = found + 1
        return found * 2 if self.config.cache else found


def replanned(change, shapes=(4,)):
    """The warning of a call after a change; the rows in `shapes` were planned before it."""
    module = Reads()
    step = graphc.torch.plan(module, (X,), "knee")
    for rows in shapes:
        step(torch.randn(rows, 8))
    change(module)
    with pytest.warns(UserWarning, match="planned again for the same shapes") as told:
        step(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(X)
    (only,) = told
    assert only.filename == __file__
    return str(only.message)


def set_to(name, value):
    return lambda module: setattr(module.config, name, value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (set_to("cache", False), "config.cache was True and is False"),
        (set_to("kind", "regression"), "config.kind was None and is 'regression'"),
        (set_to("scale", 2.5), "config.scale was 1.5 and is 2.5"),
        (
            lambda module: module.weight.requires_grad_(False),
            "tensor 'weight' requires_grad mismatch. expected requires_grad=1",
        ),
    ],
)
def test_the_guard_and_its_values(change, told):
    assert f"because {told}" in replanned(change).replace("a guard failed: ", "")


@pytest.mark.filterwarnings("ignore:this step has been planned again")
def test_a_parameter_that_requires_a_gradient_again_gets_one_or_is_refused():
    module = Reads()
    module.weight.requires_grad_(False)
    step = graphc.torch.plan(module, (X,), "knee")
    step(X).sum().backward()
    module.weight.requires_grad_(True)
    if is_before(torch.__version__, (2, 13)):
        with torch.no_grad():
            step(X)
        with pytest.raises(TorchError, match=r"'weight' requires a gradient, .*torch\.plan again"):
            step(X)
    else:
        step(X).sum().backward()
        assert module.weight.grad is not None


def test_the_guard_is_not_the_shape_of_another_plan():
    told = replanned(set_to("cache", False), shapes=(4, 5, 6))
    assert "config.cache was True and is False" in told


def test_the_autocast_around_a_call_is_named():
    step = graphc.torch.plan(Reads(), (X,), "knee")
    with torch.autocast("cpu", torch.bfloat16), pytest.warns(UserWarning, match=r"autocast\(cpu\)"):
        step(X)


def test_new_shapes_and_evaluation_warn_of_no_second_plan():
    module = Reads()
    step = graphc.torch.plan(module, (X,), "knee")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "this step has been planned again")
        step(X)
        with torch.no_grad():
            step(X)
        step(torch.randn(5, 8))
        step(torch.randn(4, 8, requires_grad=True))
        module.config.cache = False
        step(torch.randn(6, 8))
