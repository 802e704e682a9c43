"""What a plan of a torch module promises: its budget, its bits, and more bytes never slower."""

import itertools
import operator

import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

import graphc
from graphc.byte_sizes import parse_bytes
from graphc.devices.device_memory import DeviceMemory, gpu_memory
from graphc.errors import BudgetError, OptionError

torch = pytest.importorskip("torch", reason="torch is not installed")
modules = pytest.importorskip("torch_cases.modules")
random_modules = pytest.importorskip("torch_cases.random_modules")
sequences = pytest.importorskip("torch_cases.sequences")
steps = pytest.importorskip("torch_cases.steps")

from torch._dynamo.backends.common import aot_autograd  # noqa: E402

from graphc.torch.budget import goal as planned_module  # noqa: E402
from graphc.torch.budget.trace.runner import runner  # noqa: E402

SLACK = 2**14
"""Bytes that these small steps may take beyond their plan; the promise is 1 MiB."""
PARTS_OF_THE_WAY = 1.0, 0.6, 0.2, 0.0
"""Budgets between the least peak and the plain one."""
COMPILED = settings(
    phases=(Phase.explicit, Phase.generate), suppress_health_check=[HealthCheck.too_slow]
)
"""An example takes seconds, so a smaller one is not looked for."""


random_parts = st.sampled_from(PARTS_OF_THE_WAY[::-1])


def budgets_between(case, parts):
    peaks = [point.peak_bytes for point in graphc.torch.frontier(*case)]
    return [int(min(peaks) + part * (max(peaks) - min(peaks))) for part in parts]


def planned(make, budget):
    module, args = make()
    return steps.Run(module, graphc.torch.plan(module, args, budget=budget), args)


def peak_of(run):
    run()
    return run.peak()


def random_module_holds_its_promises(recipe, part):
    """Where torch's own aot_eager takes the module at all.

    It traces other strides of the gradient of dropout than that has, behind a transposition, say.
    """
    torch.compiler.reset()
    try:
        wanted = steps.by_aot_eager(recipe.make()).bits()
    except RuntimeError:
        reject()
    holds_its_promises(recipe.make, [part], wanted)


