"""New lengths and batches of real networks: planned from one symbolic trace, with the same bits."""

import pytest

import graphc

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
networks = pytest.importorskip("torch_planning_time")
pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(
    "make",
    [lambda: networks.llama(2), lambda: networks.gpt2(2), networks.resnet50],
    ids=["Llama", "GPT-2", "ResNet-50"],
)
def test_a_third_size_needs_no_trace_and_has_the_same_bits(make):
    module, given, sizes = make()
    step = graphc.torch.plan(module, (), "knee", kwargs=given(sizes[0]))
    step.plan((), given(sizes[1]))
    traces = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    step.plan((), given(sizes[2]))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == traces
    assert step.verify(**given(sizes[2])).same_bits


def test_a_model_of_eight_billion_parameters_is_planned_without_its_memory():
    config = transformers.LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        use_cache=False,
    )
    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(config).bfloat16()
        ids = torch.zeros(1, 4096, dtype=torch.long)
    given = {"input_ids": ids, "labels": ids.clone()}
    report = graphc.torch.plan(module, (), "knee", kwargs=given, device="h100").report
    size = sum(each.numel() for each in module.parameters())
    assert report.held.parameters == 2 * size
    # Attention is fused: a matrix of 32 x 4096 x 4096 numbers per layer would exceed this.
    assert report.plain_bytes < 3 * 2 * size + 2**33
    flops = 6 * size * 4096
    assert 0.8 < report.seconds / (flops / 989e12) < 2.5
