"""Import of cross entropy, of logits and of log probabilities."""

from __future__ import annotations

import graphc
from graphc.ir.ancestors import ancestors
from graphc.ir.graph import State, Value
from graphc.onnx.calls import OnnxCall, rule
from graphc.ops.loss import REDUCTIONS


@rule("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def cross_entropy(call: OnnxCall) -> Value | None:
    """Import a loss over classes on axis 1, or return None to use the operator's function body.

    The body is used if log probabilities are an output, class weights are trainable, or the ignored
    label does not fit into 32 bits.
    """
    weights, ignored = call.optional(2), call.attribute("ignore_index")
    beyond = ignored is not None and not -(2**31) <= ignored < 2**31
    if call.wants(1) or beyond or (weights is not None and _learns(weights)):
        return None
    is_of_scores = call.operator == "SoftmaxCrossEntropyLoss"
    function = graphc.softmax_cross_entropy if is_of_scores else graphc.nll_loss
    return function(
        call.value(0),
        call.value(1),
        ignore_index=ignored,
        weights=weights,
        reduction=call.choice("reduction", "mean", REDUCTIONS),
        axis=1,
    )


def _learns(value: Value) -> bool:
    """Return True if a value is computed from trainable parameters."""
    sources = {v for node in ancestors([value]) for v in node.inputs} | {value}
    return any(isinstance(source, State) and source.trainable for source in sources)
