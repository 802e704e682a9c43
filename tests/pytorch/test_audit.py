"""Audits of other partitioners, against measured steps and against eager torch."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch._functorch.partitioners import (  # noqa: E402
    default_partition,
    min_cut_rematerialization_partition,
)
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_cases.modules import MODULES  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import OptionError, TorchError  # noqa: E402

BUDGETS = (0.7, 0.0)
CLASSES = (
    "MLP", "ResNet-50", "preact-ResNet", "LSTM", "GPT", "TransformerEncoder", "ViT", "U-Net", "VAE",
    "mixture of experts", "ConvNeXt", "Llama", "MobileNet",
)  # fmt: skip
RANDOM = ("GPT", "TransformerEncoder", "VAE", "MobileNet")
"""Those that draw random numbers."""


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", CLASSES)
def test_min_cut_at_two_budgets(name, budget):
    """Values are wrong where measured bits differ, which takes random numbers."""
    module, args = MODULES[name]("small")
    found = graphc.torch.audit(module, args, activation_memory_budget=budget)
    told = found.verify()
    assert told.ratio == pytest.approx(1, abs=0.01)
    assert found.is_correct == told.same_bits
    assert found.is_correct or (name in RANDOM and budget < 1)
    assert found.bound_bytes <= found.peak_bytes
    assert found.bound_time <= found.extra_time + 1e-9
    wrong = {each.problem for each in found.faults}
    for name_of in told.different["gradients"]:
        assert any(f"the gradient of {name_of} is" in problem for problem in wrong)


class Blocks(nn.Module):
    """Three blocks, with dropout if asked."""

    def __init__(self, p=0.0, around=None):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Dropout(p)) for _ in range(3)
        )
        self.around = around or (lambda block, x: block(x))

    def forward(self, x):
        for block in self.blocks:
            x = self.around(block, x)
        return x.square().sum()


def checkpointed(block, x):
    return checkpoint(block, x, use_reentrant=False)


def gradients(call, module, x):
    """The gradients of one step from a fixed seed and the first contents of buffers."""
    module.zero_grad()
    for buffer in module.buffers():
        buffer.fill_(2.0)
    torch.manual_seed(0)
    call(x).backward()
    return [each.grad.clone() for each in module.parameters()]


def under(partition):
    """A backend of torch alone, as its ``aot_eager``."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import boxed_nop_preserve_node_meta

    return aot_autograd(
        fw_compiler=boxed_nop_preserve_node_meta,
        bw_compiler=boxed_nop_preserve_node_meta,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )


def differs(module, x, backend):
    """Return True if torch's own step has other gradients than eager torch."""
    compiled = torch.compile(module, backend=backend)
    pairs = zip(gradients(module, module, x), gradients(compiled, module, x), strict=True)
    return not all(torch.allclose(one, other, rtol=1e-4) for one, other in pairs)


def test_random_numbers_that_are_drawn_again():
    """pytorch/pytorch issue 190758."""
    module, x = Blocks(p=0.3), torch.randn(256, 64)
    with torch._functorch.config.patch(activation_memory_budget=0.0):
        assert differs(module, x, under(min_cut_rematerialization_partition))
        found = graphc.torch.audit(module, (x,))
    first, *others = found.faults
    assert first.node.startswith("native_dropout")
    assert "random numbers differ" in first.problem
    assert any("the gradient of blocks.0.0.weight is wrong" in e.problem for e in others)
    assert not found.is_correct
    assert "wrong: " in str(found)
    assert graphc.torch.audit(module, (x,), activation_memory_budget=1).is_correct


class Scaled(nn.Module):
    """A copy of a buffer is read, then the buffer is written."""

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x):
        y = torch.sin(self.part(x) * self.scale.clone())
        with torch.no_grad():
            self.scale.mul_(-1.0)
        return y.sum()


