"""A verified step: what is measured, what is compared, and that it leaves no trace."""

import itertools
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import OptionError, TorchError  # noqa: E402
from graphc.torch.budget.report.verify import compared  # noqa: E402

aten = torch.ops.aten


class Part(nn.Module):
    """A norm with running statistics, dropout, and an op with a workspace of its own."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 64), nn.BatchNorm1d(64)

    def forward(self, x):
        return x + nn.functional.dropout(nn.functional.gelu(self.norm(self.linear(x))), 0.2)


class Parts(nn.Module):
    """Two outputs, of which one is no scalar."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Part() for _ in range(3))
        self.frozen = nn.Parameter(torch.ones(64), requires_grad=False)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x.square().sum(), x * self.frozen


def module_and_args():
    torch.manual_seed(0)
    return Parts(), (torch.randn(256, 64),)


def everything(module):
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    found = {name: each.detach().clone() for name, each in tensors.items()}
    found["random state"] = torch.get_rng_state()
    return found


@pytest.mark.parametrize("accumulate", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_step_holds_its_peak_and_bits_and_leaves_no_trace(accumulate):
    module, args = module_and_args()
    step = graphc.torch.plan(module, args, max_extra_time=1.0, accumulate=accumulate)
    module.parts[0].linear.weight.grad = old = torch.randn(64, 64)
    before, kept = everything(module), old.clone()
    found = step.verify()
    assert found.same_bits
    assert found.held
    assert set(found.different) == {"outputs", "gradients", "buffers", "random_state"}
    assert found.measured_peak_bytes <= found.planned_peak_bytes + 2048
    assert found.ratio > 0.97
    after = everything(module)
    assert all(torch.equal(after[name], each) for name, each in before.items())
    grads = {name: each.grad for name, each in module.named_parameters() if each.grad is not None}
    assert list(grads) == ["parts.0.linear.weight"]
    assert grads["parts.0.linear.weight"] is old
    assert torch.equal(old, kept)


def test_what_differs_is_named(monkeypatch):
    """The plan's backward graph is given an op that doubles one gradient."""
    from graphc.torch.budget import goal as planning

    checked = planning.checked

    def changed(torch_steps, found):
        forward, backward, replay = checked(torch_steps, found)
        (output,) = (node for node in backward.graph.nodes if node.op == "output")
        returned = list(output.args[0])
        place = next(at for at, node in enumerate(returned) if node is not None)
        with backward.graph.inserting_before(output):
            returned[place] = backward.graph.call_function(aten.mul.Tensor, (returned[place], 2))
        output.args = (tuple(returned),)
        return forward, backward, replay

    monkeypatch.setattr(planning, "checked", changed)
    module, args = module_and_args()
    found = graphc.torch.plan(module, args, "knee").verify()
    assert not found.same_bits
    assert found.different["gradients"] == ("parts.0.linear.weight",)
    assert not found.different["buffers"] + found.different["outputs"]
    assert "other bits     gradients: parts.0.linear.weight" in str(found)
    assert "same bits      outputs, buffers, random state" in str(found)


CALLS = itertools.count(1)


@torch.library.custom_op("graphc_tests::varying", mutates_args=())
def varying(x: torch.Tensor) -> torch.Tensor:
    """Add a number that every call increases, as a kernel with atomic additions might."""
    return x + 2.0**-20 * next(CALLS)


@torch.library.custom_op("graphc_tests::passed", mutates_args=())
def passed(x: torch.Tensor) -> torch.Tensor:
    """Return a copy, whose gradient is not deterministic."""
    return x.clone()


varying.register_fake(torch.empty_like)
passed.register_fake(torch.empty_like)
passed.register_autograd(lambda _, gradient: varying(gradient))


class Varying(nn.Module):
    """Two parts, of which an op that is not deterministic changes the gradients of one."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(passed(self.first(x))).square().mean()


def test_tensors_that_aot_eager_does_not_repeat_do_not_count():
    x = torch.randn(4, 8)
    found = graphc.torch.plan(Varying(), (x,), "knee").verify()
    assert found.same_bits
    assert found.not_repeatable == {"gradients": ("first.weight", "first.bias")}
    assert found.json["not_repeatable"] == found.not_repeatable
    row = "not repeatable gradients: first.weight, first.bias (two runs of aot_eager differ)"
    assert row in str(found)
    assert "same bits      outputs, buffers, random state" in str(found)


def test_aot_eager_runs_again_only_for_other_bits():
    from graphc.torch.budget.report.verify import MOST_RUNS, _apart

    def bits(**tensors):
        found = {name: torch.tensor(value) for name, value in tensors.items()}
        return {"outputs": {}, "gradients": found}

    runs = []

    def repeated(found):
        return lambda: (runs.append(0), found[min(len(runs), len(found)) - 1])[1]

    wanted, other = bits(a=1.0, b=1.0, c=1.0), bits(a=1.0, b=2.0, c=1.0)
    assert _apart(wanted, wanted, repeated([other])) == ({"outputs": (), "gradients": ()}, {})
    assert not runs
    # A rare difference is found by a later run.
    told = _apart(other, wanted, repeated([wanted, bits(a=3.0, b=3.0, c=1.0)]))
    assert told == ({"outputs": (), "gradients": ()}, {"gradients": ("a", "b")})
    assert len(runs) == 2
    told = _apart(bits(a=1.0, b=2.0, c=2.0), wanted, repeated([other]))
    assert told == ({"outputs": (), "gradients": ("c",)}, {"gradients": ("b",)})
    assert len(runs) == 2 + MOST_RUNS - 1


def test_the_worst_node_is_that_whose_workspace_is_wrong(monkeypatch):
    from graphc.torch.budget import goal as planning

    measure, wrong = planning.measure, 3_000_000

    def changed(joint):
        found = measure(joint)
        node = [each for each in found if each.target is aten.gelu.default][1]
        return {**found, node: replace(found[node], workspace=found[node].workspace + wrong)}

    monkeypatch.setattr(planning, "measure", changed)
    module, args = module_and_args()
    step = graphc.torch.plan(module, args, "knee")
    with pytest.raises(
        TorchError, match=r"measured peak .* is not the planned one(.|\n)*of parts.1"
    ):
        step.verify()
    found = compared(step, step.assumptions, (args, {}))
    assert found.worst.module == "parts.1"
    assert found.worst.node.startswith("gelu")
    assert found.worst.planned_bytes - found.worst.measured_bytes == wrong
    assert "of parts.1: planned" in str(found)
    assert found.json["worst"]["module"] == "parts.1"
    assert not found.held  # too much was planned


def test_the_peak_is_that_of_the_allocator(monkeypatch):
    """A plan that knows of no workspace says too little: dropout takes one as large as x."""
    from graphc.torch.budget import goal as planning

    measure = planning.measure

    def changed(joint):
        found = measure(joint)
        return {node: replace(each, workspace=0) for node, each in found.items()}

    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return nn.functional.dropout(self.w * x, 0.5).sum()

    monkeypatch.setattr(planning, "measure", changed)
    x = torch.randn(1 << 20)
    step = graphc.torch.plan(Dropped(), (x,), "knee")
    with pytest.raises(TorchError, match=r"measured 4\.00 MiB more"):
        step.verify()
    found = compared(step, step.assumptions, ((x,), {}))
    assert found.same_bits
    assert not found.held
    assert found.measured_peak_bytes - found.planned_peak_bytes == x.nbytes
    assert found.worst.node.startswith("native_dropout")
    assert "measured 4.00 MiB more" in str(found)


@pytest.mark.parametrize(
    "kind", ["inputs", "gradients", pytest.param("parameters", marks=pytest.mark.slow)]
)
def test_what_is_there_before_a_step_is_measured_too(kind, monkeypatch):
    """A plan that leaves some of it out says too little by just that."""
    from graphc.torch.budget import step as planning

    held_by, left_out = planning.held_by, []

    def changed(*given):
        found = held_by(*given)
        left_out.append(getattr(found, kind))
        return replace(found, **{kind: 0})

    monkeypatch.setattr(planning, "held_by", changed)
    args = (torch.randn(80, 4096),)
    step = graphc.torch.plan(nn.Linear(4096, 80), args, "knee", accumulate=True, reserve=4096)
    with pytest.raises(TorchError, match=r"measured peak .* is not the planned one"):
        step.verify()
    found = compared(step, step.assumptions, (args, {}))
    assert found.measured_peak_bytes - found.planned_peak_bytes == left_out[-1]
    assert left_out[0] > 2**20
    assert not found.held


def test_arguments_are_those_of_the_plan_while_they_are_there():
    module, args = module_and_args()
    step = graphc.torch.plan(module, args, "knee")
    del args
    with pytest.raises(OptionError, match=r"no longer exist; pass arguments to verify\(\)"):
        step.verify()
    assert step.verify(torch.randn(32, 64)).same_bits  # another shape, planned as it comes
    assert len(step.plans) == 2


class Alternating(nn.Module):
    """Does another thing at every call, and keeps its last result as a plain attribute."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls, self.last = nn.Linear(8, 8), 0, torch.zeros(4, 8)

    def forward(self, x):
        self.calls += 1
        found = self.layer(x) * (1 + self.calls % 2)
        self.last.copy_(found.detach())
        return found


def test_counters_and_plain_attributes_are_left_as_they_were():
    module, args = Alternating(), (torch.randn(4, 8),)
    found = graphc.torch.plan(module, args, "knee").verify()
    assert found.same_bits
    assert module.calls == 0
    assert torch.equal(module.last, torch.zeros(4, 8))


class Remembering(nn.Module):
    """Keeps what it has seen, in other objects at every call."""

    def __init__(self):
        super().__init__()
        self.layer, self.last, self.step = nn.Linear(8, 8), None, torch.zeros(())
        self.seen, self.by_name = [torch.zeros(8)], {"counts": [0], "names": set()}
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        found = self.layer(x) * len(self.seen)
        if self.last is not None:
            found = found + self.last
        self.last, self.step, self.mean = found.detach(), self.step + 1, x.mean(0)
        self.seen.append(self.mean)
        self.by_name["counts"].append(1)
        self.by_name["more"] = self.step
        return found


def test_attributes_that_become_others_are_left_as_they_were():
    module, args = Remembering(), (torch.randn(4, 8),)
    step, mean, zeros = module.step, module.mean, module.seen[0]
    found = graphc.torch.plan(module, args, "knee").verify()
    assert found.same_bits
    assert found.measured_peak_bytes <= found.planned_peak_bytes
    assert module.last is None
    assert module.step is step
    assert module.mean is mean
    assert len(module.seen) == 1
    assert module.seen[0] is zeros
    assert module.by_name == {"counts": [0], "names": set()}


@pytest.fixture
def eager_step(monkeypatch):
    """Return a function that changes the results of eager torch, and returns a planned step."""

    def changed(change):
        module, args = module_and_args()
        step = graphc.torch.plan(module, args, "knee")
        assert (found := step.verify(*args)).unlike_eager == {}
        assert not found.eager_error
        call = type(step).unplanned

        def unplanned(self, *given):
            found = call(self, *given)
            return found if torch.compiler.is_compiling() else change(found)

        monkeypatch.setattr(type(step), "unplanned", unplanned)
        return step.verify(*args)

    return changed


def test_an_error_of_eager_torch_is_reported(eager_step):
    def fail(_):
        raise RuntimeError("modified by an inplace operation\nmore")

    found = eager_step(fail)
    assert found.same_bits
    assert found.json["eager_error"] == "modified by an inplace operation"
    assert "eager torch fails: modified by an inplace operation\n" in str(found)


def test_differences_of_aot_eager_are_not_blamed_on_the_plan(eager_step):
    found = eager_step(lambda y: (2 * y[0], y[1]))
    assert found.same_bits
    assert found.unlike_eager["outputs output 0"] == pytest.approx(0.5, abs=1e-4)
    assert "outputs output 0 differs from eager by 0.5" in str(found)


def test_a_dispatch_mode_is_named():
    from torch.utils.flop_counter import FlopCounterMode

    module, args = module_and_args()
    step = graphc.torch.plan(module, args, "knee")
    with FlopCounterMode(display=False), pytest.raises(TorchError, match="under a FlopCounterMode"):
        step(*args)
    with FlopCounterMode(display=False), pytest.raises(TorchError, match="under a FlopCounterMode"):
        graphc.torch.plan(module, args)
