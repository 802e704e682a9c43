"""How ops are written as ONNX nodes: one file a family; importing this package registers all."""

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
