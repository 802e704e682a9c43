"""State bytes by formula, against the state of torch's optimizers after one step."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from graphc.errors import OptionError  # noqa: E402
from graphc.torch.fit.optimizers import CLASSES, STATES, optimizer_of, state_sizes  # noqa: E402
from graphc.torch.fit.parameters import Parameter, parameters_of  # noqa: E402

SHAPES = [(300, 70), (1, 5000), (5000, 1), (4096,), (4095,), (7,), (), (8, 3, 5, 5), (64, 96, 2)]


class Shapes(nn.Module):
    def __init__(self, dtype=torch.float32, shapes=SHAPES):
        super().__init__()
        made = (nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes)
        self.all = nn.ParameterList(made)


def stepped(optimizer):
    """Sorted bytes of the tensors in an optimizer's state after one step."""
    for group in optimizer.param_groups:
        for each in group["params"]:
            each.grad = torch.randn_like(each)
    optimizer.step()
    tensors = [
        tensor
        for state in optimizer.state.values()
        for tensor in state.values()
        if isinstance(tensor, torch.Tensor)
    ]
    return sorted(each.untyped_storage().nbytes() for each in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "adafactor"])
def test_formulas_have_the_bytes_of_torch(name, dtype):
    module = Shapes(dtype)
    create = {**CLASSES, "adafactor": torch.optim.Adafactor}[name]
    expected = stepped(create(module.parameters()))
    assert sorted(state_sizes(name, parameters_of(module))) == expected
    assert (name == "sgd") == (expected == [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_muon_has_the_bytes_of_torch_for_matrices_and_of_adamw_for_others(dtype):
    network = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 16), nn.LayerNorm(16)).to(dtype)
    embedding, linear, norm = network
    others = [embedding.weight, linear.bias, *norm.parameters()]
    expected = stepped(torch.optim.Muon([linear.weight])) + stepped(torch.optim.AdamW(others))
    assert sorted(state_sizes("muon", parameters_of(network))) == sorted(expected)


def test_frozen_parameters_have_no_state():
    module = Shapes()
    for each in module.parameters():
        each.requires_grad_(False)
    for name in STATES:
        assert state_sizes(name, parameters_of(module)) == []


def test_eight_bit_states_begin_at_4096_elements():
    assert sum(state_sizes("adam8bit", [Parameter((4095,))])) == 2 * 4 * 4095
    assert sum(state_sizes("adam8bit", [Parameter((64, 64))])) == 2 * (4096 + 4 * 16) + 2048


@pytest.mark.parametrize("name", STATES)
def test_fake_steps_allocate_the_states_of_the_formula(name):
    with FakeTensorMode():
        module = Shapes()
        found = stepped(optimizer_of(name, module))
    assert sum(found) == sum(state_sizes(name, parameters_of(module)))


def test_states_are_allocated_once():
    module = Shapes()
    optimizer = optimizer_of("lion", module)
    assert stepped(optimizer) == stepped(optimizer)


def test_unknown_optimizers_are_rejected_with_near_names():
    with pytest.raises(OptionError, match=r"unknown optimizer 'adma'.*did you mean adam") as told:
        state_sizes("adma", [])
    assert "\n" not in str(told.value)
