"""Planned steps that inductor compiles: peaks, gradients, random numbers, and refusals."""

import itertools
import logging
import shutil

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch_cases.steps import Run  # noqa: E402

import graphc  # noqa: E402
from graphc.devices.device import find_device  # noqa: E402
from graphc.devices.device_memory import DeviceMemory  # noqa: E402
from graphc.errors import OptionError, TorchError  # noqa: E402
from graphc.planner.recompute.solver import Schedule  # noqa: E402
from graphc.torch.budget.dynamo_backend import graphc_backend  # noqa: E402
from graphc.torch.budget.make_step import COMPILES  # noqa: E402
from graphc.torch.budget.plan.compiled import compiled_within  # noqa: E402
from graphc.torch.budget.trace.measure import measured_peak  # noqa: E402
from graphc.torch.fit.answer import request_of  # noqa: E402
from graphc.torch.fit.models import from_function  # noqa: E402
from graphc.torch.fit.options import FitOptions  # noqa: E402
from graphc.torch.fit.plans import compiled_peaks  # noqa: E402
from graphc.torch.fit.step import predict  # noqa: E402
from graphc.torch.versions import is_before  # noqa: E402

WIDTH, ROWS = 128, 2048
SLACK = 2**16
compiles = pytest.mark.skipif(
    is_before(torch.__version__, COMPILES) or not shutil.which("g++"),
    reason="inductor has no custom partition, or finds no compiler",
)


class Loss(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x):
        return self.parts(x).square().mean()


class Block(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow, self.dropout = nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.narrow(nn.functional.gelu(self.wide(self.norm(x)))))


class Branching(nn.Module):
    """A module that branches on data, and writes a part of a buffer."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(10 * ROWS, WIDTH))

    def forward(self, x):
        x = torch.tanh(self.one(x))
        self.seen[: len(x)] = x.detach()
        if x.sum() > 1e9:
            x = x + 1
        return torch.tanh(self.two(torch.sin(x) * x))


class Gated(nn.Module):
    """A module that saves halves of a tensor, and indices."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        one, two = self.wide(x).chunk(2, -1)
        x = self.narrow(nn.functional.silu(one) * two)
        return x * x.gather(1, x.detach().argmax(1, keepdim=True))


def convolutions():
    """Return layers with larger weights than images: inductor saves copies of them."""

    def layer(width):
        return [nn.Conv2d(width, 256, 3, padding=1), nn.BatchNorm2d(256), nn.ReLU()]

    return [*layer(3), *layer(256), nn.MaxPool2d(2), *layer(256), nn.Flatten()]


