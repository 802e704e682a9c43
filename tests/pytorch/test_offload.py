"""Steps that copy saved tensors to host memory: their bits, bytes and host memory, on a CPU."""

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch_cases import steps  # noqa: E402
from view.reading import content  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import BudgetError, OptionError, TorchError  # noqa: E402
from graphc.planner.host_link import HostLink  # noqa: E402
from graphc.torch.budget import goal as planning  # noqa: E402
from graphc.torch.budget.host import host_memory  # noqa: E402
from graphc.torch.budget.host.lanes import PlainCopies  # noqa: E402

HOST = "1GiB"


@pytest.fixture(autouse=True)
def fast_link(monkeypatch):
    """A link that is faster than recomputation, on which plans do not depend on measured times."""
    monkeypatch.setattr(planning, "host_link", lambda _: HostLink(1e13, 1e13))


def mlp():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2)) for _ in range(5)]
    return nn.Sequential(*layers, nn.Linear(64, 8)), (torch.randn(256, 64),), {}


def gpt2():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config).train()
    model.loss_type = "ForCausalLM"  # otherwise it logs, which torch.compile does not trace
    ids = torch.randint(0, 128, (4, 32))
    return model, (), {"input_ids": ids, "labels": ids}


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.two = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x):
        found = torch.relu(self.norm_one(self.one(x)))
        return torch.relu(self.norm_two(self.two(found)) + x)


def resnet():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), *(Block(16) for _ in range(3))]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 10)]
    return nn.Sequential(*layers, *head), (torch.randn(8, 3, 16, 16),), {}


def budget_of(module, args, kwargs, part):
    """A budget between the least and the plain peak."""
    report = graphc.torch.plan(module, args, max_extra_time=0.0, kwargs=kwargs).report
    return int(report.least_bytes + part * (report.plain_bytes - report.least_bytes))


def planned(make, part, **options):
    module, args, kwargs = make()
    budget = budget_of(module, args, kwargs, part)
    options = {"host_budget": HOST} | options
    return graphc.torch.plan(module, args, budget, kwargs=kwargs, **options), args, kwargs


@pytest.fixture(scope="module")
def step_of():
    """Steps of the MLP by budget, planned once."""
    known = {}

    def step(part=0.3):
        if part not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(planning, "host_link", lambda _: HostLink(1e13, 1e13))
                known[part] = planned(mlp, part)[:2]
        return known[part]

    return step


def loss_of(found):
    return found.loss if hasattr(found, "loss") else found.square().sum()


