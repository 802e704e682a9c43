"""Options, names and states of planned steps that meet: outcomes, children, threads, profiles."""

import logging
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import OptionError, TorchError  # noqa: E402
from graphc.torch.budget.trace.assumptions import Assumptions  # noqa: E402
from graphc.torch.private import IgnoredFunctionVariable  # noqa: E402

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))

PLANS_AGAIN = pytest.mark.filterwarnings("ignore:this step has been planned again")


class Model(nn.Module):
    """A linear layer, followed by a given function."""

    def __init__(self, function):
        super().__init__()
        self.inner, self.function = nn.Linear(8, 8), function

    def forward(self, x, *more):
        return self.function(self.inner(x), *more)


def doubled_if_positive(x):
    return x * 2 if x.sum() > 0 else x.sin()


def test_a_value_that_dynamo_does_not_ask_for_does_not_shift_the_others():
    module = Model(lambda h, a, b, c: h * max(a, b) * (2 if c.item() > 3 else 5))
    given = (X, *map(torch.tensor, (2.0, 3.0, 3.5)))
    step = graphc.torch.plan(module, given, "knee")
    torch.testing.assert_close(step(*given), module(*given))
    (assumed,) = step.report.assumed
    assert assumed.value == 3.5


def test_an_item_that_is_only_multiplied_is_part_of_the_graph():
    module = Model(lambda h, c: h * c.item())
    step = graphc.torch.plan(module, (X, torch.tensor(3.5)), "knee")
    for value in (3.5, -1.0):
        given = X, torch.tensor(value)
        assert torch.equal(step(*given), module(*given))
    assert len(step.plans) == 1


@PLANS_AGAIN
def test_values_of_another_type_are_other_outcomes():
    module = Model(lambda h, c: h * c.item() * int(c) + bool(c))
    step = graphc.torch.plan(module, (X, torch.tensor(1)), "knee")
    for value in (1, 1.5, True, 1, 1.0, 2.5, 2):
        given = (X, torch.tensor(value))
        torch.testing.assert_close(step(*given), module(*given))


@PLANS_AGAIN
def test_verify_checks_the_plan_for_the_outcomes_of_its_arguments():
    step = graphc.torch.plan(Model(doubled_if_positive), (X,), "knee")
    for x in (-X * 9, X * 9, -X * 9):
        assert step.verify(x).same_bits
    assert {plan.report.assumed[0].value for plan in step.plans} == {True, False}
    strict = graphc.torch.plan(
        Model(lambda h, c: h * c.item()), (X, torch.tensor(1)), "knee", assume="raise"
    )
    with pytest.raises(TorchError, match=r"the value is 2 .* assumes 1"):
        strict.verify(X, torch.tensor(2))


@PLANS_AGAIN
def test_nan_is_one_outcome():
    module = Model(lambda h, c: h * c.item())
    step = graphc.torch.plan(module, (X, torch.tensor(1.0)), "knee")
    step(X, torch.tensor(float("nan")))
    plans = len(step.plans)
    for value in (1.0, float("nan"), 1.0, float("nan")):
        step(X, torch.tensor(value))
    assert len(step.plans) == plans


@PLANS_AGAIN
def test_another_thread_may_change_the_current_outcomes():
    step = graphc.torch.plan(Model(doubled_if_positive), (X,), "knee")
    first = step.assumptions.current

    class Disturbed(Assumptions):
        @property
        def current(self):
            return first

        @current.setter
        def current(self, _):
            pass

    step.assumptions.__class__ = Disturbed
    for x in (X, -X, X * 3):
        torch.testing.assert_close(step(x), step.module(x))


def test_gradients_of_other_threads_stay_while_outcomes_are_recorded():
    step = graphc.torch.plan(Model(doubled_if_positive), (X,), "knee")
    weight = step.module.inner.weight

    def learning(h):
        weight.grad = torch.ones_like(weight)  # as another thread
        return doubled_if_positive(h)

    step.module.function = learning
    step.assumptions._rehearse(step, ((X,), {}))
    assert weight.grad is not None


def test_outcomes_are_recorded_without_copies_of_parameters():
    module = Model(doubled_if_positive)
    module.large = nn.Linear(1024, 1024)
    step = graphc.torch.plan(module, (X,), "knee")
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        step.assumptions._rehearse(step, ((X,), {}))
    events = profile.profiler.kineto_results.events()
    sizes = [each.nbytes() for each in events if each.name() == "[memory]"]
    assert sizes
    assert max(sizes) < module.large.weight.nbytes


