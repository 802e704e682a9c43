"""What is there before a step counts once: the loss's, plain attributes, arrays, old gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from view.reading import content  # noqa: E402

import graphc  # noqa: E402
from graphc.torch.budget.trace.held import held_by, reserve_bytes  # noqa: E402
from graphc.torch.budget.trace.measure import measured_peak  # noqa: E402

TABLE = torch.randn(16)


class Rotary(nn.Module):
    """Tables that are attributes, no buffers: one is read by rows, one lies in a parameter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16, bias=False)
        self.cos, self.tables = torch.randn(4096, 16), {"sin": [torch.randn(32, 16)]}
        self.row = self.linear.weight.detach()[0]
        self.unread = torch.randn(99)

    def forward(self, x):
        count = x.shape[0]
        turned = self.linear(x) * self.cos[:count] + self.tables["sin"][0][:count]
        return (turned * TABLE * self.row).sum()


def test_tensors_that_are_plain_attributes_count_by_name(tmp_path):
    module, x = Rotary(), torch.randn(8, 16)
    step = graphc.torch.plan(module, (x,), "knee")
    found = step.report
    sizes = {
        "cos": 4096 * 16 * 4,
        "tables['sin'][0]": 32 * 16 * 4,
        f"{__name__}.TABLE": 16 * 4,
    }
    assert {each.name: each.bytes for each in found.constants} == sizes
    assert found.json["constants"][0] == {"name": "cos", "bytes": 4096 * 16 * 4}
    assert found.json["held_bytes"]["constants"] == sum(sizes.values())
    assert "constants\n  cos: 256.00 KiB" in str(found)
    held = [module.linear.weight, x, module.cos, module.tables["sin"][0], TABLE]
    step(x).backward()

    def run():
        module.zero_grad()
        step(x).backward()

    module.zero_grad()
    assert measured_peak(run, held) == found.peak_bytes == step.verify().measured_peak_bytes
    found.view(tmp_path / "plan.html")
    (page,) = content((tmp_path / "plan.html").read_text())["plans"]
    assert "@cos" in page["values"]["name"]
    assert max(page["live"]) == found.peak_bytes


class Weighted(nn.Module):
    """A loss with a parameter and a buffer that it changes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, output, target):
        self.calls.add_(1)
        return ((output - target) * self.weight).square().mean()


def test_a_loss_that_is_a_module_counts_and_is_left_as_it_was():
    module, loss_fn, x = nn.Linear(16, 16), Weighted(), torch.randn(4, 16)
    args = x, x + 1
    step = graphc.torch.plan(module, args, "knee", loss_fn=loss_fn, accumulate=True)
    learned = [*module.parameters(), loss_fn.weight]
    held = step.report.held
    assert held.parameters == held.gradients == sum(each.nbytes for each in learned)
    assert held.buffers == loss_fn.calls.nbytes
    names = {source.name for source in step.report.shown.sources.values()}
    assert {"weight", "loss_fn.weight", "loss_fn.calls"} <= names
    found = step.verify()
    assert found.same_bits
    assert found.held
    assert loss_fn.weight.grad is None
    assert loss_fn.calls == 0


def test_a_loss_s_gradient_is_compared(monkeypatch):
    """The bits of a step are taken again from a loss whose gradient is another."""
    from graphc.torch.budget.report import verify

    loss_fn, x, run = Weighted(), torch.randn(4, 16), verify._run
    args = x, x + 1
    step = graphc.torch.plan(nn.Linear(16, 16), args, "knee", loss_fn=loss_fn)

    def changed(call, given):
        outputs = run(call, given)
        if call is step:
            loss_fn.weight.grad.mul_(2)
        return outputs

    monkeypatch.setattr(verify, "_run", changed)
    assert step.verify().different["gradients"] == ("loss_fn.weight",)


class Box:
    """What no tree of arguments is seen through."""

    def __init__(self, inside, array):
        self.inside, self.array = inside, array


class Named(dict):
    """No tree of arguments, either."""


class Sums(nn.Linear):
    def forward(self, x, array, box, named):
        given = torch.as_tensor(array) + box.inside + named["more"] + torch.as_tensor(box.array)
        return (super().forward(x) * given).sum()


def test_arrays_and_tensors_inside_of_arguments_count():
    x, array = torch.randn(8, 16), np.ones((100, 16), np.float32)
    rows, more = torch.randn(50, 16), torch.randn(16)
    boxed = np.ones((8, 16), np.float32)
    args = x, array[:8], Box(rows[0], boxed), Named(more=more)
    step = graphc.torch.plan(Sums(16, 16), args, "knee")
    held = step.report.held
    assert held.inputs == x.nbytes + array.nbytes + rows.nbytes + more.nbytes + boxed.nbytes
    assert held.constants == 0
    assert step.verify().measured_peak_bytes == step.report.peak_bytes
    names = {each.name for each in step.report.shown.sources.values()}
    assert {"args[0]", "args[1]", "args[2].inside", "args[2].array"} <= names


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_old_gradients_are_those_of_leaves_that_require_grad():
    module = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16).requires_grad_(False))
    leaf = torch.randn(8, 16, requires_grad=True)
    wanted = sum(each.nbytes for each in module[0].parameters())
    for x, more in (leaf, leaf.nbytes), (leaf * 2, 0), (leaf.detach(), 0):
        step = graphc.torch.plan(module, (x,), "knee", accumulate=True)
        assert step.report.held.gradients == wanted + more
    step = graphc.torch.plan(module, (leaf,), "knee", accumulate=True)
    assert step.verify().held


def test_old_gradients_on_a_gpu_take_whole_blocks():
    with FakeTensorMode():
        sizes = (50, 3), (50,)
        module = nn.ParameterList(torch.empty(size, device="cuda") for size in sizes)
        held = held_by(module, (), (), 0, accumulate=True)
    assert held.parameters == held.gradients == 1024 + 512  # of 600 and of 200 bytes
    assert held_by(nn.Linear(3, 50), (), (), 0, accumulate=True).gradients == 600 + 200


def test_no_optimizer_keeps_anything_for_frozen_parameters():
    module = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16).requires_grad_(False))
    optimizer = torch.optim.Adam(module.parameters())
    reserved = reserve_bytes(optimizer)
    module(torch.randn(2, 16)).sum().backward()
    optimizer.step()
    kept = [each for state in optimizer.state.values() for each in state.values()]
    assert reserved == sum(each.nbytes for each in kept)
