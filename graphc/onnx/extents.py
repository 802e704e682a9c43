"""What a file says of its inputs, before it is read as a network."""

from __future__ import annotations

import os

from graphc.onnx.model import parsed


def input_extents(path: str | os.PathLike[str]) -> dict[str, tuple[int | str | None, ...] | None]:
    """The extents of each input that is fed: numbers, names, or None; None for no rank.

    Raises `OnnxError` for a file that is none.
    """
    proto, _ = parsed(path)
    held = {tensor.name for tensor in proto.graph.initializer}
    found: dict[str, tuple[int | str | None, ...] | None] = {}
    for value in proto.graph.input:
        if value.name in held:
            continue
        type = value.type.tensor_type
        has_rank = value.type.HasField("tensor_type") and type.HasField("shape")
        found[value.name] = (
            tuple(
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
                for dim in type.shape.dim
            )
            if has_rank
            else None
        )
    return found
