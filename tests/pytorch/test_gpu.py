"""What is decided for GPUs, as far as tensors without numbers show it."""

from contextlib import nullcontext
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch._functorch._aot_autograd.descriptors import (  # noqa: E402
    GradAOTOutput,
    PlainAOTInput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import TorchError  # noqa: E402

aten = torch.ops.aten
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
ON_GPU = pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])


def on(device):
    """A tensor without data, of a GPU that need not exist."""
    with mock.patch.object(torch.cuda, "is_available", return_value=False), FakeTensorMode():
        return torch.empty(3, device=device)


def test_random_numbers_come_from_the_generator_of_the_device_they_are_for(monkeypatch):
    """The state is on the CPU, and an op without tensors says where it draws."""
    from graphc.torch.budget.trace.runner import drawing_on_its_device

    entered = []

    def enter(device):
        entered.append(str(device))
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    draw = drawing_on_its_device(lambda *args, **kwargs: (args, kwargs))
    state, x = torch.get_rng_state(), on("cuda:1")
    assert draw(state, torch.rand_like, x) == ((state, torch.rand_like, x), {})
    assert draw(torch.rand, device=torch.device("cuda:2"))[1] == {"device": torch.device("cuda:2")}
    assert entered == ["cuda:1", "cuda:2"]
    draw(state, torch.rand_like, torch.ones(3))
    assert len(entered) == 2


def test_a_graph_that_is_captured_takes_no_saved_state(monkeypatch):
    from graphc.torch.budget.trace.runner import drawing_on_its_device

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(TorchError, match="CUDA graph cannot capture"):
        drawing_on_its_device(torch.rand_like)(on("cuda:0"))
    drawing_on_its_device(torch.rand_like)(torch.ones(3))


def test_a_backward_pass_that_is_watched_runs_in_the_thread_that_watches():
    """By itself, autograd has a thread for each GPU."""
    from graphc.torch.budget.make_step import to_plan
    from graphc.torch.budget.options import TorchPlanOptions

    step = to_plan(TorchPlanOptions(nn.ReLU(), ()))
    with step.watched(lambda *_: nullcontext()):
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled()


def test_a_second_gpu_is_refused_by_the_names_of_what_is_there():
    from graphc.torch.budget.make_step import to_plan
    from graphc.torch.budget.options import TorchPlanOptions
    from graphc.torch.budget.trace.refusals import refuse_tensors

    step = to_plan(TorchPlanOptions(nn.ReLU(), ()))
    refuse_tensors(step, ((on("cuda:1"), on("cuda:1"), torch.ones(3)), {}))
    with pytest.raises(TorchError, match=r"\[0\] on cuda:0 and .*'scale'.* on cuda:1"):
        refuse_tensors(step, ((on("cuda:0"),), {"scale": on("cuda:1")}))


def random_joint():
    """A joint graph on a GPU of three random ops, as torch traces it: attention is fused."""

    def joint(primals, tangents):
        x = aten.mul.Tensor(primals, 2.0)
        dropped, mask = aten.native_dropout.default(x, 0.1, True)
        noise = aten.rand_like.default(x)
        q = aten.mul.Tensor(dropped, noise)
        attended = aten._scaled_dot_product_flash_attention.default(q, q, q, 0.1, False)
        out, sums, *_ = attended
        g = aten.mul.Tensor(aten.expand.default(tangents, x.shape), x)
        given = (g, q, q, q, out, sums, None, None, 64, 64, 0.1, False, *attended[6:8])
        (g, *_) = aten._scaled_dot_product_flash_attention_backward.default(*given)
        g = aten.mul.Tensor(aten.mul.Tensor(g, noise), mask)
        return aten.sum.default(aten.mul.Tensor(out, x)), g

    with FakeTensorMode():
        x = torch.empty(2, 4, 64, 32, dtype=torch.float16, device="cuda")
        traced = make_fx(joint)(x, torch.empty((), dtype=torch.float16, device="cuda"))
    given, tangent = traced.graph.find_nodes(op="placeholder")
    (output,) = traced.graph.find_nodes(op="output")
    given.meta["desc"] = PlainAOTInput(0)
    tangent.meta["desc"] = TangentAOTInput(PlainAOTOutput(0))
    output.meta["desc"] = [PlainAOTOutput(0), GradAOTOutput(PlainAOTInput(0))]
    return traced