def test_parameters_that_a_forward_pass_writes_are_restored():
    def writing(h, weight):
        with torch.no_grad():
            weight.clamp_(-0.01, 0.01)
        return doubled_if_positive(h)

    module = Model(writing)
    before = module.inner.weight.detach().clone()
    step = graphc.torch.plan(module, (X, module.inner.weight), "knee")
    assert torch.equal(module.inner.weight, before)
    assert len(step.plans) == 1


class Named(nn.Module):
    """A module whose children and attributes have names that a step might use."""

    def __init__(self):
        super().__init__()
        self.loss, self.goal, self.plans = nn.MSELoss(), nn.Linear(8, 8), nn.Identity()
        self.settled, self.options, self.sizes = (nn.Identity() for _ in range(3))
        self.scale = 1.0

    @property
    def device(self):
        return self.goal.weight.device

    def forward(self, x):
        hidden = self.sizes(self.options(self.settled(self.plans(self.goal(x)))))
        return self.loss(hidden, x) * self.scale


class Usual(nn.Module):
    """A module with a property, a method and an attribute of usual names."""

    def __init__(self):
        super().__init__()
        self.inner, self.sizes = nn.Linear(8, 8), [8, 8]

    @property
    def options(self):
        return {"scale": 2.0}

    def computed(self, x):
        return self.inner(x) * self.options["scale"]

    def forward(self, x):
        return self.computed(x)


def test_modules_may_have_usual_names():
    module = Usual()
    step = graphc.torch.plan(module, (X,), "knee")
    torch.testing.assert_close(step(X), module(X))
    assert (step.sizes, step.options) == ([8, 8], {"scale": 2.0})
    step.sizes = [4]
    assert module.sizes == [4]
    step(X).sum().backward()


def test_children_may_have_any_name():
    module = Named()
    step = graphc.torch.plan(module, (X,), "knee")
    torch.testing.assert_close(step(X), module(X))
    assert (step.loss, step.device) == (module.loss, torch.device("cpu"))
    assert set(step.state_dict()) == {"goal.weight", "goal.bias"}


@PLANS_AGAIN
def test_attributes_of_the_module_may_be_set():
    module = Named()
    step = graphc.torch.plan(module, (X,), "knee")
    step.scale = 3.0
    assert module.scale == 3.0
    torch.testing.assert_close(step(X), module(X))


def test_a_head_without_number_of_labels_is_planned():
    class ForImageClassification(nn.Linear):
        config = SimpleNamespace(problem_type=None)

        def forward(self, x, labels):
            return super().forward(x) - labels

    step = graphc.torch.plan(ForImageClassification(8, 8), (X, X), "knee")
    assert step.settled == ()


def test_control_flow_on_tensors_without_data_is_refused():
    with torch.device("meta"):
        module, x = Model(doubled_if_positive), torch.empty(4, 8)
    with pytest.raises(TorchError, match="control flow depends on data"):
        graphc.torch.plan(module, (x,))


def test_autocast_of_another_device_is_refused_for_a_profile():
    autocast = torch.autocast("cuda", torch.bfloat16, enabled=False)
    with pytest.raises(OptionError, match=r"autocast must be a dtype .* autocast=torch\.bfloat16"):
        graphc.torch.plan(Model(torch.sin), (X,), device="h100", autocast=autocast)


def test_a_missing_loss_is_told_without_lines_of_torch():
    with pytest.raises(OptionError, match="loss selects no tensor") as found:
        graphc.torch.plan(Model(torch.sin), (X,), loss="missing")
    assert "user code" not in str(found.value)


@pytest.mark.skipif(IgnoredFunctionVariable is None, reason="needs ignored functions")
def test_functions_of_logging_are_left_out(caplog):
    def logs(h):
        logging.warning("seen %s", "once")
        return h.sin()

    graphc.torch.plan(Model(logs), (X,), "knee")
    assert "seen once" in caplog.text


def test_verify_compares_with_aot_eager_under_the_same_autocast():
    attention = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
    given = (torch.randn(4, 16, 32, requires_grad=True),) * 3
    step = graphc.torch.plan(
        attention, given, "knee", kwargs={"need_weights": False}, autocast=torch.bfloat16
    )
    assert step.verify().same_bits
