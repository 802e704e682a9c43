"""A step looks like its module: class, attributes, signature, and keys of the state."""

import copy
import inspect
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import graphc  # noqa: E402

X = torch.randn(4, 8)


class Model(nn.Module):
    """Has a child named as an attribute of the step, parameters of its own, and a config."""

    main_input_name = "x"

    def __init__(self):
        super().__init__()
        self.module, self.config = nn.BatchNorm1d(8), {"width": 8}
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("offset", torch.zeros(8))
        self.register_buffer("mask", torch.ones(8), persistent=False)

    def forward(self, x, *, power: int = 1):
        return self.module(x * self.scale**power + self.offset) * self.mask

    def generate(self):
        return "generated"

    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        self.extra = state


def planned(module=None, args=(X,), **options):
    return graphc.torch.plan(Model() if module is None else module, args, **options)


def test_class_signature_and_attributes_are_those_of_the_module():
    step = planned()
    assert isinstance(step, Model)
    assert inspect.signature(step.forward) == inspect.signature(Model().forward)
    assert (step.config, step.main_input_name, step.generate()) == ({"width": 8}, "x", "generated")
    assert {"config", "generate", "report"} <= set(dir(step))
    with pytest.raises(AttributeError, match="'Model' object has no attribute 'missing'"):
        step.missing  # noqa: B018


def test_names_and_states_are_those_of_the_module():
    module = Model()
    step = planned(module)
    for names in ("named_parameters", "named_buffers", "named_children"):
        assert list(dict(getattr(step, names)())) == list(dict(getattr(module, names)()))
    wanted = module.state_dict()
    assert step.state_dict().keys() == wanted.keys()
    assert nn.Sequential(step).state_dict().keys() == nn.Sequential(module).state_dict().keys()
    assert "_extra_state" in wanted

    other = planned(Model())
    with torch.no_grad():
        module.scale.fill_(2)
    nn.Sequential(other).load_state_dict(nn.Sequential(step).state_dict())
    assert torch.equal(other.module.scale, module.scale)
    assert other.extra == {"version": 3}
    plain = Model()
    plain.load_state_dict(step.state_dict())
    assert torch.equal(plain(X), step(X))


def test_a_loss_that_is_a_module_is_a_child():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, found, target):
            return ((found - target) * self.weight).square().mean()

    class Model(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.loss_fn = nn.Linear(8, 8)

    module, loss = Model(), Loss()
    step = planned(module, (X, X), loss_fn=loss)
    names = [*dict(module.named_parameters()), "loss_fn_.weight"]
    assert list(dict(step.named_parameters())) == list(step.state_dict()) == names
    assert "loss_fn_" not in dict(module.named_children())
    step(X, X).backward()
    assert loss.weight.grad is not None
    assert step.report.held.parameters == sum(each.nbytes for each in step.parameters())
    other = planned(Model(), (X, X), loss_fn=Loss())
    other.load_state_dict({**step.state_dict(), "loss_fn_.weight": torch.zeros(8)})
    assert torch.equal(other.weight, module.weight)
    assert not other.loss_fn.weight.any()


def test_modes_and_conversions_reach_the_module():
    module = Model()
    step = planned(module)
    step.eval()
    assert not any(each.training for each in (step, module, module.module))
    step.train()
    assert all(each.training for each in (step, module, module.module))
    seen = []
    step.apply(lambda each: seen.append(each))
    assert seen == [module.module, module]
    step.double()
    assert module.scale.dtype == module.offset.dtype == torch.float64
    module.lstm = nn.LSTM(8, 8)
    planned(module.lstm, (X,)).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of weights that are no longer in one storage
        assert module.lstm(X.double())[0].dtype == torch.float64


def test_a_copy_shares_nothing():
    step = planned()
    copied = copy.deepcopy(step)
    copied.double()
    assert copied.module.scale is copied.scale
    assert copied.scale.dtype == torch.float64
    assert step.scale.dtype == torch.float32
    assert inspect.signature(copied.forward) == inspect.signature(step.forward)
    assert copied(X.double()).dtype == torch.float64
    assert step(X).dtype == torch.float32
