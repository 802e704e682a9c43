"""State bytes by formula, against optimizers of other packages after one step."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from graphc.torch.fit.optimizers import state_sizes  # noqa: E402
from graphc.torch.fit.parameters import parameters_of  # noqa: E402

pytestmark = [
    pytest.mark.peers,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
]

SHAPES = [(300, 70), (1, 5000), (5000, 1), (4096,), (4095,), (7,), (8, 3, 5, 5), (64, 96, 2)]


def stepped(create, shapes, dtype=torch.float32):
    """Parameter sizes, and bytes of distinct storages in the state after one step."""
    module = nn.Module()
    module.all = nn.ParameterList(nn.Parameter(torch.randn(s).to(dtype)) for s in shapes)
    optimizer = create(list(module.parameters()))
    for each in module.parameters():
        each.grad = torch.randn_like(each)
    optimizer.step()
    storages = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for state in optimizer.state.values()
        for value in state.values()
        for tensor in parts(value)
    }
    return parameters_of(module), sum(storages.values())


def parts(value):
    """The plain tensors of a state, also of a quantized one."""
    if not isinstance(value, torch.Tensor):
        return []
    if not hasattr(value, "__tensor_flatten__"):
        return [value]
    return [getattr(value, name) for name in value.__tensor_flatten__()[0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["Adam8bit", "AdamW8bit"])
def test_adam8bit_has_the_bytes_of_bitsandbytes(name, dtype):
    package = pytest.importorskip("bitsandbytes")
    parameters, found = stepped(getattr(package.optim, name), SHAPES, dtype)
    assert sum(state_sizes("adam8bit", parameters)) == found


def test_adam8bit_has_the_bytes_of_torchao_for_whole_blocks():
    """torchao has a counter and two tables per parameter, and 8 bits only for whole blocks."""
    package = pytest.importorskip("torchao.optim")
    parameters, found = stepped(package.AdamW8bit, [(64, 64), (512, 96)])
    assert sum(state_sizes("adam8bit", parameters)) == found - 2 * 4 - 2048


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lion_has_the_bytes_of_lion_pytorch(dtype):
    package = pytest.importorskip("lion_pytorch")
    parameters, found = stepped(package.Lion, SHAPES, dtype)
    assert sum(state_sizes("lion", parameters)) == found


def test_adafactor_has_the_bytes_of_transformers():
    """A scale of 4 bytes replaces torch's counter; states are float32 for every dtype."""
    package = pytest.importorskip("transformers.optimization")
    parameters, found = stepped(package.Adafactor, SHAPES)
    assert sum(state_sizes("adafactor", parameters)) == found
