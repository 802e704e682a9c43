"""Gradients that autograd would copy behind the step are counted, and are those of eager."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers

from torch import nn  # noqa: E402
from torch_cases.checked import backward_of_sum, peak_of  # noqa: E402

import graphc  # noqa: E402

SIDE = 256


class Returned(torch.autograd.Function):
    """A product without a factor in its gradient: each of both is that of the other."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x * y).sum()

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return y, x


class Case(nn.Module):
    """A function of an input and two parameters."""

    def __init__(self, function, one=None):
        super().__init__()
        self.one = nn.Parameter(torch.randn(SIDE, SIDE) if one is None else one)
        self.two = nn.Parameter(torch.randn(SIDE, SIDE))
        self.function = function

    def forward(self, x):
        return self.function(x, self.one, self.two)


def product_sum(x, one, two):
    return (x * one).sum() + (x * two).sum()


CASES = {
    "one for two": lambda: Case(lambda x, a, b: ((x + a + b) * x).sum()),
    "expanded": lambda: Case(lambda x, a, b: (x * 1.0).sum() + a.sum() + b.sum()),
    "of other strides": lambda: Case(product_sum, torch.randn(SIDE, SIDE).t()),
    "of strides not dense": lambda: Case(
        lambda x, a, b: product_sum(x.t(), a, b), torch.randn(SIDE, 2 * SIDE)[:, :SIDE]
    ),
    "channels last": lambda: Case(
        lambda x, a, b: product_sum(x.view(16, 16, 16, 16), a, b.view(16, 16, 16, 16)),
        torch.randn(16, 16, 16, 16).to(memory_format=torch.channels_last),
    ),
    "given": lambda: Case(lambda x, a, b: x.sin() + a - b),
    "a parameter": lambda: Case(lambda x, a, b: Returned.apply(a, b) * x.mean()),
}


@pytest.fixture(autouse=True)
def reset():
    torch.compiler.reset()
    torch.manual_seed(0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # Dynamo of torch 2.13
@pytest.mark.parametrize("name", CASES)
def test_they_are_counted(name):
    module, x = CASES[name](), torch.randn(SIDE, SIDE)
    other = copy.deepcopy(module)
    step = graphc.torch.plan(module, (x,), max_extra_time=0.0)
    for call in (step, other):
        backward_of_sum(call(x))
    for found, expected in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
        assert found.grad.stride() == expected.grad.stride()
    module.zero_grad()
    assert peak_of(step, module, (x,)) == step.report.peak_bytes


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it
def test_what_is_passed_on_is_not_copied():
    """The gradient of a transposed input has its strides, and a leaf does not keep it so."""

    class Turned(nn.Linear):
        def forward(self, x):
            return super().forward(x.transpose(1, 2)).square().sum()

    def copies(x):
        step = graphc.torch.plan(Turned(SIDE, 8), (x,), max_extra_time=0.0)
        wanted = [x, *step.parameters()]
        measured = peak_of(
            step, step.module, (x,), backward=lambda loss: torch.autograd.grad(loss, wanted)
        )
        assert measured == step.report.peak_bytes
        graph = step.plans[-1].backward.graph
        return len(graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default))

    leaf = torch.randn(4, SIDE, SIDE, requires_grad=True)
    assert copies(leaf.sin()) + 1 == copies(leaf)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it
def test_what_is_passed_on_and_kept_is_copied():
    """One gradient, for a parameter and for an input that is a result."""
    module = Case(lambda x, a, b: (x + a + b.sum()).exp().sum())
    x = torch.randn(SIDE, SIDE, requires_grad=True).sin()
    step = graphc.torch.plan(module, (x,), max_extra_time=0.0)
    (output,) = step.plans[-1].backward.graph.find_nodes(op="output")
    assert len(set(output.args[0])) == len(output.args[0]) == 3


VIEWS = {
    "a slice": lambda h: (h, h[1]),
    "all": lambda h: (h, h.t()),
    "views of no output": lambda h: (h[:2000], h[2000:]),
    "what has none": lambda h: (h, h.detach()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_those_of_outputs_that_are_views_of_others_are_counted(name):
    """What the plan has too much is less than the sum of gradients, which it takes to stay."""

    class Viewed(nn.Linear):
        def forward(self, x):
            return VIEWS[name](super().forward(x).tanh())

    module, x = Viewed(32, 64), torch.randn(4000, 32)
    step = graphc.torch.plan(module, (x,), max_extra_time=0.0)
    backward_of_sum(step(x))
    module.zero_grad()
    measured, result_bytes = peak_of(step, module, (x,)), 4000 * 64 * 4
    assert measured <= step.report.peak_bytes < measured + result_bytes
    assert step.plans[-1].replay.peak.bytes == step.report.peak_bytes