def trained(module, call, args, kwargs, count=3):
    """Gradients of the first step, and parameters and buffers after all."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(1)
    found = {}
    for number in range(count):
        optimizer.zero_grad()
        loss_of(call(*args, **kwargs)).backward()
        if not number:
            found |= {f"gradient {n}": p.grad.clone() for n, p in module.named_parameters()}
        optimizer.step()
    return found | {name: each.clone() for name, each in module.state_dict().items()}


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (mlp, 0.0),
        (gpt2, 0.5),
        *[
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((mlp, 0.5), (gpt2, 0.0), (resnet, 0.0), (resnet, 0.5))
        ],
    ],
)
def test_bits_bytes_and_host_memory(make, part):
    """Three steps have the bits of `aot_eager`; one has the bytes of the plan."""
    step, args, kwargs = planned(make, part)
    copies = step.report.copies
    assert copies.bytes_to_host == copies.bytes_to_device <= copies.host_bytes <= 2**30
    verified = step.verify()
    assert verified.same_bits
    assert verified.measured_peak_bytes == pytest.approx(step.report.peak_bytes, abs=2**13)
    other, *_ = make()
    found = trained(step.module, step, args, kwargs)
    wanted = trained(other, steps.compiled(other), args, kwargs)
    assert found.keys() == wanted.keys()
    assert [name for name in found if not torch.equal(found[name], wanted[name])] == []
    assert step._state.host.allocations == 1


def test_it_is_never_slower_by_the_model():
    """On profiles of devices with their own links, so costs are estimates."""
    with torch.device("meta"):
        module, args, _ = mlp()
    budget = budget_of(module, args, {}, 0.3)
    alone = graphc.torch.plan(module, args, budget).report
    found = graphc.torch.plan(module, args, budget, host_budget=HOST).report
    assert found.peak_bytes <= budget
    assert found.bound_time <= found.extra_time <= alone.extra_time


def test_a_report_has_the_copies(step_of):
    step, _ = step_of()
    report = step.report
    copies = report.json["copies"]
    assert set(copies) == {
        "host_bytes", "tensors", "bytes_to_host", "bytes_to_device", "copy_seconds",
        "stall_seconds",
    }  # fmt: skip
    assert copies["host_bytes"] >= copies["bytes_to_host"] > 0
    assert f"host memory    {copies['host_bytes']:,} bytes" in str(report)
    assert f"copies         {copies['tensors']} tensors" in str(report)
    assert sum(each.bytes for each in report.live) + report.held.bytes <= report.peak_bytes


def test_the_page_of_a_plan_shows_copies(step_of, tmp_path):
    report = step_of()[0].report
    report.view(tmp_path / "plan.html")
    page = content((tmp_path / "plan.html").read_text())
    (plan,) = page["plans"]
    names = [plan["texts"][number] for number in plan["nodes"]["op"]]
    assert names.count("copy from the host") == report.copies.tensors
    assert any(label == "host memory" for label, _ in plan["summary"])


def test_without_host_memory_nothing_is_copied():
    step, *_ = planned(mlp, 0.3, host_budget=0)
    assert step.report.copies is None
    assert step.report.json["copies"] is None


def test_little_host_memory_is_held_and_its_bytes_are_reused():
    """A backward pass that runs twice copies elsewhere what would overwrite earlier bytes."""
    step, (x,), _ = planned(mlp, 0.0, host_budget="192KiB")
    copies = step.report.copies
    assert 0 < copies.host_bytes <= 192 * 2**10
    assert step.verify().same_bits
    wanted = gradients(step, lambda: step(x).square().sum().backward())
    found = gradients(step, lambda: backward_twice(step(x).square().sum()))
    assert all(torch.equal(found[name], 2 * wanted[name]) for name in wanted)


def test_impossible_options():
    module, args, _ = mlp()
    with pytest.raises(OptionError, match=r"host_budget='1GiB' .* give a budget of bytes, too"):
        graphc.torch.plan(module, args, host_budget="1GiB")
    with pytest.raises(OptionError, match="host_budget must be"):
        graphc.torch.plan(module, args, "1GiB", host_budget="much")
    with pytest.raises(BudgetError, match="no plan within"):
        graphc.torch.plan(module, args, "1KiB", host_budget="1GiB")


class Late(PlainCopies):
    """Copies that run as late as they may: only when something waits for them, in order.

    A destination has other bytes before, so that a graph which does not wait computes others.
    """

    def __init__(self):
        self.pending = []

    def begin(self, direction, to, source, after):
        assert not any(event is each for event in after for each in self.pending)
        if direction == "in":
            to.fill_(0xA5)
        self.pending.append((direction, to, source))
        return self.pending[-1]

    def wait(self, event):
        if event is None:
            return
        direction, _, source = event
        while any(event is each for each in self.pending):
            at = next(at for at, each in enumerate(self.pending) if each[0] == direction)
            _, to, given = self.pending.pop(at)
            to.copy_(given)
        if direction == "out":
            source.fill_(0x5A)  # it may be freed from here on

    finish = wait


@pytest.mark.parametrize("make", [mlp, pytest.param(resnet, marks=pytest.mark.slow)])
def test_each_copy_is_awaited(make, monkeypatch):
    monkeypatch.setattr(host_memory, "lanes_of", lambda _: Late())
    step, args, kwargs = planned(make, 0.2)
    assert step.report.copies.tensors > 3
    other, *_ = make()
    found = trained(step.module, step, args, kwargs)
    wanted = trained(other, steps.compiled(other), args, kwargs)
    assert [name for name in found if not torch.equal(found[name], wanted[name])] == []


def gradients(step, backward):
    step.zero_grad()
    torch.manual_seed(1)
    backward()
    return {name: each.grad.clone() for name, each in step.named_parameters()}


def backward_twice(loss):
    loss.backward(retain_graph=True)
    loss.backward()


def test_calls_before_their_backward_passes_have_host_memory_of_their_own(step_of):
    step, (x,) = step_of()

    def apart():
        for each in (x, 2 * x):
            step(each).square().sum().backward()

    def together():
        first, second = step(x).square().sum(), step(2 * x).square().sum()
        first.backward()
        second.backward()

    before = step._state.host.allocations
    wanted = gradients(step, apart)
    found = gradients(step, together)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert step._state.host.allocations <= max(before, 1) + 1
    again = step._state.host.allocations
    gradients(step, together)
    assert step._state.host.allocations == again
    gc.collect()
    assert host_memory._LEASES == {}


def test_a_backward_pass_may_run_twice(step_of):
    step, (x,) = step_of()
    wanted = gradients(step, lambda: step(x).square().sum().backward())

    found = gradients(step, lambda: backward_twice(step(x).square().sum()))
    assert all(torch.equal(found[name], 2 * wanted[name]) for name in wanted)
    assert host_memory._LEASES == {}


def test_a_loss_without_a_backward_pass_releases_host_memory(step_of):
    step, (x,) = step_of()
    loss = step(x).square().sum()
    assert len(host_memory._LEASES) == 1
    del loss
    assert host_memory._LEASES == {}
    before = step._state.host.allocations
    step(x).square().sum().backward()
    assert step._state.host.allocations == before


def test_hooks_that_replace_saved_tensors_are_refused(step_of):
    step, (x,) = step_of()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = step(x).square().sum()
    with pytest.raises(TorchError, match="hooks replaced the saved tensors"):
        loss.backward()


def test_sizes_share_host_memory():
    module, (x,), _ = mlp()
    budget = budget_of(module, (x,), {}, 0.3)
    step = graphc.torch.plan(module, (x[:64],), budget, host_budget=HOST)
    assert step.report.copies is None
    step(x[:64]).square().sum().backward()
    for rows in (256, 224, 256):
        given = x[:rows]
        wanted = {}
        torch.manual_seed(1)
        module.zero_grad()
        steps.compiled(module)(given).square().sum().backward()
        wanted = {name: each.grad.clone() for name, each in module.named_parameters()}
        found = gradients(step, lambda given=given: step(given).square().sum().backward())
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    plans = [plan for plan in step.plans if plan.host_bytes]
    assert len(plans) == 2
    assert step._state.host.bytes == max(plan.host_bytes for plan in plans)
    assert step._state.host.allocations == 1


def test_an_op_that_returns_more_bytes_than_planned_is_told():
    memory = torch.from_numpy(np.empty(256, np.uint8))
    lease = host_memory.Lease(memory, PlainCopies(), lambda _: None)
    with pytest.raises(TorchError, match=r"a tensor of 64 bytes .* does not fit the 32 bytes"):
        lease.begin_out(torch.zeros(16), 0, 0, 32)


def test_the_layout_of_a_tensor_is_kept():
    memory = host_memory.HostMemory()
    host = memory.open(4096, torch.device("cpu"))
    given = torch.randn(4, 3, 5, dtype=torch.float64).permute(1, 2, 0)
    host_memory.begin_out(host, given, 3, 64, 480)
    host_memory.end_out(host, given, 3)
    made = host_memory.begin_in(host, 3, torch.device("cpu"))
    found = host_memory.end_in(host, made, 3)
    assert found.stride() == given.stride()
    assert found.dtype == given.dtype
    assert torch.equal(found, given)
    del host
    assert host_memory._LEASES == {}
