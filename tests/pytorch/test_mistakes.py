"""Wrong arguments of graphc.torch.plan are told with what they should have been."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphc  # noqa: E402

LAYER = torch.nn.Linear(4, 4)
X = torch.ones(2, 4)
MSE = torch.nn.MSELoss()


@pytest.mark.parametrize(
    ("module", "args", "options", "told"),
    [
        (LAYER, X, {}, r"args must be a tuple .* such as \(x,\) or \(x, labels\), got Tensor"),
        (LAYER, None, {}, "args must be a tuple .* got NoneType"),
        (LAYER, (X,), {"kwargs": [1]}, "kwargs must map names .* got list"),
        (None, (X,), {}, "module must be a torch.nn.Module, got NoneType"),
        (
            LAYER,
            (X,),
            {"loss_fn": "mse"},
            "loss_fn must be a function of output and target, got 'mse'",
        ),
        (LAYER, (), {"loss_fn": MSE}, "the last of args must be the target"),
        (LAYER, (), {}, r"test_mistakes\.py:\d+: Linear cannot be called .* argument: 'input'$"),
        (LAYER, (X,), {"loss_fn": MSE}, "argument: 'input'; .* the last of args is the target"),
        (LAYER, (X, X), {"loss_fn": lambda y: y}, "the module's output and the target: too many"),
        (LAYER, (X.to("meta"),), {}, r"args\[0\] is on meta, but the module is on cpu; move"),
        (torch.jit.ScriptModule(), (X,), {}, "is a ScriptModule, which torch.compile cannot"),
        (LAYER, (X,), {"accumulate": "no"}, "accumulate must be True or False, got 'no'"),
        (
            LAYER,
            (X,),
            {"max_extra_time": True},
            "max_extra_time must be a number of at least 0, got True",
        ),
        (LAYER, (X,), {"budget": 1, "max_extra_time": 0.1}, "either budget or max_extra_time"),
    ],
)
def test_errors_name_the_fault(module, args, options, told):
    with pytest.raises(graphc.errors.OptionError, match=told):
        graphc.torch.plan(module, args, **options)


class Hooked(torch.nn.Linear):
    """Its hook makes two arguments of one."""

    def __init__(self, error):
        super().__init__(4, 4)
        self.error = error
        self.register_forward_pre_hook(lambda _, args: (args[0], args[0]))

    def forward(self, x, scale):
        raise self.error("of the module's own")


@pytest.mark.parametrize("error", [ValueError, TypeError])
def test_what_a_module_raises_that_is_given_other_arguments_by_its_hook(error):
    told = rf"raises an exception .*: {error.__name__}\(.of the module's own.\)"
    with pytest.raises(graphc.errors.TorchError, match=told):
        graphc.torch.plan(Hooked(error), (X,))


def test_planned_modules_are_not_planned_again():
    step = graphc.torch.plan(LAYER, (X,), "knee")
    for module, place in (step, "module"), (torch.nn.Sequential(step), "'0' of the module"):
        with pytest.raises(graphc.errors.OptionError, match=f"{place} is already planned; pass"):
            graphc.torch.plan(module, (X,))


def test_shape_errors_include_the_reason_of_the_op():
    step = graphc.torch.plan(LAYER, (X,), "knee")
    told = r"does not accept .* reduction dim.* got \[2, 3\] X"
    for call in (step, step.verify):
        with pytest.raises(graphc.errors.TorchError, match=told):
            call(torch.ones(2, 3))


def test_plans_are_made_without_grad_and_not_in_inference_mode():
    with torch.no_grad():
        step = graphc.torch.plan(LAYER, (X,), "knee")
        assert not step(X).requires_grad
    assert step(X).requires_grad
    assert len(step.plans) == 1
    with (
        torch.inference_mode(),
        pytest.raises(graphc.errors.TorchError, match="plan outside of it"),
    ):
        graphc.torch.plan(LAYER, (X,))


def test_a_partition_function_needs_a_budget():
    with pytest.raises(graphc.errors.OptionError, match=r"budget must be a size .* got None"):
        graphc.torch.partition_fn(None)
