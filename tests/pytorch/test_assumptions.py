"""Control flow that depends on data, against eager torch."""

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import OptionError, TorchError  # noqa: E402
from graphc.torch import private  # noqa: E402
from graphc.torch.budget.trace.branches import Outcomes, Tracing, assuming  # noqa: E402
from graphc.torch.private import (  # noqa: E402
    InstructionTranslatorBase,
    TensorVariable,
    TorchInGraphFunctionVariable,
)

PLANS_AGAIN = pytest.mark.filterwarnings(
    "ignore:this step has been planned again for the same shapes, because its control flow depends"
)

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
LARGE = X.clone().index_fill_(0, torch.tensor([0]), float("inf"))


class Layer(nn.Module):
    """Clamps what is not finite, as layers of DETR do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        x = torch.tanh(self.inner(x)) + x
        if not torch.isfinite(x).all():
            x = torch.nan_to_num(x).clamp(-9.0, 9.0)
        return x


class Model(nn.Module):
    """Draws random numbers, and writes a buffer and an attribute."""

    def __init__(self):
        super().__init__()
        self.norm, self.layers = nn.BatchNorm1d(8), nn.Sequential(Layer(), Layer())
        self.limit, self.rows = 1e6, None

    def forward(self, x):
        self.rows = x.shape[0]
        x = torch.dropout(self.norm(self.layers(x)), 0.5, self.training)
        if x.abs().max() > self.limit:
            raise ValueError("too large")
        return x.square().sum()


def results(call, module, x):
    torch.manual_seed(1)
    module.zero_grad()
    loss = call(x)
    loss.backward()
    tensors = [loss, *module.buffers(), *(each.grad for each in module.parameters())]
    return [*(each.detach().clone() for each in tensors), torch.get_rng_state()]


@PLANS_AGAIN
def test_each_outcome_has_a_plan_and_results_are_those_of_eager():
    step = graphc.torch.plan(Model(), (X,), "knee")
    eager = copy.deepcopy(step.module)
    assert (step.module.rows, len(step.plans)) == (None, 1)
    for x, plans in ((X, 1), (LARGE, 2), (X, 2), (LARGE, 2)):
        found, wanted = results(step, step.module, x), results(eager, eager, x)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, equal_nan=True)
        assert len(step.plans) == plans
    assert step.module.norm.num_batches_tracked == 4
    assert step.module.rows == len(X)


@pytest.mark.parametrize("x", [X, LARGE], ids=["finite", "infinite"])
def test_bits_are_those_of_aot_eager_and_values_those_of_eager(x):
    step = graphc.torch.plan(Model(), (x,), max_extra_time=1000.0)
    found = step.verify()
    assert found.same_bits
    assert found.held
    assert not found.unlike_eager


def test_another_outcome_is_an_error_if_asked():
    step = graphc.torch.plan(Model(), (X,), "knee", assume="raise")
    before = [each.clone() for each in step.module.buffers()]
    step.verify()
    with pytest.raises(
        TorchError, match=r"branches on data at test_assumptions\.py:\d+, .* is False .* True; plan"
    ):
        step(LARGE)
    assert all(map(torch.equal, before, step.module.buffers()))
    assert step.module.rows is None
    with pytest.raises(OptionError, match="assume must be 'replan' or 'raise', got 'never'"):
        graphc.torch.plan(Model(), (X,), assume="never")


def test_a_check_that_fails_raises():
    module = Model()
    module.limit = 0.0
    with pytest.raises(ValueError, match="too large"):
        graphc.torch.plan(module, (X,))
    step = graphc.torch.plan(Model(), (X,), "knee")
    with torch.no_grad():
        step.module.norm.weight.fill_(1e9)
    with pytest.raises(ValueError, match="too large"):
        step(X)


class Counting(nn.Module):
    """Reads numbers from tensors, several on one line, and repeats a layer so often."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, lengths):
        if lengths.min() > 0 and not lengths.max() > 9:
            x = x * lengths.float().mean().item()
        for _ in range(int(lengths.max())):
            x = torch.sin(self.inner(x))
        return x[:, : lengths.max().item()].sum() if bool(x.sum() > -1e9) else x.sum()


@PLANS_AGAIN
def test_numbers_of_tensors_become_part_of_a_plan():
    step = graphc.torch.plan(Counting(), (X, torch.tensor([1, 3])), "knee")
    for lengths in map(torch.tensor, ([1, 3], [2, 2], [1, 3])):
        torch.testing.assert_close(step(X, lengths), step.module(X, lengths))
        with torch.no_grad():
            torch.testing.assert_close(step(X, lengths), step.module(X, lengths))
    assert len(step.plans) == 2


def test_the_report_lists_what_is_assumed():
    report = graphc.torch.plan(Model(), (X,), "knee").report
    (finite, limit) = report.json["assumed"]
    assert (finite["value"], finite["times"]) == (True, 2)
    assert (limit["value"], limit["times"]) == (False, 1)
    assert finite["place"].startswith("test_assumptions.py:")
    assert f"{finite['place']}: True, 2 times" in str(report)


def test_other_users_of_dynamo_see_no_difference():
    graphc.torch.plan(Model(), (X,), "knee")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Data-dependent"):
        torch.compile(Layer(), backend="eager", fullgraph=True)(X)


def test_dynamo_is_extended_only_while_a_step_is_called(monkeypatch):
    monkeypatch.setattr(private, "MOST_CHANGES", 10**9)
    owners = InstructionTranslatorBase, TensorVariable, TorchInGraphFunctionVariable
    names = "run", "call_method", "call_function"

    def files():
        functions = (getattr(*each) for each in zip(owners, names, strict=True))
        return {Path(function.__code__.co_filename).name for function in functions}

    with assuming(Tracing(Outcomes())):
        pass
    before = files()
    with assuming(Tracing(Outcomes())):
        assert files() == {"branches.py"}
        with assuming(Tracing(Outcomes())):
            assert files() == {"branches.py"}
        assert files() == {"branches.py"}
    step = graphc.torch.plan(Layer(), (X,), "knee")
    step(X).sum().backward()
    assert files() == before
    assert "branches.py" not in before


def test_functions_that_cannot_all_be_replaced_are_put_back():
    class Owner:
        one = two = "own"

    def make():
        yield Owner, "one", "other"
        yield Owner, "missing", "other"

    replacements = private.Replacements(make)
    for _ in range(2):
        with pytest.raises(AttributeError, match="missing"), replacements.active():
            pass
        assert Owner.one == "own"
