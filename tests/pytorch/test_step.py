"""A planned step as an object: its copies, torch.compile around it, and whose faults are whose."""

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import BudgetError, OptionError, TorchError  # noqa: E402
from graphc.torch.budget import goal as planned  # noqa: E402
from graphc.torch.budget import step as step_module  # noqa: E402
from graphc.torch.budget.trace import tracing  # noqa: E402

X = torch.randn(4, 8)

NO_LEAF = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
"""Dynamo looks at it where an argument is no leaf."""


def planned_layer(**options):
    return graphc.torch.plan(nn.Linear(8, 8), (X,), **options)


def test_a_copy_is_planned_anew_for_its_own_parameters():
    step = planned_layer()
    step(X).sum().backward()
    copied = copy.deepcopy(step)
    assert copied.module.weight is not step.module.weight
    with torch.no_grad():
        copied.module.weight.zero_()
    with pytest.raises(TorchError, match="a copied step is planned at its first call"):
        copied.report  # noqa: B018
    assert torch.equal(copied(X), step.module.bias.expand(4, 8))
    assert not torch.equal(step(X), copied(X))
    assert (len(step.plans), len(copied.plans)) == (1, 1)
    assert copied.report.peak_bytes == step.report.peak_bytes


def test_an_average_of_a_step_is_a_step():
    step = planned_layer()
    average = AveragedModel(step, avg_fn=lambda old, new, _: (old + new) / 2)
    average.update_parameters(step)
    before = step.module.weight.detach().clone()
    with torch.no_grad():
        step.module.weight.add_(2)
    average.update_parameters(step)
    torch.testing.assert_close(average.module.module.weight, before + 1)
    wanted = nn.functional.linear(X, before + 1, step.module.bias)
    torch.testing.assert_close(average(X), wanted)


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy])
def test_a_step_is_not_pickled(copying):
    with pytest.raises(TorchError, match=r"save step\.state_dict\(\) and plan again"):
        copying(planned_layer())


def test_data_parallel_replicas_are_refused():
    """As torch.nn.DataParallel makes them on several GPUs."""
    with pytest.raises(TorchError, match="wrap the step in DistributedDataParallel"):
        planned_layer()._replicate_for_data_parallel()


