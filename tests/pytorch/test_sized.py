"""New sizes are planned from one symbolic trace, as if they had been traced with fixed sizes."""

import warnings

import pytest

import graphc
from graphc.errors import BudgetError

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from graphc.torch.budget.trace import sized  # noqa: E402


class Attention(nn.Module):
    """A layer with attention, dropout, slices, sizes as numbers, and a mutated buffer."""

    def __init__(self, width=16):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        length = x.shape[1]
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.drop(self.out(y.transpose(1, 2).flatten(2)))
        self.seen.add_(length)
        y = (x + y)[:, slice(0, length)]
        y = self.norm(y.flatten(0, 1)).unflatten(0, y.shape[:2])
        return y[:, 1:].sigmoid(), y.mean() + torch.arange(length).sum()


def ones(length, batch=3):
    return torch.randn(batch, length, 16, requires_grad=True)


def test_the_first_other_size_is_told_once():
    step = graphc.torch.plan(nn.Linear(4, 4), (torch.randn(8, 4),), "knee")
    step(torch.randn(8, 4))
    with pytest.warns(UserWarning, match=r"every new size .* took \d+\.\d s.* sizes= or dynamic="):
        step(torch.randn(6, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (5, 8, 6):
            step(torch.randn(rows, 4))


def traces():
    """The number of graphs that torch.compile has traced."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def described(graph):
    """The ops of a graph with their operands, sizes and strides; views that copy nothing apart."""
    kept = [n for n in graph.nodes if n.target is not torch.ops.aten.alias.default]
    number = {node: place for place, node in enumerate(kept)}

    def plain(node):
        return node if node in number else plain(node.args[0])

    def of(node):
        values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
        tensors = [(t.shape, t.stride(), t.dtype) for t in values if hasattr(t, "stride")]
        args = torch.fx.map_arg(node.args, lambda each: f"%{number[plain(each)]}")
        return str(node.target) if node.op == "call_function" else node.op, str(args), tensors

    return [of(node) for node in kept if node.op != "output"]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, "60KiB"])
def test_new_sizes_have_the_bits_of_a_module_without_a_plan(budget):
    step = graphc.torch.plan(Attention(), (ones(8),), budget)
    step(ones(12))
    before = traces()
    for length, batch in ((16, 3), (10, 3), (21, 3)):
        found = step.verify(ones(length, batch))
        assert found.same_bits, found
        assert step.report.peak_bytes == found.planned_peak_bytes
        assert budget is None or found.measured_peak_bytes <= 60 * 1024
    # `verify` traces aot_eager, and that once more with symbols; the step is not traced.
    assert traces() - before <= 6
    assert len({plan.report.plain_bytes for plan in step.plans}) >= 4


@pytest.mark.slow
def test_the_graph_is_that_of_a_trace_with_fixed_sizes():
    module = Attention()
    step = graphc.torch.plan(module, (ones(8),), "knee")
    for length in (12, 16):
        step.plan((ones(length),), {})
    torch.compiler.reset()
    fixed = graphc.torch.plan(module, (ones(16),), "knee")
    found, wanted = (each.plans[-1].torch_steps.joint.traced for each in (step, fixed))
    sizes = [n for n in found.nodes if isinstance(n.meta.get("val"), int)]
    assert all(n.op == "placeholder" and not n.users for n in sizes)
    for node in sizes:
        found.erase_node(node)
    assert described(found) == described(wanted)


def test_no_trace_for_a_third_size_and_no_plan_for_a_known_one():
    step = graphc.torch.plan(Attention(), (ones(8),), "knee")
    step(ones(12))[1].backward()
    before, plans = traces(), len(step.plans)
    for length in (16, 20, 16, 12, 20):
        step(ones(length))[1].backward()
    assert traces() == before
    assert len(step.plans) == plans + 2


def test_a_size_that_is_read_as_a_number_is_traced_for_itself():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            return self.layer(x).mean() * (2 if x.shape[1] == 16 else 3)

    step = graphc.torch.plan(Reads(), (ones(8),), "knee")
    for length in (12, 16, 20):
        x = ones(length)
        assert torch.equal(step(x), step.module(x))


def test_a_returned_size_is_traced_with_fixed_sizes():
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            return self.layer(x).mean(), x.shape[1]

    step = graphc.torch.plan(Returns(), (ones(8),), "knee")
    for length in (12, 16, 12):
        x = ones(length)
        loss, size = step(x)
        assert torch.equal(loss, step.module(x)[0])
        assert size == length
        loss.backward()


@pytest.mark.slow
def test_a_fault_in_a_symbolic_trace_is_no_error(monkeypatch):
    step = graphc.torch.plan(Attention(), (ones(8),), "knee")

    def fails(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(sized, "with_sizes", fails)
    for length in (12, 16):
        step(ones(length))[1].backward()
    assert step.verify(ones(16)).same_bits


def test_a_budget_that_a_new_size_exceeds_is_refused_and_others_still_run():
    step = graphc.torch.plan(Attention(), (ones(8),), "60KiB")
    step(ones(12))
    with pytest.raises(BudgetError, match="no plan within"):
        step(ones(400))
    step(ones(10))[1].backward()


@pytest.mark.slow
def test_a_dimension_marked_as_dynamic_is_planned():
    x = ones(8)
    torch._dynamo.mark_dynamic(x, 1)
    step = graphc.torch.plan(Attention(), (x,), "knee")
    assert step.verify(ones(11)).same_bits