def test_a_saved_state_on_the_cpu_belongs_to_the_generator_of_the_gpu(monkeypatch):
    """A generator of a GPU returns its state on the CPU, and the numbers on the GPU."""
    from graphc.torch.budget.goal import checked, prepared
    from graphc.torch.budget.plan import steps
    from graphc.torch.budget.trace.joint import Joint
    from graphc.torch.private import run_and_save_rng_state, run_with_rng_state

    monkeypatch.setattr(steps, "random_state", lambda _: torch.empty(16, dtype=torch.uint8))
    joint = Joint(random_joint(), 1)
    costs = {
        step.node: steps.Measured(1e-6, 0, tuple(joint.bytes[value] for value in step.makes))
        for step in joint.steps
    }
    torch_steps, planner = prepared(joint, 0, costs)
    forward, backward, replay = checked(torch_steps, planner.least)
    assert replay.peak.bytes == planner.least.peak_bytes
    saving = forward.graph.find_nodes(op="call_function", target=run_and_save_rng_state)
    again = backward.graph.find_nodes(op="call_function", target=run_with_rng_state)
    assert {node.args[0] for node in saving} == {node.args[1] for node in again}
    assert {str(node.meta["val"][0].device) for node in saving} == {"cpu"}
    assert {node.args[0] for node in saving} == {
        aten.native_dropout.default,
        aten.rand_like.default,
    }


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_random_ops_are_recomputed_with_the_numbers_of_their_first_run(device):
    """Attention with dropout is fused on a GPU."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
            self.drop = nn.Dropout(0.2)

        def forward(self, x):
            for part in self.parts:
                y = torch.tanh(self.drop(part(x)))
                if device == "cuda":
                    q = y.unflatten(-1, (4, 16)).transpose(1, 2)
                    y = nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)
                    y = y.transpose(1, 2).flatten(2)
                x = x + self.drop(y).exp()
            return x.square().mean()

    x = torch.randn(4, 64, 64, device=device)
    with torch.autocast(device, torch.bfloat16):
        step = graphc.torch.plan(Block().to(device), (x,), max_extra_time=10.0)
    backward = step.plans[-1].backward.graph
    assert any("run_with_rng_state" in str(node.target) for node in backward.nodes)
    found = step.verify()
    assert not found.different["outputs"], str(found)
    assert not found.different["random_state"], str(found)
    assert device == "cuda" or found.same_bits


def tower(device):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]
    return nn.Sequential(*layers).to(device), torch.randn(512, 256, device=device)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_tensors_copied_to_the_host_change_no_bit(device):
    module, x = tower(device)
    plain = graphc.torch.plan(module, (x,), max_extra_time=0.0).report
    budget = (plain.least_bytes + plain.plain_bytes) // 2
    step = graphc.torch.plan(module, (x,), budget, host_budget="1GiB")
    assert step.plans[-1].host_bytes
    assert step.report.peak_bytes <= budget
    assert step.verify().same_bits, str(step.verify())


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_sizes_planned_ahead_have_the_bits_of_the_module(device):
    module, x = tower(device)
    sizes = {"input": {0: (64, 128, 512)}}
    step = graphc.torch.plan(module, (x,), "knee", sizes=sizes, pad={"input": None})
    plans = len(step.plans)
    for rows in (128, 64, 512):
        found = []
        for each in (module, step):
            module.zero_grad()
            each(x[:rows]).square().sum().backward()
            found.append([p.grad.clone() for p in module.parameters()])
        for ours, theirs in zip(*found, strict=True):
            assert torch.equal(ours, theirs)
    assert len(step.plans) == plans


def test_seeds_of_attention_are_those_of_its_forward_pass():
    """Kernels for GPUs crash on seeds that are not where their forward pass has left them."""
    seen = []

    @torch.library.custom_op("graphc_tests::attention", mutates_args=())
    def attention(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.clone(), torch.tensor(1234)

    @attention.register_fake
    def _(x):
        return torch.empty_like(x), x.new_empty((), dtype=torch.int64)

    @torch.library.custom_op("graphc_tests::attention_backward", mutates_args=())
    def attention_backward(dy: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        seen.append(int(seed))
        return dy.clone()

    attention_backward.register_fake(lambda dy, seed: torch.empty_like(dy))
    attention.register_autograd(
        lambda ctx, dy, _: attention_backward(dy, ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
    )

    class Attention(nn.Module):
        def forward(self, x):
            return attention(x * 2)[0].tanh()

    graphc.torch.plan(Attention(), (torch.randn(8, 8, requires_grad=True),), "knee")
    assert set(seen) == {1234}


def product_joint(with_bias):
    """A joint graph of a product."""

    def joint(primals, tangents):
        if with_bias:
            made = aten.addmm.default(primals[0], primals, primals)
        else:
            made = aten.mm.default(primals, primals)
        return made, aten.mm.default(primals, tangents)

    with FakeTensorMode():
        return make_fx(joint)(torch.empty(8, 8), torch.empty(8, 8))


@pytest.mark.parametrize(
    ("capability", "with_bias", "config", "wanted_kib"),
    [
        ((9, 0), False, None, 2 * 32 * 1024),
        ((9, 0), True, None, 65 * 1024),
        ((8, 0), False, None, 2 * 8320),
        ((7, 5), True, None, 2 * 8320 + 1024),
        ((9, 0), False, ":4096:2:16:8", 2 * 8320),
        ((8, 0), False, ":16:8", 2 * 128),
        ((8, 0), False, "none", 2 * 8320),
    ],
)
def test_workspaces_that_cublas_keeps_in_both_threads(
    monkeypatch, capability, with_bias, config, wanted_kib
):
    from graphc.torch.budget.plan import libraries
    from graphc.torch.budget.trace.joint import Joint

    monkeypatch.setattr(libraries, "device_of", lambda _: torch.device("cuda:0"))
    monkeypatch.setattr(libraries, "cublas_workspace_size", lambda: None)
    monkeypatch.setattr(libraries, "cublaslt_workspace_size", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    joint = Joint(product_joint(with_bias), 1)
    assert libraries.library_workspaces(joint, None) == wanted_kib * 1024
    # Versions of torch that tell the sizes are believed.
    monkeypatch.setattr(libraries, "cublas_workspace_size", lambda: 5)
    monkeypatch.setattr(libraries, "cublaslt_workspace_size", lambda: 7)
    assert libraries.library_workspaces(joint, None) == 10 + 7 * with_bias


def test_nothing_is_kept_without_products_or_on_a_cpu(monkeypatch):
    from graphc.torch.budget.plan.libraries import library_workspaces
    from graphc.torch.budget.trace.joint import Joint

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    assert library_workspaces(Joint(random_joint(), 1), None) == 0
    step = graphc.torch.plan(nn.Linear(4, 4), (torch.ones(2, 4),), "knee")
    assert step.report.held.library_workspaces == 0
    assert library_workspaces(step.plans[-1].torch_steps.joint, None) == 0


@pytest.mark.gpu
@NO_GPU
def test_the_peak_of_the_statistics_is_the_planned_one():
    """The first step allocates the libraries' workspaces, which the plan counts."""
    layers = [nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)]
    module, x = nn.Sequential(*layers).to("cuda"), torch.randn(4096, 2048, device="cuda")
    step = graphc.torch.plan(module, (x,), max_extra_time=0.2)
    assert step.verify().held
    for _ in range(2):
        module.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        y = step(x)
        y.backward(torch.ones_like(y))  # a plan counts the output and its gradient
        torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() <= 1.01 * step.report.peak_bytes
    assert torch.cuda.max_memory_allocated() >= 0.99 * step.report.peak_bytes