def holds_its_promises(make, parts, wanted):
    """At each budget: its peak, planned and measured, and the wanted bits."""
    for budget in budgets_between(make(), parts):
        run = planned(make, budget)
        report = run.loss.report
        assert report.peak_bytes <= budget
        same = steps.same_bits(run.bits(), wanted)
        assert all(same.values()), (budget, same)
        assert run.peak() <= report.peak_bytes + max(report.peak_bytes // 100, SLACK), budget


@pytest.mark.slow
@pytest.mark.parametrize("name", modules.MODULES)
def test_budgets_hold_with_the_bits_of_aot_eager(name):

    def make():
        return modules.MODULES[name]("small")

    holds_its_promises(make, PARTS_OF_THE_WAY, steps.by_aot_eager(make()).bits())


@settings(COMPILED, max_examples=max(3, settings().max_examples // 10))
@given(random_modules.recipes(), random_parts)
def test_budgets_of_random_modules(recipe, part):
    random_module_holds_its_promises(recipe, part)


@pytest.mark.slow
@pytest.mark.parametrize("name", random_modules.PARTS)
def test_budgets_of_random_modules_with(name):
    """Four modules with each of the parts."""

    @settings(COMPILED, max_examples=4)
    @given(random_modules.recipes(having=name), random_parts)
    def check(recipe, part):
        random_module_holds_its_promises(recipe, part)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPT", "ResNet-50", "U-Net", "mixture of experts"])
def test_a_larger_budget_is_never_slower_and_a_smaller_never_higher(name):
    """By the planner's own seconds, which are those of one table of costs."""
    case = modules.MODULES[name]("small")
    budgets = budgets_between(case, [i / 12 for i in range(13)])
    reports = [graphc.torch.plan(*case, budget=budget).report for budget in budgets]
    for less, more in itertools.pairwise(reports):
        assert less.peak_bytes <= more.peak_bytes
        assert less.extra_time >= more.extra_time
    assert reports[0].extra_time > reports[-1].extra_time


def test_without_a_goal_the_budget_is_the_memory_of_the_device(monkeypatch):
    module, args = modules.MODULES["MLP"]("small")
    plain = graphc.torch.plan(module, args).report
    assert plain.peak_bytes == plain.plain_bytes
    assert plain.extra_time == 0 == len(plain.repeated)
    knee = graphc.torch.plan(module, args, "knee").report
    assert plain.least_bytes <= knee.peak_bytes < plain.plain_bytes

    def of_bytes(size):
        memory = DeviceMemory("cpu", size, size)
        monkeypatch.setattr(planned_module, "memory_of", lambda *_: memory)

    middle = (plain.plain_bytes + plain.least_bytes) // 2
    of_bytes(middle)
    small = graphc.torch.plan(module, args).report
    assert small.peak_bytes <= middle
    assert small.extra_time > 0
    of_bytes(plain.bound_bytes - 1)
    with pytest.raises(BudgetError, match=r"within the memory of the device, .* Reduce the batch"):
        graphc.torch.plan(module, args)
    with pytest.raises(OptionError, match="did you mean knee"):
        graphc.torch.plan(module, args, "Knee")


def test_without_a_goal_a_profile_has_a_memory():
    with torch.device("meta"):
        layers = [torch.nn.Linear(2**12, 2**12) for _ in range(16)]
        args = (torch.empty(2**16, 2**12),)
    usable = gpu_memory("t4").usable_bytes
    module = torch.nn.Sequential(*layers)
    report = graphc.torch.plan(module, args, device="t4").report
    assert report.peak_bytes <= usable < report.plain_bytes
    assert report.extra_time > 0
    assert graphc.torch.plan(module, args, device="h200").report.extra_time == 0


def test_bits_are_bytes():
    """A zero has a sign, what is no number equals itself, and a missing gradient is none."""
    kind = {"y": torch.tensor([0.0, float("nan")]), "frozen": None}
    assert steps.same_bits({"outputs": kind}, {"outputs": dict(kind)}) == {"outputs": True}
    for other in -kind["y"], kind["y"].double(), None:
        changed = {**kind, "y": other}
        assert steps.different({"outputs": changed}, {"outputs": kind}) == ["outputs: y"]
        assert steps.same_bits({"outputs": kind}, {"outputs": changed}) == {"outputs": False}


def test_a_partition_for_another_compiler_holds_its_budget_and_overwrites_nothing():
    """That compiler runs graphs as they are."""

    def make():
        return modules.MODULES["MLP"]("small")

    def kept(graph, _):
        graphs.append(graph)
        return runner(graph)

    graphs, (budget,) = [], budgets_between(make(), [0.6])
    partition = graphc.torch.partition_fn(budget)
    backend = aot_autograd(fw_compiler=kept, bw_compiler=kept, partition_fn=partition)
    module, args = make()
    call = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    run = steps.Run(module, call, args)
    assert all(steps.same_bits(run.bits(), steps.by_aot_eager(make()).bits()).values())
    assert run.peak() <= budget < steps.by_aot_eager(make()).peak()
    forward, backward = ([n.target for n in graph.graph.nodes] for graph in graphs)
    assert set(forward).intersection(backward) - {operator.getitem}
    schemas = [getattr(target, "_schema", None) for target in (*forward, *backward)]
    assert not any(schema is not None and schema.is_mutable for schema in schemas)


def test_a_budget_that_no_plan_holds_is_refused_before_the_step():
    module, args = modules.MODULES["MLP"]("small")
    (least,) = budgets_between((module, args), [0.0])
    with pytest.raises(BudgetError) as refused:
        graphc.torch.plan(module, args, budget=least // 2)
    assert refused.value.least_bytes == least
    first, *lines = str(refused.value).splitlines()
    assert any("network.blocks" in line for line in lines)  # a module at the peak
    before = first.split("of which ")[1].split(" are allocated")[0]
    total = sum(parse_bytes("bytes", " ".join(line.split()[:2])) for line in [before, *lines])
    assert total == pytest.approx(least, rel=0.01)
    assert all(p.grad is None for p in module.parameters())
    graphc.torch.plan(module, args, budget=least)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
def test_torch_s_memory_budget_is_not_monotone_and_graphc_s_is():
    """A stack as in https://github.com/pytorch/pytorch/issues/197838, small enough for a test.

    There, a smaller ``activation_memory_budget`` has a peak several times as high.
    """
    parts = 0.5, 0.35, 0.2, 0.05
    torch.manual_seed(0)
    module, args = (
        modules.Classified(sequences.Llama(8, 64, 4, 2, 64, 128)),
        modules.tokens(128, 4, 64),
    )

    def by_torch(part):
        torch.compiler.reset()
        with torch._functorch.config.patch(activation_memory_budget=part):
            compiled = torch.compile(module, backend="aot_eager_decomp_partition", fullgraph=True)
            return peak_of(steps.Run(module, compiled, args))

    peaks = [by_torch(part) for part in parts]
    assert peaks[-1] > 1.3 * min(peaks)
    assert sorted(peaks, reverse=True) != peaks
    measured = []
    for budget in budgets_between((module, args), parts):
        step = graphc.torch.plan(module, args, budget=budget)
        measured.append(peak_of(steps.Run(module, step, args)))
        assert measured[-1] <= step.report.peak_bytes + 2**16
        assert step.report.peak_bytes <= budget
    assert sorted(measured, reverse=True) == measured


def test_gradients_are_those_of_the_loss_with_its_dropout_repeated():
    """The directional derivative in float64 at one seed, by central differences."""
    module, args = modules.MODULES["TransformerEncoder"]("small")
    module.double()
    step = graphc.torch.plan(module, args, budget=budgets_between((module, args), [0.0])[0])
    assert any("dropout" in row["module"] for row in step.report.json["repeated"])
    steps.Run(module, step, args)()
    parameters = list(module.parameters())
    directions = [torch.randn_like(p) for p in parameters]
    slope = sum((p.grad * d).sum() for p, d in zip(parameters, directions, strict=True)).item()

    def loss_at(distance):
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter += distance * direction
            torch.manual_seed(1)
            found = module(*args).item()
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter -= distance * direction
        return found

    across = 1e-6
    assert (loss_at(across) - loss_at(-across)) / (2 * across * slope) == pytest.approx(1, abs=1e-5)
