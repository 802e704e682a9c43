"""Scaled dot-product attention."""

from __future__ import annotations

import graphc
from graphc.ir.graph import Value
from graphc.ir.types import bool_
from graphc.torch.importing.calls import TorchCall, rule


@rule("scaled_dot_product_attention")
def attention(call: TorchCall) -> Value:
    """Compose attention of products and a softmax, so that a planner can choose what to save.

    torch's causal mask is aligned to the first column. Query heads share keys only with
    `enable_gqa`; torch has checked the shapes for that.
    """
    mask = call.optional("attn_mask")
    q = call.value("query")
    if mask is not None and mask.type.dtype not in (bool_, q.type.dtype):
        mask = graphc.cast(mask, q.type.dtype)
    return graphc.attention(
        q,
        call.value("key"),
        call.value("value"),
        causal="first" if call["is_causal"] else False,
        drop=float(call["dropout_p"]),
        scale=call.get("scale"),
        mask=mask,
    )
