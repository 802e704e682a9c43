"""One row an op: how to build it, on which inputs, and what NumPy or SciPy says it is.

A file has the rows of a family. `reference` computes the outputs independently of graphc. Inputs
are drawn from `domain`; integer inputs from range(int_limit). `reads` states, for each
differentiable input, the least set of values that its gradient needs.
"""

from ops.samples import (
    attention,
    axis_maps,
    collectives,
    elementwise,
    fused,
    interpolate,
    lookup,
    losses,
    norm,
    order,
    pooling,
    products,
    random,
    roi_align,
    scalars,
    shape,
    updates,
)
from ops.samples.sample import Sample, direct

from graphc.ir.op import REGISTRY

__all__ = ["SAMPLES", "STATE_OPS", "Sample", "direct"]

SAMPLES = [
    *elementwise.SAMPLES,
    *scalars.SAMPLES,
    *random.SAMPLES,
    *fused.SAMPLES,
    *shape.SAMPLES,
    *products.SAMPLES,
    *pooling.SAMPLES,
    *norm.SAMPLES,
    *attention.SAMPLES,
    *axis_maps.SAMPLES,
    *interpolate.SAMPLES,
    *roi_align.SAMPLES,
    *lookup.SAMPLES,
    *losses.SAMPLES,
    *order.SAMPLES,
    *updates.SAMPLES,
    *collectives.SAMPLES,
]

STATE_OPS = {name for name, op in REGISTRY.items() if op.has_effect} | {
    "adam_correction",
    "batch_count",
    "batch_sum",
    "float8_linear",
    "float8_product",
    "learning_rate",
    "quantize",
    "quantize_both",
    "quantize_turned",
    "with_change",
    "with_gradient",
}
"""Ops of optimizers; tests/api/test_optim.py compares them with their papers' formulas. Those on
8-bit floats are in tests/ops/test_float8.py."""
