"""What stands around a planned step: other shapes, evaluation, accumulation, optimizers."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch_cases import parts, two_processes  # noqa: E402
from torch_cases.steps import Run, backward_of_sum, compiled, different  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import OptionError, TorchError  # noqa: E402
from graphc.torch.budget.trace.measure import measured_peak  # noqa: E402


def planned(module, *args, **options):
    """A plan half way from the most bytes to the fewest that were found."""
    report = graphc.torch.plan(module, args, max_extra_time=0.0, **options).report
    budget = (report.plain_bytes + report.least_bytes) // 2
    return graphc.torch.plan(module, args, budget, **options)


@pytest.mark.slow
def test_each_shape_has_a_plan_of_its_own():
    """More of them than Dynamo keeps by itself."""
    module = parts.layers(2)
    other = copy.deepcopy(module)
    step = graphc.torch.plan(module, (torch.randn(8, 64),), "1MiB")
    for batch in (8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 8, 80):
        x = torch.randn(batch, 64)
        assert different(Run(module, step, (x,)).bits(), Run(other, other, (x,)).bits()) == []
    *peaks, again = [each.report.peak_bytes for each in step.plans]
    assert len(peaks) == 10
    assert peaks == sorted(peaks)
    assert again == peaks[0]  # of the first size, which was traced before sizes were symbols
    with pytest.raises(graphc.BudgetError):
        step(torch.randn(2**14, 64))


def test_evaluation_has_the_module_s_numbers():
    module = parts.convolutions(nn.Dropout)
    other, x = copy.deepcopy(module), torch.randn(2, 8, 8, 8)
    call = compiled(other)
    step = graphc.torch.plan(module, (x,), max_extra_time=0.0)
    step.eval()
    other.eval()
    assert not module.training
    with torch.no_grad():
        found = step(x)
    assert torch.equal(found, call(x).detach())
    assert not found.requires_grad
    assert len(step.plans) == 1  # nothing of it is differentiated
    with pytest.warns(UserWarning, match="training was True and is False"):
        assert step(x).requires_grad
    assert len(step.plans) == 2


def test_evaluation_frees_values_behind_their_last_reader():
    """Of seventeen, there are two at a time: what a layer is given and what it gives."""
    x = torch.randn(256, 64)
    step = graphc.torch.plan(parts.layers(8), (x,), max_extra_time=0.0)
    with torch.no_grad():
        step(x)
        assert measured_peak(lambda: step(x)) == 2 * x.nbytes


def test_gradients_of_two_steps_add_up():
    module, x = parts.layers(), torch.randn(256, 64)
    other = copy.deepcopy(module)
    plain = planned(module, x).report
    step = planned(module, x, accumulate=True)
    gradients = sum(p.nbytes for p in module.parameters())
    assert step.report.held.gradients == gradients
    assert step.report.plain_bytes == plain.plain_bytes + gradients
    for call in (step, compiled(other)):
        for factor in (1.0, 3.0):
            backward_of_sum(call(x * factor))
    for found, expected in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad)
    there = [p.grad for p in module.parameters()]
    measured = Run(module, step, (x,), accumulates=True).peak(there)
    assert plain.peak_bytes < measured <= step.report.peak_bytes * 1.01


class TwoLosses(parts.Two):
    def forward(self, x):
        hidden = nn.functional.dropout(self.first(x), 0.2)
        return hidden.square().mean(), self.second(hidden).mean()


def test_losses_one_after_the_other():
    """With ``retain_graph`` the second pass reads what the first would have overwritten."""
    module, x = TwoLosses(), torch.randn(256, 64)
    other = copy.deepcopy(module)
    step = planned(module, x)
    assert step.report.repeated
    kept = {}
    for call in (step, other):
        torch.manual_seed(3)
        one, two = call(x)
        one.backward(retain_graph=True)
        one.backward(retain_graph=True)
        two.backward()
        kept[call] = [p.grad for p in call.parameters()]
    found, expected = kept.values()
    assert all(map(torch.equal, found, expected))


class Views(nn.Module):
    """Gives back what it is given, a part of a result, and the result."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        y = self.layer(x)
        return x, y[0], y