def statistics(allocated, allocated_peak, requested, requested_peak):
    return {
        "allocated_bytes.all.current": allocated,
        "allocated_bytes.all.peak": allocated_peak,
        "requested_bytes.all.current": requested,
        "requested_bytes.all.peak": requested_peak,
    }


@pytest.mark.parametrize("counts_requests", [True, False])
def test_bytes_of_an_op_are_those_it_requests(monkeypatch, counts_requests):
    """Blocks of the allocator may have a remainder, and cudaMallocAsync counts no requests."""
    from graphc.torch.budget.trace.measure import GpuPeak, measured_peak, peak_on_gpu

    found = [statistics(100, 100, 90, 90), statistics(150, 400, 120, 300)]
    if not counts_requests:
        found = [{k: n for k, n in each.items() if "allocated" in k} for each in found]
    called = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: called.append("reset"))
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: found[len(called) - 1])
    device = torch.device("cuda:0")
    peak = peak_on_gpu(lambda: called.append("run"), device)
    assert called == ["reset", "run"]
    assert peak == GpuPeak(300, 210 if counts_requests else 300)
    called.clear()
    assert measured_peak(lambda: called.append("run"), device=device) == 300


def test_remainders_of_blocks_are_no_fault_of_a_plan():
    from graphc.torch.budget.report.verified import Verified

    mib = 2**20
    found = Verified(1000 * mib, 1015 * mib, {"gradients": ()}, None, remainder_bytes=12 * mib)
    assert found.held
    assert "remainders     12.00 MiB of the measured peak" in str(found)
    assert found.json["remainder_bytes"] == 12 * mib
    missed = Verified(1000 * mib, 1015 * mib, {"gradients": ()}, None)
    assert not missed.held
    assert "remainders" not in str(missed)
