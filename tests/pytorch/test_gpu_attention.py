"""Attention saves what fused kernels of CUDA save."""

import pytest

torch = pytest.importorskip("torch")

from graphc.torch.fit.gpu_attention import gpu_attention  # noqa: E402 - it needs torch


@pytest.mark.parametrize("mask", [None, torch.bool, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_attention_saves_no_probabilities(dtype, mask):
    """Saved are the operands, the output, the mask, and a float32 number for each row."""
    length = 256
    saved = {}

    def pack(x):
        saved[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
        return x

    with torch.device("meta"):
        query, key, value = (
            torch.empty(2, 4, length, 16, dtype=dtype, requires_grad=True) for _ in range(3)
        )
        bias = None if mask is None else torch.empty(length, length, dtype=mask)
        if mask == torch.float32:
            bias = bias.to(dtype)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            found = gpu_attention(query, key, value, bias, dropout_p=0.1)
    assert found.shape == query.shape
    operands = 4 * query.numel() * query.element_size()
    masks = 0 if mask is None else length * length * query.element_size()
    rows = 2 * 4 * length * 4
    assert operands + masks + rows <= sum(saved.values()) <= operands + masks + rows + 64


def test_groups_of_queries_share_keys():
    with torch.device("meta"):
        query, key = torch.empty(2, 8, 32, 16), torch.empty(2, 2, 32, 16)
        found = gpu_attention(query, key, key, is_causal=True, enable_gqa=True)
    assert found.shape == query.shape
