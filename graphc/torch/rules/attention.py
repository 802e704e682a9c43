"""Scaled dot-product attention."""

from __future__ import annotations

import graphc
from graphc.ir.graph import Value
from graphc.ir.types import bool_
from graphc.torch.calls import Call
from graphc.torch.rules import rule


@rule("scaled_dot_product_attention")
def attention(call: Call) -> Value:
    """Composed of products and a softmax, so that a planner chooses what is kept.

    torch's causal rows begin with the first column. Its heads share keys where they are fewer only
    if `enable_gqa` says so, which its shapes have been checked for.
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
