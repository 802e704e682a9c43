"""LoRA and 4-bit layers by formula, and their bytes on tensors without data."""

import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from graphc.errors import OptionError  # noqa: E402
from graphc.torch.budget.trace.measure import measured_peak  # noqa: E402
from graphc.torch.fit.adapters import (  # noqa: E402
    Int8Linear,
    Nf4Linear,
    add_lora,
    nf4_sizes,
    quantize_base,
)
from graphc.torch.fit.options import Lora  # noqa: E402


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.v_proj = nn.Linear(64, 64), nn.Linear(64, 32)
        self.norm = nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(self.q_proj(x))


@pytest.fixture
def network():
    return nn.Sequential(Block(), Block(), nn.Linear(64, 10))


@pytest.fixture
def without_peft(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)


def trained(module):
    return sum(each.numel() for each in module.parameters() if each.requires_grad)


def test_nf4_approaches_the_bits_of_the_paper():
    """QLoRA, section 3: 0.127 bits per weight in addition to 4."""
    count = 64 * 256 * 100_000
    assert 8 * sum(nf4_sizes(count)) / count == pytest.approx(4.127, abs=5e-4)


def test_nf4_rounds_up_to_whole_bytes_and_blocks():
    assert nf4_sizes(65)[:3] == (33, 2, 4)
    assert nf4_sizes(64 * 257)[:3] == (32 * 257, 257, 8)


@pytest.mark.usefixtures("without_peft")
def test_adapters_have_two_matrices_of_the_rank(network):
    add_lora(network, Lora(4, ("q_proj", "v_proj")))
    assert trained(network) == 2 * 4 * ((64 + 64) + (64 + 32))
    network(torch.randn(3, 64)).sum().backward()
    assert all((each.grad is not None) == each.requires_grad for n, each in
               network.named_parameters() if "q_proj" in n)  # fmt: skip


@pytest.mark.usefixtures("without_peft")
def test_without_targets_every_linear_layer_has_an_adapter(network):
    add_lora(network, Lora(4))
    assert trained(network) == 4 * (2 * (64 + 64) + 2 * (64 + 32) + 64 + 10)


def test_unknown_targets_are_rejected_with_near_names(network):
    with pytest.raises(OptionError, match=r"the name 'q_porj'; did you mean q_proj\?") as told:
        add_lora(network, Lora(4, ("q_porj",)))
    assert "\n" not in str(told.value)


@pytest.mark.usefixtures("without_peft")
def test_targets_that_are_not_linear_need_peft(network):
    with pytest.raises(OptionError, match=r"norm is a LayerNorm.*pip install peft"):
        add_lora(network, Lora(4, ("norm",)))


def test_hidden_linear_layers_are_quantized(network):
    quantize_base(network)
    names = [name for name, each in network.named_modules() if isinstance(each, Nf4Linear)]
    assert names == ["0.q_proj", "0.v_proj", "1.q_proj", "1.v_proj", "2"]
    stored = [*network[0].q_proj.parameters(), *network[0].q_proj.buffers()]
    assert sum(each.nbytes for each in stored) == 64 * 32 + 64 + 4 + 1092 + 4 * 64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_bytes_of_layers_in_8_bits(dtype):
    """One layer with many outputs: its integer sums; with many inputs: its dequantized weight."""
    rows, size = 64, dtype.itemsize
    cases = [(32, 8192, rows * 8192 * (4 + 2 + (0 if dtype is torch.float16 else size)))]
    if dtype is torch.float32:  # torch's 16-bit products have temporaries on a CPU
        cases.append((8192, 512, 8192 * 512 * size + rows * 8192 * size))
    for inputs, outputs, expected in cases:
        layer = Int8Linear(nn.Linear(inputs, outputs, bias=False).to(dtype))
        stored = [*layer.parameters(), *layer.buffers()]
        assert sum(each.nbytes for each in stored) == outputs * (inputs + 4)
        x = torch.randn(rows, inputs, dtype=dtype, requires_grad=True)
        found = measured_peak(lambda layer=layer, x=x: layer(x).sum().backward())
        assert expected <= found <= expected * 1.12


def test_modules_without_linear_layers_are_rejected():
    for base in ("4bit", "8bit"):
        with pytest.raises(OptionError, match=f"--base {base} has no effect"):
            quantize_base(nn.Conv2d(3, 3, 3), base)
    with pytest.raises(OptionError, match="--lora"):
        add_lora(nn.Sequential(nn.Conv2d(3, 3, 3)), Lora(4))


@pytest.mark.usefixtures("without_peft")
def test_attention_of_torch_keeps_the_projection_that_it_reads():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    add_lora(quantize_base(layer), Lora(2))
    assert trained(layer) == 2 * 2 * (16 + 32)
    layer(torch.randn(2, 3, 16)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_has_one_dequantized_weight_at_a_time(dtype):
    """With many large equal layers and one row, dequantized weights are nearly all that is live."""
    network = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(6))).to(dtype)
    network.append(nn.Linear(2048, 1).to(dtype))
    quantize_base(network)
    x = torch.randn(1, 2048, dtype=dtype, requires_grad=True)

    def step():
        network(x).sum().backward()

    expected = dtype.itemsize * 2048 * 2048 + 4 * 65536
    assert expected * 0.9 <= measured_peak(step) <= expected * 1.1


@pytest.mark.usefixtures("without_peft")
def test_adapters_on_quantized_layers_train(network):
    add_lora(quantize_base(network), Lora(4, ("q_proj",)))
    assert trained(network) == 2 * 4 * 128
    network(torch.randn(3, 64)).sum().backward()
    assert network[0].q_proj.lora_B.weight.grad is not None