def test_a_buffer_that_is_read_again_after_a_write():
    """pytorch/pytorch pull request 197039."""
    module, x = Scaled(), torch.randn(4, 8)
    assert differs(Scaled(), x, "aot_eager")
    found = graphc.torch.audit(module, (x,))
    assert "is read after copy_ has overwritten it" in found.faults[0].problem
    assert any("the gradient of part.weight is wrong" in each.problem for each in found.faults)
    assert graphc.torch.audit(module, (x,), "default").is_correct


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_an_input_that_torch_overwrites_after_the_graph():
    """Its copy is made again, from the new contents."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(8, 8)

        def forward(self, x):
            y = torch.sin(self.part(x.clone()))
            x.mul_(2.0)
            return y.sum()

    x = torch.randn(4, 8, requires_grad=True) * 1.0
    found = graphc.torch.audit(Module(), (x,), activation_memory_budget=0.0)
    assert "the end of the forward pass has overwritten it" in found.faults[0].problem
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.verify(x)


def test_checkpoint_recomputes_what_the_module_marks():
    x = torch.randn(256, 64)
    found = graphc.torch.audit(Blocks(0.3, checkpointed), (x,), "checkpoint")
    told = found.verify()
    assert (told.ratio, told.same_bits) == (pytest.approx(1, abs=0.01), True)
    assert found.is_correct
    assert found.extra_time > 0
    assert {each.module for each in found.repeated} >= {"blocks.0.0", "blocks.2.1"}
    with pytest.raises(TorchError, match=r"does not call torch\.utils\.checkpoint"):
        graphc.torch.audit(Blocks(), (x,), "checkpoint")


def test_it_counts_what_a_plan_counts():
    """The graphs of graphc's own partition function, which recomputes."""
    x = torch.randn(256, 64)
    plan = graphc.torch.plan(Blocks(), (x,), max_extra_time=10.0).report
    budget = (plan.peak_bytes + plan.plain_bytes) // 2
    found = graphc.torch.audit(Blocks(), (x,), graphc.torch.partition_fn(budget))
    assert found.is_correct
    assert found.bound_bytes == plan.bound_bytes
    assert found.peak_bytes <= budget
    assert sum(each.times for each in found.repeated) > 0
    assert found.verify().ratio == pytest.approx(1, abs=0.01)


def test_what_the_module_computes_twice_is_not_recomputed():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(8, 8)

        def forward(self, x):
            y = self.part(x)
            return torch.tanh(y).sum() + torch.tanh(y).square().sum()

    found = graphc.torch.audit(Twice(), (torch.randn(4, 8),), "default")
    assert found.repeated == ()
    assert found.json["extra_time_fraction"] == 0


def shifted(joint, given, **more):
    """Replaces an operation of the backward graph by another."""
    forward, backward = default_partition(joint, given, **more)
    node = next(n for n in backward.graph.nodes if n.target is torch.ops.aten.tanh_backward.default)
    node.target = torch.ops.aten.mul.Tensor
    return forward, backward


def test_a_function_of_the_user():
    x = torch.randn(256, 64)
    found = graphc.torch.audit(Blocks(), (x,), shifted)
    assert "not a value of the module" in found.faults[0].problem
    assert not found.verify().same_bits
    assert found.json["faults"][0]["node"] == found.faults[0].node
    assert found.json["correct"] is False


def crossed(joint, given, **more):
    forward, _ = default_partition(joint, given, **more)
    return forward, forward


def broken(*_, **__):
    raise ValueError("no graph today")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (crossed, "the graphs of the partitioner cannot run"),
        (broken, "partition_fn failed: ValueError: no graph today"),
        (lambda *_, **__: None, "must return two torch.fx.GraphModule"),
    ],
)
def test_functions_that_return_no_step(given, match):
    with pytest.raises(TorchError, match=match):
        graphc.torch.audit(Blocks(), (torch.randn(4, 64),), given)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"partition_fn": "mincut"}, "unknown partition 'mincut'.*min-cut"),
        ({"partition_fn": 3}, "must be a function or one of"),
        ({"activation_memory_budget": 2}, "from 0 to 1, got 2"),
        ({"loss_fn": 3}, "loss_fn must be a function"),
    ],
)
def test_mistakes(given, match):
    with pytest.raises(OptionError, match=match):
        graphc.torch.audit(Blocks(), (torch.randn(4, 64),), **given)
