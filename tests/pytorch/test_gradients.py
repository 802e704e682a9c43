"""Gradients that autograd would copy behind the step are counted, and are those of eager."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import fx, nn  # noqa: E402
from torch._functorch._aot_autograd.descriptors import (  # noqa: E402
    GradAOTOutput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch_cases.steps import Run, backward_of_sum  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import TorchError  # noqa: E402
from graphc.torch.budget.check.returned import JOINS_IN_PLACE, Incoming, incoming  # noqa: E402
from graphc.torch.budget.trace import gradients, joint  # noqa: E402
from graphc.torch.versions import is_before  # noqa: E402

SIDE = 256
COPIED = gradients._copied


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
    assert Run(module, step, (x,)).peak() == step.report.peak_bytes
    assert step.plans[-1].replay.peak.bytes == step.report.peak_bytes


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it
def test_what_is_passed_on_is_not_copied():
    """The gradient of a transposed input has its strides, and a leaf does not keep it so."""

    class Turned(nn.Linear):
        def forward(self, x):
            return super().forward(x.transpose(1, 2)).square().sum()

    def copies(x):
        step = graphc.torch.plan(Turned(SIDE, 8), (x,), max_extra_time=0.0)
        wanted = [x, *step.parameters()]
        run = Run(step.module, step, (x,), backward=lambda loss: torch.autograd.grad(loss, wanted))
        assert run.peak() == step.report.peak_bytes
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


def no_copies(*_):
    """In the place of what copies gradients."""


def turned(*args):
    """A copy whose axes are in another order than those of what it copies."""
    graph, _, _, _, fake_mode = args
    made, permute = COPIED(*args), torch.ops.aten.permute.default
    with graph.inserting_after(made):
        node = graph.call_function(permute, (made, [1, 0]))
    with fake_mode:
        node.meta.update(made.meta, val=permute(made.meta["val"], [1, 0]))
    return node


FAULTS = {
    "none of one for two": ("one for two", joint, "copy_shared_gradients", no_copies),
    "none of what is given": ("given", joint, "copy_shared_gradients", no_copies),
    "none of a parameter": ("a parameter", joint, "copy_shared_gradients", no_copies),
    "none for strides": ("of other strides", gradients, "_obeys", lambda *_: True),
    "other strides": ("channels last", gradients, "_order", lambda x: list(range(x.dim()))),
    "other axes": ("given", gradients, "_copied", turned),
}
TOLD = {
    "none of one for two": "the gradient of primals_[12] is returned twice",
    "none of what is given": "an input of the graph is returned as the gradient of primals_",
    "none of a parameter": "an input of the graph is returned as the gradient of primals_",
    "none for strides": r"the gradient of primals_\d has the strides \(256, 1\)",
    "other strides": r"the gradient of primals_\d has the strides \(4096, 256, 16, 1\)",
    "other axes": r"output \d of .* differs from that of the module",
}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # Dynamo of torch 2.13
@pytest.mark.parametrize("name", FAULTS)
def test_the_checker_finds_copies_that_are_wrong(name, monkeypatch):
    case, place, function, fault = FAULTS[name]
    monkeypatch.setattr(place, function, fault)
    with pytest.raises(TorchError, match=f"bug in graphc: .*{TOLD[name]}"):
        graphc.torch.plan(CASES[case](), (torch.randn(SIDE, SIDE),), max_extra_time=0.0)


VIEWS = {
    "a slice": lambda h: (h, h[1]),
    "all": lambda h: (h, h.t()),
    "views of no output": lambda h: (h[:2000], h[2000:]),
    "what has none": lambda h: (h, h.detach()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_those_of_outputs_that_are_views_of_others_are_counted(name):
    class Viewed(nn.Linear):
        def forward(self, x):
            return VIEWS[name](super().forward(x).tanh())

    module, x = Viewed(32, 64), torch.randn(4000, 32)
    step = graphc.torch.plan(module, (x,), max_extra_time=0.0)
    backward_of_sum(step(x))
    spare = step.plans[-1].torch_steps.joint.incoming.spare
    most = step.report.peak_bytes
    assert most - spare <= Run(module, step, (x,)).peak() <= most
    assert (spare > 0) is (name != "what has none")
    assert step.plans[-1].replay.peak.bytes == most


def test_the_checker_counts_them_itself(monkeypatch):
    class Viewed(nn.Linear):
        def forward(self, x):
            y = super().forward(x).tanh()
            return y, y[1]

    monkeypatch.setattr(joint.Joint, "incoming", Incoming())
    with pytest.raises(TorchError, match="are live, but the plan claims"):
        graphc.torch.plan(Viewed(8, 64), (torch.randn(40, 8),), max_extra_time=0.0)


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="torch without CUDA has no views")
def test_those_of_views_on_a_gpu_take_whole_blocks():
    """Of 600 bytes, of the tanh and one row of it, which autograd pads."""
    graph = fx.Graph()
    with FakeTensorMode():
        x = torch.empty(3, 50, device="cuda")
        y = x.tanh()
        values = x, y, torch.empty_like(y), y[1], x * y
    plain = [PlainAOTOutput(place) for place in range(2)]
    given, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    made = graph.call_function(torch.ops.aten.tanh.default, (given,))
    row = graph.call_function(torch.ops.aten.select.int, (made, 0, 1))
    back = graph.call_function(torch.ops.aten.tanh_backward.default, (tangent, made))
    for node, value in zip((given, made, tangent, row, back), values, strict=True):
        node.meta["val"] = value
    given.meta["desc"] = PlainAOTInput(0)
    tangent.meta["desc"] = TangentAOTInput(plain[0])
    described = [*plain, GradAOTOutput(PlainAOTInput(0))]
    graph.output((made, row, back)).meta["desc"] = described
    found = incoming(graph, 2, (), None)
    copied = 1024 if is_before(torch.__version__, JOINS_IN_PLACE) else 0
    assert found.kept == 1024 + 512 + copied
    assert (found.workspace, found.made) == (2 * 1024, {tangent: 1024})
