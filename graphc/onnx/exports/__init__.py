"""Export rules from ops to ONNX nodes, one file per family; an import registers all rules."""

from graphc.onnx.exports import (  # noqa: F401 - each registers its rules
    attention,
    elementwise,
    lookups,
    losses,
    maps,
    norms,
    orders,
    products,
    reductions,
    sampling,
    shapes,
)
