"""LoRA and 4-bit layers against peft, transformers and bitsandbytes."""

import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from graphc.torch.budget.trace.measure import measured_peak  # noqa: E402
from graphc.torch.fit.adapters import (  # noqa: E402
    TABLE_BYTES,
    Int8Linear,
    Nf4Linear,
    add_lora,
    nf4_sizes,
    quantize_base,
)
from graphc.torch.fit.options import Lora  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.filterwarnings("default")]


def llama(device="meta", dtype=torch.bfloat16, width=64):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=300,
    )  # fmt: skip
    with torch.device(device):
        return transformers.LlamaForCausalLM(config).to(dtype)


def gpt2(device="meta", dtype=torch.float32):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=300)
    with torch.device(device):
        return transformers.GPT2LMHeadModel(config).to(dtype)


CASES = [
    (llama, ("q_proj", "v_proj")), (llama, ()), (llama, ("down_proj",)),
    (gpt2, ("c_attn",)), (gpt2, ("c_attn", "c_proj")), (gpt2, ()),
]  # fmt: skip


@pytest.mark.parametrize(("create", "targets"), CASES)
def test_trainable_parameters_are_those_of_peft(create, targets, monkeypatch):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=8, target_modules=list(targets) or "all-linear")
    expected, _ = peft.get_peft_model(create(), config).get_nb_trainable_parameters()
    expected_bytes = sizes(peft.get_peft_model(create(), config))
    through_peft = add_lora(create(), Lora(8, targets))
    monkeypatch.setitem(sys.modules, "peft", None)
    alone = add_lora(create(), Lora(8, targets))
    for module in (through_peft, alone):
        found = [each.numel() for each in module.parameters() if each.requires_grad]
        assert sum(found) == expected
        assert sizes(module) == expected_bytes


def sizes(module):
    return sorted((each.nbytes, each.requires_grad) for each in module.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_without_peft_have_the_peak_of_peft(dtype, monkeypatch):
    pytest.importorskip("peft")
    lora, ids = Lora(8, ("q_proj", "v_proj")), torch.randint(0, 300, (4, 64))
    through_peft = add_lora(llama("cpu", dtype), lora)
    monkeypatch.setitem(sys.modules, "peft", None)
    alone = add_lora(llama("cpu", dtype), lora)
    found = []
    for module in (through_peft, alone):
        module(input_ids=ids, labels=ids).loss.backward()
        module.zero_grad()
        found.append(measured_peak(lambda m=module: m(input_ids=ids, labels=ids).loss.backward()))
    assert found[1] == pytest.approx(found[0], rel=0.01)


@pytest.mark.parametrize("shape", [(64, 64), (100, 33), (4096, 40), (1, 1), (257, 64)])
def test_nf4_has_the_bytes_of_bitsandbytes(shape):
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = torch.randn(shape)
    packed, state = functional.quantize_4bit(
        weight, quant_type="nf4", compress_statistics=True, blocksize=64
    )
    tables = state.code.nbytes + state.state2.code.nbytes + state.offset.nbytes
    found = (packed.nbytes, state.absmax.nbytes, state.state2.absmax.nbytes, tables)
    assert nf4_sizes(weight.numel()) == found
    assert state.state2.blocksize == 256
    assert tables == TABLE_BYTES


@pytest.mark.parametrize("create", [llama, gpt2])
def test_quantized_layers_are_those_of_transformers(create):
    quantizers = pytest.importorskip("transformers.quantizers.base")
    module = create()
    kept = set(quantizers.get_keys_to_not_convert(module))
    linear = {
        name for name, each in module.named_modules()
        if isinstance(each, nn.Linear) or type(each).__name__ == "Conv1D"
    }  # fmt: skip
    quantize_base(module)
    found = {name for name, each in module.named_modules() if isinstance(each, Nf4Linear)}
    assert found == linear - kept
    assert found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_of_qlora_have_the_peak_of_bitsandbytes(dtype):
    """A whole step of a Llama with 4-bit layers and adapters, both run on a CPU."""
    package = pytest.importorskip("bitsandbytes")
    pytest.importorskip("peft")
    ids = torch.randint(0, 300, (2, 32))
    modules = real, ours = [llama("cpu", dtype, 512), llama("cpu", dtype, 512)]
    quantize_base(ours)
    for name, each in ours.named_modules():
        if isinstance(each, Nf4Linear):
            real.set_submodule(name, four_bit(package, real.get_submodule(name), dtype))
    found, stored = [], []
    for module in modules:
        add_lora(module, Lora(8, ("q_proj", "v_proj")))
        module(input_ids=ids, labels=ids).loss.backward()
        module.zero_grad()
        found.append(measured_peak(lambda m=module: m(input_ids=ids, labels=ids).loss.backward()))
        stored.append(sum(each.nbytes for each in module.parameters()))
    assert stored[0] == stored[1]
    assert found[1] == pytest.approx(found[0], rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layers_in_8_bits_have_the_weights_and_backward_pass_of_bitsandbytes(dtype):
    """The function for CUDA runs on a CPU, where its product of integers has other temporaries."""
    package = pytest.importorskip("bitsandbytes")
    weight = torch.randn(512, 256, dtype=dtype)
    state = package.MatmulLtState()
    state.CB, state.SCB, _ = package.functional.int8_vectorwise_quant(weight.to(torch.float16))
    state.has_fp16_weights, state.threshold = False, 6.0
    ours = Int8Linear(nn.Linear(256, 512, bias=False).to(dtype))
    assert ours.weight.nbytes == state.CB.nbytes
    assert ours.scales.nbytes == state.SCB.nbytes

    def theirs(x):
        return package.autograd._functions.MatMul8bitLt.apply(x, state.CB, None, None, state)

    found = []
    for call in (ours, theirs):
        x = torch.randn(2, 64, 256, dtype=dtype, requires_grad=True)
        result = call(x * 1)
        gradient = torch.ones_like(result)
        found.append(measured_peak(lambda r=result, g=gradient: r.backward(g)))
    assert found[0] == found[1]


def four_bit(package, layer, dtype):
    """A quantized layer of bitsandbytes with the weight of a layer."""
    made = package.nn.Linear4bit(
        layer.in_features, layer.out_features, bias=False, quant_type="nf4", compute_dtype=dtype
    )
    weight = layer.weight.data
    made.weight = package.nn.Params4bit(weight, requires_grad=False, quant_type="nf4")
    return made.to("cpu")
