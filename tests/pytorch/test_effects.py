"""Ops that do more than give results run once, in their place, in plans that repeat much."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op  # noqa: E402

import graphc  # noqa: E402
from graphc.torch.private import effect_of  # noqa: E402

library = torch.library.Library("graphc_once", "DEF")
library.define("noise_(Tensor(a!) x) -> ()", tags=(torch.Tag.nondeterministic_seeded,))
library.define("count_(Tensor(a!) x) -> ()")
library.impl("noise_", lambda x: (x.uniform_(), None)[1], "CPU")
library.impl("count_", lambda x: (counted.append(1), x.mul_(2), None)[2], "CPU")
library.impl("noise_", lambda x: None, "Meta")
library.impl("count_", lambda x: None, "Meta")
REGISTERS_WRITES = torch.__version__ >= (2, 10)
if REGISTERS_WRITES:
    _register_effectful_op(torch.ops.graphc_once.count_.default, _EffectType.ORDERED)
counted = []
X = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))


def noise(x):
    made = torch.empty_like(x)
    torch.ops.graphc_once.noise_(made)
    return x * made


def count(x):
    made = x.detach().clone()
    torch.ops.graphc_once.count_(made)
    return x * made


class Chain(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.function = function

    def forward(self, x):
        for part in self.parts:
            x = torch.tanh(self.function(torch.tanh(part(x))))
        return x.sum()


def planned(function):
    torch.manual_seed(0)  # some draws end at a matrix that has no inverse
    step = graphc.torch.plan(Chain(function), (X,), max_extra_time=1000.0)
    assert step.report.repeated
    return step


@pytest.mark.parametrize("function", [noise, torch.linalg.inv])
def test_bits_are_those_of_aot_eager(function):
    found = planned(function).verify()
    assert found.same_bits
    assert found.held


@pytest.mark.skipif(not REGISTERS_WRITES, reason="torch 2.9 has no effects of ops that write")
def test_an_effect_happens_once_a_step_and_not_before():
    """So it is not measured, which the report tells; a check is known to take nothing."""
    counted.clear()
    step = planned(count)
    assert not counted
    assert len(step.report.estimated) == 4
    assert all("auto_functionalized" in name for name in step.report.estimated)
    assert planned(torch.linalg.inv).report.estimated == ()
    for number in (1, 2):
        step(X).backward()
        assert len(counted) == 4 * number


@pytest.mark.skipif(
    not effect_of(torch.ops.aten._linalg_check_errors.default),
    reason="torch below 2.13 has no effect of this check: its aot_eager drops it, and so do plans",
)
def test_a_check_of_linear_algebra_is_there_once_and_fails_as_ever():
    """Each behind what it checks, though the plan may repeat that."""
    step = planned(torch.linalg.inv)
    checks = [
        node
        for graph in (step.plans[0].forward.graph, step.plans[0].backward.graph)
        for node in graph.nodes
        if "with_effects" in str(node.target)
    ]
    assert len(checks) == 4
    for parameter in step.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(torch.linalg.LinAlgError, match=r"linalg.inv: .* singular"):
        step(X)


def test_the_checker_finds_a_hidden_draw_that_is_repeated():
    from graphc.errors import TorchError
    from graphc.torch.budget.check.replay import replay
    from graphc.torch.budget.goal import to_replay

    found = planned(noise).plans[0]
    graph = found.forward.graph
    node = next(each for each in graph.nodes if "auto_functionalized" in str(each.target))
    with graph.inserting_after(node):
        graph.node_copy(node)
    with pytest.raises(TorchError, match="the random numbers differ"):
        replay(to_replay(found.torch_steps, graph, found.backward.graph))


PARTS = {
    "rows": lambda queue, rows: queue[:4].copy_(rows),
    "a row": lambda queue, rows: queue[3].copy_(rows[0]),
    "rows of columns": lambda queue, rows: queue[:, :8][:4].copy_(rows[:, :8]),
    "a diagonal": lambda queue, rows: queue[:8, :8].diagonal().copy_(rows[0, :8]),
    "a row of rows": lambda queue, rows: queue[:8][1].copy_(rows[0]),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_write_into_a_part_of_a_buffer_copies_that_part_only(name):
    """Such as new keys in a queue; torch's own ops copy the whole buffer another time."""

    class Queue(torch.nn.Linear):
        def __init__(self):
            super().__init__(64, 64)
            self.register_buffer("queue", torch.zeros(50_000, 64))

        def forward(self, x):
            keys = super().forward(x)
            PARTS[name](self.queue, keys.detach())
            return keys.sin().sum()

    x = torch.randn(4, 64)
    found = graphc.torch.plan(Queue(), (x,), "knee").verify()
    assert found.same_bits, found
    assert found.ratio <= 1.001, found