class Counts(nn.Module):
    """Counts its calls in Python, and reads that count."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls, self.runs = nn.Linear(8, 8), 0, []

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


def test_the_warning_of_a_replan_names_the_line_of_the_program():
    around = nn.Sequential(nn.Sequential(graphc.torch.plan(Counts(), (X,), "knee")))
    around(X)
    with pytest.warns(UserWarning, match="calls was 0 and is 1") as told:
        around(X)
    assert [each.filename for each in told] == [__file__]


@pytest.mark.filterwarnings("ignore:this step has been planned again")
def test_the_end_of_plans_names_the_guard(monkeypatch):
    monkeypatch.setitem(tracing.TRACING, "recompile_limit", 2)
    step = graphc.torch.plan(Counts(), (X,), "knee")
    step(X)
    step(X)
    with pytest.raises(TorchError, match=r"planned 2 times, .* this guard failed: calls == 1\."):
        step(X)


class Traced(nn.Module):
    """Remembers in Python that it was run, which a trace puts off."""

    def __init__(self):
        super().__init__()
        self.inner, self.runs = nn.Linear(8, 8), []

    def forward(self, x):
        self.runs.append(1)
        return self.inner(x)


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile", "aot_eager_then_compile"])
def test_a_stance_under_which_no_plan_holds_is_refused(stance):
    module = Traced()
    with torch.compiler.set_stance(stance), pytest.raises(TorchError, match=stance):
        graphc.torch.plan(module, (X,))
    assert module.runs == []


def test_existing_plans_serve_calls_without_retracing():
    with (
        torch.compiler.set_stance("fail_on_recompile"),
        pytest.raises(TorchError, match=r"this call has no plan; plan before setting that stance"),
    ):
        planned_layer()
    step = planned_layer()
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(step(X), step.module(X))
        with pytest.raises(
            TorchError, match=r"this call has no plan; plan before setting that stance"
        ):
            step(torch.randn(5, 8))
    assert len(step.plans) == 1


def test_without_torch_compile_there_is_no_step(monkeypatch):
    module = Traced()
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(TorchError, match="is disabled by"):
        graphc.torch.plan(module, (X,))
    assert module.runs == []


@NO_LEAF
def test_inside_torch_compile_a_step_keeps_to_its_plan():
    step = planned_layer()

    def around(x):
        return step(2 * x).sum() + 1

    around_it = torch.compile(around, backend="aot_eager")
    found = around_it(X)
    found.backward()
    torch.testing.assert_close(step.module.weight.grad, (2 * X).sum(0).expand(8, 8))
    torch.testing.assert_close(found, step.module(2 * X).sum() + 1)
    assert len(step.plans) == 1
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a planned step cannot be traced"):
        torch.compile(around, backend="aot_eager", fullgraph=True)(X)


def test_compiled_modules_are_planned_without_torch_compile():
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    names = list(module.state_dict())
    with pytest.warns(UserWarning, match="the module is compiled .*Leave out torch.compile"):
        step = graphc.torch.plan(torch.compile(module, backend="eager"), (X,), "knee")
    assert list(step.state_dict()) == names
    module[0].compile(backend="eager")
    with pytest.warns(UserWarning, match="module '0' is compiled"):
        graphc.torch.plan(module, (X,), "knee")


def doubled(module, args, output=None):
    return 2 * args[0] if output is None else 2 * output


@pytest.mark.parametrize(
    ("part", "register"),
    [
        (0, nn.Module.register_forward_hook),
        (2, nn.Module.register_forward_pre_hook),
        (None, nn.Module.register_forward_hook),
    ],
)
def test_hooks_that_are_registered_later_are_called(part, register):
    """Outputs equal those of the module with the hook, and without it after its removal."""
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    step = graphc.torch.plan(module, (X,), "knee")
    plain = step(X)
    handle = register(module if part is None else module[part], doubled)
    with pytest.warns(UserWarning, match="planned again for the same shapes"):
        found = step(X)
    torch.testing.assert_close(found, module(X), rtol=0, atol=0)
    assert not torch.equal(found, plain)
    handle.remove()
    torch.testing.assert_close(step(X), plain, rtol=0, atol=0)


def test_hooks_on_parameters_are_called():
    module = nn.Linear(8, 8)
    step = graphc.torch.plan(module, (X,), "knee")
    step(X).sum().backward()
    gradient = module.weight.grad.clone()
    module.weight.grad = None
    module.weight.register_hook(lambda gradient: 2 * gradient)
    step(X).sum().backward()
    torch.testing.assert_close(module.weight.grad, 2 * gradient)


def test_a_backward_hook_of_a_module_is_refused():
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    step = graphc.torch.plan(module, (X,), "knee")
    module[1].register_full_backward_hook(lambda module, before, after: None)
    with pytest.raises(TorchError, match="a module has a backward hook"):
        step(X)


@pytest.mark.parametrize("in_place", [False, True])
def test_torch_compile_of_a_step_warns(in_place):
    step = graphc.torch.plan(nn.Linear(8, 8), (X,), "knee")
    called = step if in_place else torch.compile(step, backend="eager", fullgraph=True)
    if in_place:
        step.compile(backend="eager")
    with pytest.warns(UserWarning, match="torch.compile around a planned step has no effect"):
        found = called(X)
    torch.testing.assert_close(found, step.module(X))


def test_a_fault_of_graphc_is_not_told_as_one_of_torch(monkeypatch):
    def faulty(*_):
        raise ZeroDivisionError("in a planner")

    monkeypatch.setattr(planned, "within", faulty)
    with pytest.raises(ZeroDivisionError, match="in a planner") as told:
        planned_layer()
    assert told.traceback[-1].name == "faulty"


class Box:
    def __init__(self, inside):
        self.inside = inside


@dataclass(slots=True)
class Slots:
    """What nothing can refer to weakly."""

    inside: torch.Tensor


class Unpacks(nn.Linear):
    def forward(self, box):
        return super().forward(box.inside)


class Breaks(nn.Linear):
    def forward(self, x):
        torch._dynamo.graph_break()
        return super().forward(x)


def test_no_argument_stays_behind_a_plan_or_its_error():
    """Without a collection of cycles."""

    kept = []

    def arguments(module, budget, error, box=lambda x: x):
        x = torch.randn(4, 8)
        if error is None:
            kept.append(graphc.torch.plan(module, (box(x),), budget))
        else:
            with pytest.raises(error):
                graphc.torch.plan(module, (x,), budget)
        return weakref.ref(x)

    gc.collect()
    gc.disable()
    try:
        left = [
            arguments(nn.Linear(8, 8), None, None),
            arguments(Unpacks(8, 8), None, None, Box),
            arguments(Unpacks(8, 8), None, None, Slots),
            arguments(nn.Linear(8, 8), 0, BudgetError),
            arguments(Breaks(8, 8), None, TorchError),
        ]
        assert [each() for each in left] == [None] * 5
    finally:
        gc.enable()


def test_objects_without_tensors_stay_arguments():
    class Scaled(nn.Linear):
        def forward(self, x, *, scale, dtype, name):
            return super().forward(x).to(dtype) * scale

    kwargs = {"scale": 2.5, "dtype": torch.float64, "name": None}
    step = graphc.torch.plan(Scaled(8, 8), (X,), "knee", kwargs=kwargs)
    assert step.verify().same_bits
    step.plan((X,), {**kwargs, "name": Slots(X)})
    with pytest.raises(OptionError, match="no longer exist"):
        step.verify()


def test_a_step_may_be_called_while_another_thread_plans_or_watches_it(monkeypatch):
    own, others, watched = planned_layer(), [], []
    wanted, y = own.module(X), torch.randn(5, 8)
    refuse_tensors = step_module.refuse_tensors

    def call():
        found = own(X)
        found.sum().backward()
        others.append(found)

    with ThreadPoolExecutor(1) as thread:

        def meanwhile(*given):
            monkeypatch.setattr(step_module, "refuse_tensors", refuse_tensors)
            thread.submit(call).result(60)
            refuse_tensors(*given)

        monkeypatch.setattr(step_module, "refuse_tensors", meanwhile)
        own.plan((y,), {})
        with own.watched(lambda part, name: watched.append(name) or nullcontext()):
            thread.submit(call).result(60)
            assert watched == []
            own(X).sum().backward()
    assert watched
    assert len(others) == 2
    assert all(torch.equal(found, wanted) for found in others)
    assert own.report.held.inputs == y.nbytes
