"""Modules that change their gradients: an import has torch's gradients, or is refused."""

import contextlib

import numpy as np
import pytest

import graphc as g
from graphc.errors import TorchError
from graphc.ir.builder import trace

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn
X = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)


class Weighted(nn.Module):
    """A function of a weight and x."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
        self.register_buffer("average", torch.ones(3, dtype=torch.float64))
        self.function = function

    def forward(self, x):
        return self.function(self, x).sum()


def target_network(m, x):
    with torch.no_grad():
        y = m.weight * 2
    return m.weight * y * x


def several_results(m, x):
    with torch.no_grad():
        y = m.weight * 2
        size = (y.abs() > 3).sum()
    return m.weight * y * x * size


def with_gradients_inside(m, x):
    with torch.no_grad():
        y = m.weight * 2
        with torch.enable_grad():
            z = m.weight * 3
    return m.weight * y * z * x


def moving_average(m, x):
    with torch.no_grad():
        m.average.mul_(0.9).add_(m.weight, alpha=0.1)
    return m.weight * m.average * x


def view(m, x):
    h = m.weight * x
    with torch.no_grad():
        v = h.view(3, 1)
    return v.sum() + h * h


def straight_through(m, x):
    rounded = torch.round(m.weight * x)
    return (m.weight * x + (rounded - m.weight * x).detach()) * x


def detached_again(m, x):
    return (m.weight * 2).detach().requires_grad_() * m.weight * x


def pseudo_labels(m, x):
    with torch.set_grad_enabled(False):
        label = torch.softmax(m.weight * x * 2, 0)
    return -(label * torch.log_softmax(m.weight * x, 0))


def loaded_gradient(module):
    network = g.torch.load(module, (X,))
    (loss,) = network.outputs.values()
    (weight,) = (state for state in trace({"loss": loss}).states if state.name == "weight")
    (gradient,) = g.gradient(loss, [weight])
    program = g.compile(outputs={"gradient": gradient, "loss": loss})
    network.initialize(program)
    return program.step(x=X.numpy())


@pytest.mark.parametrize(
    "function",
    [
        target_network, several_results, with_gradients_inside, moving_average, view,
        straight_through, detached_again, pseudo_labels,
    ],
)  # fmt: skip
def test_values_without_a_gradient_have_none(function):
    module = Weighted(function)
    loss = module(X)
    loss.backward()
    found = loaded_gradient(Weighted(function))
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-12)
    np.testing.assert_allclose(found["gradient"], module.weight.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_have_the_gradient_of_their_forward_pass(reentrant):
    def function(m, x):
        return torch.utils.checkpoint.checkpoint(torch.sin, m.weight * x, use_reentrant=reentrant)

    expected = np.cos(np.array([1.0, 2, 3]) * X.numpy()) * X.numpy()
    found = loaded_gradient(Weighted(function))["gradient"]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Reversal(nn.Module):
    def forward(self, x):
        return Reversed.apply(x)


class Hooked(nn.Module):
    def forward(self, x):
        h = x * 2
        if h.requires_grad:
            h.register_hook(lambda gradient: -gradient)
        return h


def adversarial(inner):
    module = Weighted(lambda m, x: m.head(m.weight * x))
    module.head = inner
    return module


def with_backward_hook():
    module = adversarial(nn.Tanh())
    module.head.register_full_backward_hook(lambda module, before, after: None)
    return module


def with_parameter_hook():
    module = adversarial(nn.Tanh())
    module.weight.register_hook(lambda gradient: gradient / 2)
    return module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: adversarial(Reversal()), "applies Reversed, a torch.autograd.Function, in module"),
        (lambda: adversarial(Hooked()), "registers a hook of a gradient in module 'head'"),
        (with_backward_hook, "module 'head' has a backward hook"),
        (with_parameter_hook, "parameter 'weight' has a hook on its gradient"),
    ],
)
def test_gradients_that_no_graph_has_are_refused(make, message):
    with pytest.raises(TorchError, match=message):
        g.torch.load(make(), (X,))
    assert g.torch.load(make(), (X,), trainable=False).outputs


def test_what_an_import_watches_is_as_before():
    before = torch.autograd.Function.__dict__["apply"], torch.Tensor.__dict__["register_hook"]
    for module in (adversarial(Reversal()), adversarial(nn.Tanh())):
        with contextlib.suppress(TorchError):
            g.torch.load(module, (X,))
    after = torch.autograd.Function.__dict__["apply"], torch.Tensor.__dict__["register_hook"]
    assert after == before


def test_a_region_that_writes_into_a_value_with_a_gradient_is_refused():
    def function(m, x):
        h = m.weight * x
        with torch.no_grad():
            h.mul_(2)
        return h * h

    with pytest.raises(TorchError, match=r"writes under torch.no_grad into mul"):
        g.torch.load(Weighted(function), (X,))


def test_an_exported_program_is_unchanged():
    program = torch.export.export(Weighted(target_network), (X,))
    before = str(program.graph)
    for _ in range(2):
        g.torch.load(program)
    assert str(program.graph) == before
