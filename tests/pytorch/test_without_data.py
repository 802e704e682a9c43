"""Plans of tensors without data: the same graph and bytes as with data, and nothing runs."""

from dataclasses import replace

import pytest

import graphc
from graphc.devices.device import find_device
from graphc.errors import BudgetError, OptionError, TorchError

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402


class Block(torch.nn.Module):
    """Attention and a product, with a buffer, an attribute and two parameters in one storage."""

    def __init__(self, width=32):
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.norm = torch.nn.BatchNorm1d(width)
        whole = torch.empty(2 * width)
        self.scale = torch.nn.Parameter(whole[:width])
        self.shift = torch.nn.Parameter(whole[width:])
        self.table = [torch.ones(width)]

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).flatten(2) * self.scale + self.shift * self.table[0]
        return self.norm(y.flatten(0, 1)).square().mean()


def made_of(kind):
    """The module and its argument with data, on the meta device, or under a fake mode."""
    if kind == "meta":
        with torch.device("meta"):
            return Block(), (torch.empty(2, 16, 32),)
    if kind == "fake":
        with FakeTensorMode():
            return Block(), (torch.empty(2, 16, 32),)
    return Block(), (torch.randn(2, 16, 32),)


def steps_of(step):
    """The ops, sizes and strides of a plan's nodes."""
    return [
        (str(node.target), [(t.shape, t.stride()) for t in torch.utils._pytree.tree_leaves(value)])
        for node in step.plans[-1].torch_steps.joint.nodes
        if isinstance(value := node.meta.get("val"), torch.Tensor | tuple)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["meta", "fake", "data"])
def test_the_graph_and_the_resident_bytes_are_those_of_a_module_with_data(kind):
    measured = graphc.torch.plan(*made_of("data"), "knee")
    estimated = graphc.torch.plan(*made_of(kind), "knee", device="h100")
    assert steps_of(estimated) == steps_of(measured)
    kept = estimated.report.held.library_workspaces
    assert kept == 65 * 2**20  # of cuBLAS in two threads, and of cuBLASLt for a bias
    assert replace(estimated.report.held, library_workspaces=0) == measured.report.held
    # Without workspaces of ops, and with fewer bytes for them only.
    assert 0.5 < (estimated.report.plain_bytes - kept) / measured.report.plain_bytes <= 1


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_nothing_runs(kind):
    module, args = made_of(kind)
    step = graphc.torch.plan(module, args, "knee")
    for call in (lambda: step(*args), lambda: step.verify(*args), step.verify):
        with pytest.raises(TorchError, match=r"profile h200 .* cannot run"):
            call()
    assert "estimated for h200" in str(step.report)
    assert step.report.json["costs"] == "estimated for h200 by a roofline, without workspaces"
    assert not step.report.estimated


def test_a_budget_a_reserve_and_a_frontier():
    module, args = made_of("meta")
    optimizer = torch.optim.Adam(module.parameters())
    step = graphc.torch.plan(module, args, "knee", reserve=optimizer, device="16GB")
    curve = graphc.torch.frontier(module, args, reserve=optimizer, device="16GB")
    assert "library workspaces 17.25 MiB" in str(step.report)
    assert step.report.held.reserve >= 2 * sum(4 * p.numel() for p in module.parameters())
    assert curve[-1].peak_bytes == step.report.least_bytes
    given = {"reserve": optimizer, "device": "16GB"}
    within = graphc.torch.plan(module, args, curve[-1].peak_bytes, **given)
    assert within.report.peak_bytes <= curve[-1].peak_bytes
    with pytest.raises(BudgetError, match="no plan within"):
        graphc.torch.plan(module, args, step.report.bound_bytes - 1, **given)


def test_costs_are_those_of_the_roofline():
    with torch.device("meta"):
        module, args = torch.nn.Linear(256, 512, bias=False).bfloat16(), torch.empty(1024, 256)
    args = (args.bfloat16(),)
    device = find_device("h100")
    step = graphc.torch.plan(module, args, "knee", device="h100")
    measured = step.plans[-1].torch_steps.measured
    (forward,) = (
        m
        for n, m in measured.items()
        if n.target is torch.ops.aten.mm.default and tuple(n.meta["val"].shape) == (1024, 512)
    )
    flops, moved = 2 * 1024 * 256 * 512, 2 * (1024 * 256 + 256 * 512 + 1024 * 512)
    wanted = max(flops / device.narrow_flops_per_second, moved / device.bytes_per_second)
    assert forward.seconds == pytest.approx(wanted)
    assert forward.workspace == 0


def test_fused_attention_has_the_flops_of_its_two_products():
    with torch.device("meta"):
        module, args = Block(), (torch.empty(2, 16, 32),)
    from graphc.torch.budget.plan.estimates import flops_of

    step = graphc.torch.plan(module, args, "knee")
    nodes = step.plans[-1].torch_steps.measured
    flops = [flops_of(n) for n in nodes if "attention" in str(n.target)]
    product = 2 * (2 * 4) * 16 * 16 * 8  # batches of heads, queries, keys, width of a head
    assert flops == [2 * product, 5 * product]


def test_an_unknown_profile_is_refused():
    with pytest.raises(OptionError, match=r"device profile.*h100"):
        graphc.torch.plan(*made_of("data"), device="h10")


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:0", torch.device("cuda")])
def test_a_device_of_tensors_is_not_a_profile(device):
    with pytest.raises(OptionError, match="Omit device= to plan for the device of") as told:
        graphc.torch.plan(*made_of("data"), device=device)
    assert "did you mean" not in str(told.value)


def test_names_of_profiles_may_be_in_upper_case():
    step = graphc.torch.plan(*made_of("data"), device="H100")
    assert step.step_options.device == find_device("h100")