class Tied(nn.Module):
    """A module that uses one matrix for embeddings and for logits."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WIDTH, 16)
        self.mix = nn.Sequential(nn.Linear(16, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, 16))

    def forward(self, x):
        logits = self.mix(self.words(x)) @ self.words.weight.T
        return nn.functional.cross_entropy(logits, x)


CASES = {
    "layers": lambda: (Loss(*[nn.Linear(WIDTH, WIDTH), nn.Tanh()] * 3), torch.randn(ROWS, WIDTH)),
    "gated": lambda: (Loss(Gated(), Gated()), torch.randn(ROWS, WIDTH)),
    "blocks": lambda: (Loss(Block(), Block(), Block()), torch.randn(ROWS, WIDTH)),
    "branching": lambda: (Loss(Branching()), torch.randn(ROWS, WIDTH)),
    "convolutions": lambda: (Loss(*convolutions()), torch.randn(2, 3, 16, 16)),
}


def gradients_of(step, module, x):
    module.zero_grad()
    step(x).backward()
    return [each.grad.clone() for each in module.parameters()]


def least_and_most(module, x):
    """Return the bytes of the smallest compiled step, and of one without recomputation."""
    with pytest.raises(graphc.BudgetError, match="the smallest one needs") as error:
        graphc.torch.plan(module, (x,), 1, compile=True)
    least = error.value.least_bytes
    torch.compiler.reset()
    most = graphc.torch.plan(module, (x,), max_extra_time=0.0, compile=True).report.peak_bytes
    return least, most


@compiles
@pytest.mark.filterwarnings("ignore")  # of inductor
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "layers" else pytest.mark.slow) for n in CASES],
)
def test_the_plan_bounds_the_peak_and_gradients_are_as_exact_as_those_of_torch(name):
    torch.manual_seed(0)
    module, x = CASES[name]()
    torch.compiler.reset()
    least, most = least_and_most(module, x)
    exact = Loss(*CASES[name]()[0].parts).double()
    exact.load_state_dict(module.state_dict())
    wanted = gradients_of(exact, exact, x.double())
    torch.compiler.reset()
    others = gradients_of(torch.compile(module), module, x)
    module.load_state_dict(exact.state_dict())
    # Where kernels recompute anyway, recomputation in a plan may gain nothing.
    for budget in (least, (least + max(least, most)) // 2):
        torch.compiler.reset()
        step = graphc.torch.plan(module, (x,), budget, compile=True)
        found = step.verify(x)
        assert found.is_compiled
        assert found.held, found
        assert abs(found.measured_peak_bytes - found.planned_peak_bytes) <= SLACK, found
        assert found.planned_peak_bytes <= budget
        assert not found.unlike_eager, found
        largest = max(each.abs().max() for each in wanted)
        for mine, other, right in zip(gradients_of(step, module, x), others, wanted, strict=True):
            mistake, allowed = (mine - right).abs().max(), (other - right).abs().max()
            assert mistake <= 1.5 * allowed + 1e-7 * largest


@compiles
@pytest.mark.filterwarnings("ignore")
def test_a_plan_that_recomputes_dropout_has_the_gradients_of_its_mask():
    """Against differences of losses with the same random numbers."""
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.5))]
    module, x = Loss(*layers).double(), torch.randn(64, 32, dtype=torch.float64)
    least, _ = least_and_most(module, x)
    step = graphc.torch.plan(module, (x,), least, compile=True)
    assert step.report.repeated

    def loss():
        torch.manual_seed(7)
        return step(x)

    loss().backward()
    for part in (module.parts[0], module.parts[3]):
        direction = torch.randn_like(part.weight)
        losses = []
        for distance in (1e-5, -2e-5, 1e-5):
            with torch.no_grad():
                part.weight.add_(distance * direction)
            losses.append(loss().item())
        slope = (losses[0] - losses[1]) / 2e-5
        torch.testing.assert_close(slope, (part.weight.grad * direction).sum().item())


@compiles
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_fit_predicts_the_peaks_of_kernels():
    """Against the measured peak of torch.compile; the plan keeps to the memory."""
    module, x = nn.Sequential(Block(), Block(), Block()), torch.randn(ROWS, WIDTH)
    step = torch.compile(lambda x: module(x).mean())
    run = Run(module, step, (x,))
    run()
    measured = run.peak()
    source, memory = from_function(lambda: (module, (x,)), "blocks"), 1 << 40
    for _ in range(2):
        asked = request_of(
            source,
            FitOptions(optimizer="sgd"),
            find_device("cpu"),
            DeviceMemory("small", memory, memory),
        )
        found = compiled_peaks(asked, predict(asked))
        assert found.torch_bytes == pytest.approx(measured, rel=0.03)
        assert found.planned_bytes <= min(memory, found.torch_bytes)
        memory = int(0.8 * measured)
    assert found.extra_time > 0


@compiles
@pytest.mark.filterwarnings("ignore")
def test_a_plan_that_was_made_before_is_not_lowered_again(monkeypatch):
    """The cache is a file, so the same holds for another process."""
    module, x = CASES["layers"]()
    first = graphc.torch.plan(module, (x,), "64MiB", compile=True).report.peak_bytes
    torch.compiler.reset()
    monkeypatch.delattr("graphc.torch.budget.trace.inductor._lower")
    step = graphc.torch.plan(module, (x,), "64MiB", compile=True)
    assert step.report.peak_bytes == first
    assert abs(step.verify(x).measured_peak_bytes - first) <= SLACK


@compiles
@pytest.mark.filterwarnings("ignore")
def test_outputs_and_their_gradients_are_counted():
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    x = torch.randn(4 * ROWS, WIDTH)
    found = graphc.torch.plan(module, (x,), "1GiB", compile=True).verify()
    assert found.held, found
    assert found.measured_peak_bytes <= found.planned_peak_bytes + 2**16, found


@compiles
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_later_sizes_are_planned_within_the_budget_too():
    """Also if the schedule of the first size would exceed it."""
    module = Loss(Gated(), Gated())
    sizes = (2048, 2000, 1600)
    torch.compiler.reset()
    least = []
    for rows in sizes[:2]:
        with pytest.raises(graphc.BudgetError) as error:
            graphc.torch.plan(module, (torch.randn(rows, WIDTH),), 1, compile=True)
        least.append(error.value.least_bytes)
    step = graphc.torch.plan(module, (torch.randn(2048, WIDTH),), least[0], compile=True)
    for rows in sizes[1:]:
        step(torch.randn(rows, WIDTH)).backward()
    assert all(plan.peak_bytes <= least[0] for plan in step.plans)
    assert len(step.plans) == len(sizes)


@compiles
@pytest.mark.filterwarnings("ignore")
def test_without_a_budget_the_memory_of_the_device_is_the_limit(monkeypatch):
    memory = type("Memory", (), {"usable_bytes": 1000})()
    monkeypatch.setattr("graphc.torch.budget.goal.memory_of", lambda *_: memory)
    with pytest.raises(graphc.BudgetError, match="within the memory of the device, 1,000 bytes"):
        graphc.torch.plan(Loss(nn.Linear(8, 8)), (torch.randn(64, 8),), compile=True)


@compiles
@pytest.mark.filterwarnings("ignore")
def test_an_error_of_inductor_is_one_line(monkeypatch):
    from graphc.torch.budget.trace.inductor import INDUCTOR

    def failing(*_, **__):
        raise torch._inductor.exc.InductorError(OSError("no compiler"), None)

    monkeypatch.setattr(INDUCTOR, "compile_fx", failing)
    with pytest.raises(TorchError, match=r"inductor cannot compile this step: .*no compiler"):
        graphc.torch.plan(Loss(nn.Linear(9, 9)), (torch.randn(65, 9),), "1GiB", compile=True)


@compiles
@pytest.mark.filterwarnings("ignore")
def test_another_size_is_planned_and_compiled_at_its_first_call():
    module = Loss(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    step = graphc.torch.plan(module, (torch.randn(64, WIDTH),), "1GiB", compile=True)
    x = torch.randn(32, WIDTH)
    step(x).backward()
    assert [plan.report.peak_bytes for plan in step.plans] == sorted(
        (plan.report.peak_bytes for plan in step.plans), reverse=True
    )
    assert len(step.plans) == 2
    with torch.no_grad():
        torch.testing.assert_close(step(x), module(x))


@compiles
@pytest.mark.filterwarnings("ignore")
def test_a_budget_that_no_compiled_step_holds_is_refused_with_one_that_does():
    module, x = Loss(nn.Linear(WIDTH, WIDTH), nn.Tanh()), torch.randn(64, WIDTH)
    with pytest.raises(graphc.BudgetError, match="the smallest one needs") as error:
        graphc.torch.plan(module, (x,), 1000, compile=True)
    step = graphc.torch.plan(module, (x,), error.value.least_bytes, compile=True)
    assert step.report.peak_bytes == error.value.least_bytes


@compiles
@pytest.mark.filterwarnings("ignore")
def test_a_product_does_not_wait_for_a_late_addend(monkeypatch):
    """The gradients of logits would be live until that of the embedding is added."""
    module, x = Tied(), torch.arange(ROWS) % WIDTH
    monkeypatch.setattr("graphc.torch.budget.trace.inductor._key_of", lambda *_: None)  # no cache
    torch.compiler.reset()
    peak = graphc.torch.plan(module, (x,), "1GiB", compile=True).report.peak_bytes
    monkeypatch.setattr("graphc.torch.budget.trace.inductor._add_apart", lambda _: None)
    torch.compiler.reset()
    other = graphc.torch.plan(module, (x,), "1GiB", compile=True).report.peak_bytes
    assert peak < other


@compiles
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_trade_off_is_that_of_compiled_steps():
    module, x = Loss(Gated(), Gated()), torch.randn(ROWS, WIDTH)
    torch.compiler.reset()
    points = list(graphc.torch.frontier(module, (x,), compile=True))
    assert len(points) > 1
    for more, fewer in itertools.pairwise(points):
        assert fewer.peak_bytes < more.peak_bytes
        assert fewer.extra_time > more.extra_time
    torch.compiler.reset()
    step = graphc.torch.plan(module, (x,), points[-1].peak_bytes, compile=True)
    found = step.verify()
    assert found.held, found
    assert found.measured_peak_bytes <= points[-1].peak_bytes + SLACK


@compiles
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_step_with_a_mode_of_torch_compile_holds_its_peak():
    module, x = Loss(Gated()), torch.randn(ROWS, WIDTH)
    mode = "max-autotune-no-cudagraphs"
    torch.compiler.reset()
    assert graphc.torch.plan(module, (x,), "1GiB", compile=mode).verify().held


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(8, 8)

    def forward(self, x):
        x = self.part(x)
        torch._dynamo.graph_break()
        return self.part(x).sum()


@compiles
@pytest.mark.filterwarnings("ignore")
def test_the_backend_of_torch_compile_holds_its_budget(caplog):
    module, x = Loss(Gated()), torch.randn(ROWS, WIDTH)
    torch.compiler.reset()
    wanted = gradients_of(module, module, x)
    options = {"budget": "15MiB"}
    with caplog.at_level(logging.INFO, "graphc.torch"):
        compiled = torch.compile(module, backend="graphc", options=options)
        found = gradients_of(compiled, module, x)
    assert "peak" in caplog.text
    assert "  parts.0" in caplog.text
    torch.testing.assert_close(found, wanted)
    module.zero_grad()
    run = lambda: compiled(x).backward()  # noqa: E731
    assert measured_peak(run, [*module.parameters(), x]) <= 15 * 2**20


@compiles
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (lambda: Broken(), {"budget": "1GiB"}, r"breaks the graph at .*test_compiled.py:"),
        (lambda: Loss(nn.Linear(8, 8)), {"budget": 1000}, "no compiled step within 1,000 bytes"),
        (lambda: Loss(nn.Linear(8, 8)), {"budge": 1000}, "did you mean budget"),
        (lambda: Loss(nn.Linear(8, 8)), {"mode": "reduce-overhead"}, "uses CUDA graphs"),
    ],
)
def test_the_backend_refuses_what_it_cannot_bound(module, options, message):
    compiled = torch.compile(module(), backend=graphc_backend, options=options)
    with pytest.raises(Exception, match=message):
        compiled(torch.randn(64, 8))


class Fake:
    """A planner of schedules whose kernels take 16 bytes less, and at least 60."""

    least, fastest = Schedule([50], 150.0, 50), Schedule([200], 0.0, 200)

    def __init__(self):
        self.problem = type("Problem", (), {"fixed_bytes": 0})()
        self.lowered = []
        self.kernels = lambda size: max(size - 16, 60)

    def within(self, budget):
        return Schedule([budget], 200.0 - budget, budget) if 50 <= budget <= 200 else None

    def made(self, schedule):
        self.lowered.append(schedule)
        peak = self.kernels(schedule.peak_bytes)
        report = type("Report", (), {"extra_time": schedule.extra_cost})()
        return type("Plan", (), {"peak_bytes": peak, "report": report})()


@pytest.mark.parametrize("budget", [60, 70, 100, 150])
def test_the_capacity_is_corrected_until_kernels_use_the_budget(budget):
    planner = Fake()
    found = compiled_within(planner, budget, None, planner.made, "")
    assert found.peak_bytes == budget
    assert len(planner.lowered) <= 3


def test_a_budget_below_all_kernels_names_the_fewest_bytes():
    planner = Fake()
    with pytest.raises(graphc.BudgetError, match="within 55 bytes") as error:
        compiled_within(planner, 55, None, planner.made, "")
    assert error.value.least_bytes == 60


def test_small_schedules_are_tried_at_last():
    """Kernels of the others all need the same bytes."""
    planner = Fake()
    planner.kernels = lambda size: 104 if 60 < size <= 104 else size
    assert compiled_within(planner, 100, None, planner.made, "").peak_bytes == 57


def test_the_bytes_that_an_error_names_are_a_budget_that_holds():
    planner = Fake()
    planner.kernels = lambda size: 57 if size in (55, 57) else max(size, 60)
    with pytest.raises(graphc.BudgetError) as error:
        compiled_within(planner, 45, None, planner.made, "")
    assert error.value.least_bytes == 57
    assert compiled_within(planner, 57, None, planner.made, "").peak_bytes == 57


REFUSED = {
    "no mode": ({"compile": "max"}, "unknown compile 'max'"),
    "with CUDA graphs": ({"compile": "reduce-overhead"}, "uses CUDA graphs"),
    "no bool": ({"compile": 1}, "compile must be True, False or one of default"),
    "with a host": ({"compile": True, "host_budget": "1GiB"}, "does not support host_budget"),
    "with sizes": ({"compile": True, "sizes": {"x": {0: (2, 4)}}}, "leave out sizes"),
    "on a profile": ({"compile": True, "device": "h100"}, "no device profile"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_go_together_are_refused(name, monkeypatch):
    monkeypatch.setattr("graphc.torch.budget.make_step.COMPILES", (2, 0))
    options, message = REFUSED[name]
    with pytest.raises(OptionError, match=message):
        graphc.torch.plan(nn.Linear(2, 2), (torch.ones(2, 2),), "1GiB", **options)


def test_older_versions_of_torch_are_refused(monkeypatch):
    monkeypatch.setattr("graphc.torch.budget.make_step.COMPILES", (99, 0))
    with pytest.raises(TorchError, match=r"compile=True needs torch 99\.0 or newer"):
        graphc.torch.plan(nn.Linear(2, 2), (torch.ones(2, 2),), "1GiB", compile=True)
