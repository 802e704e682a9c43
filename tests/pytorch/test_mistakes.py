"""Wrong arguments of graphc.torch.plan are told with what they should have been."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers

import graphc  # noqa: E402

LAYER = torch.nn.Linear(4, 4)
X = torch.ones(2, 4)


@pytest.mark.parametrize(
    ("module", "args", "options", "told"),
    [
        (LAYER, X, {}, r"args is a tuple .* such as \(x,\) or \(x, labels\), got Tensor"),
        (LAYER, None, {}, "args is a tuple .* got NoneType"),
        (LAYER, (X,), {"kwargs": [1]}, "kwargs maps names .* got list"),
        (None, (X,), {}, "module is a torch.nn.Module, got NoneType"),
        (LAYER, (X,), {"loss_fn": "mse"}, "loss_fn is a function of output and target, got 'mse'"),
        (LAYER, (), {"loss_fn": torch.nn.MSELoss()}, "the last of args is its target"),
        (LAYER, (X,), {"accumulate": "no"}, "accumulate is True or False, got 'no'"),
        (LAYER, (X,), {"max_extra_time": True}, "max_extra_time is a number from 0 up, got True"),
        (LAYER, (X,), {"budget": 1, "max_extra_time": 0.1}, "a budget or max_extra_time"),
    ],
)
def test_what_is_wrong_is_told(module, args, options, told):
    with pytest.raises(graphc.errors.OptionError, match=told):
        graphc.torch.plan(module, args, **options)