@pytest.mark.parametrize("place", [1, 2])
def test_requested_second_derivatives_are_refused(place):
    module, x = Views(), torch.randn(4, 64, requires_grad=True)
    step = graphc.torch.plan(module, (x,), max_extra_time=0.0)
    with pytest.raises(TorchError, match=r"create_graph=True .* call the module itself"):
        torch.autograd.grad(step(x)[place].sum(), x, create_graph=True)
    found, expected = (torch.autograd.grad(call(x)[place].sum(), x)[0] for call in (step, module))
    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it
def test_second_derivatives_of_arguments_are_not_planned():
    module, first = Views(), torch.randn(4, 64, requires_grad=True)
    given = first.sin()
    step = graphc.torch.plan(module, (given,), max_extra_time=0.0)
    same, *_ = step(given)
    (found,) = torch.autograd.grad(same.sum(), first, create_graph=True)
    (second,) = torch.autograd.grad(found.sum(), first)
    torch.testing.assert_close(second, -first.detach().sin())


class Lion(torch.optim.Optimizer):
    """An optimizer of one's own, with one moment."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-4})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["moment"] = torch.zeros_like(parameter)
                state["moment"].lerp_(parameter.grad, 0.1)
                parameter.add_(state["moment"].sign(), alpha=-group["lr"])


OPTIMIZERS = {
    "Adam": torch.optim.Adam,
    "fused AdamW": lambda p: torch.optim.AdamW(p, amsgrad=True, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adafactor": torch.optim.Adafactor,
    "ASGD": torch.optim.ASGD,
    "one's own": Lion,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_reserved_for_before_its_first_step(name):
    from graphc.torch.budget.trace.held import reserve_bytes

    module = parts.layers(2)
    before = copy.deepcopy(module.state_dict())
    optimizer = OPTIMIZERS[name](list(module.parameters()))
    reserved = reserve_bytes(optimizer)
    assert not optimizer.state
    assert all(torch.equal(before[key], each) for key, each in module.state_dict().items())
    module(torch.randn(4, 64)).sum().backward()
    optimizer.step()
    kept = [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    assert reserved == sum(each.nbytes for each in kept) == reserve_bytes(optimizer)


def test_an_optimizer_that_cannot_be_rehearsed_is_told():
    optimizer = torch.optim.LBFGS(parts.layers(1).parameters())
    with pytest.raises(OptionError, match=r"LBFGS .* pass reserve as a size"):
        graphc.torch.plan(parts.layers(1), (torch.randn(2, 64),), reserve=optimizer)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_average_the_gradients_of_planned_steps(tmp_path):
    """DistributedDataParallel around a step trains as it does around the compiled module."""
    for is_planned in (True, False):
        torch.multiprocessing.spawn(
            two_processes.train, (str(tmp_path), is_planned), two_processes.WORLD
        )
    trained = {path.stem: torch.load(path) for path in tmp_path.glob("*.pt")}
    assert len(trained) == 2 * two_processes.WORLD
    first, *others = trained.values()
    for other in others:
        assert all(map(torch.equal, first, other))

    torch.testing.assert_close(trained_in_one_process(), first)


def trained_in_one_process():
    """The parameters after steps on the joint batches of both processes."""
    module, batches = two_processes.module_and_batches()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for step in range(two_processes.STEPS):
        optimizer.zero_grad()
        begin = two_processes.WORLD * step
        whole = torch.cat(batches[begin : begin + two_processes.WORLD])
        module(whole).square().mean().backward()
        optimizer.step()
    return list(module.parameters())


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_fsdp_around_a_step_trains_as_one_process_does(tmp_path):
    torch.multiprocessing.spawn(two_processes.train_sharded, (str(tmp_path),), two_processes.WORLD)
    for rank in range(two_processes.WORLD):
        whole, plans = torch.load(tmp_path / f"sharded-{rank}.pt")
        torch.testing.assert_close(whole, trained_in_one_process())
        assert plans == 2


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_a_module_with_sharded_parts_is_refused_by_name(tmp_path):
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group(
        "gloo", init_method=(tmp_path / "meeting").as_uri(), rank=0, world_size=1
    )
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        module = parts.layers(2)
        fully_shard(module[0], mesh=mesh)
        with pytest.raises(TorchError, match=r"'0' of the module is sharded by FSDP.*fully_shard"):
            graphc.torch.plan(module, (torch.randn(2, 64),))
    finally:
        torch.distributed.destroy_process_group()
