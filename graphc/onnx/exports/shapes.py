"""Export of ops that move, reshape, join and slice."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.ir.graph import Node
from graphc.ir.types import as_dtype
from graphc.onnx.emission import Emission, exports


@exports("full")
def _full(node: Node, on: Emission) -> str:
    a = node.attributes
    key = ("full", a.shape, a.dtype, repr(a.value))
    return on.once(key, lambda: on.filled(a.shape, a.value, as_dtype(a.dtype)))


@exports("reshape")
def _reshape(node: Node, on: Emission, x: str) -> str:
    return on("Reshape", x, on.integers(*node.attributes.shape))


@exports("transpose")
def _transpose(node: Node, on: Emission, x: str) -> str:
    return on("Transpose", x, perm=list(node.attributes.permutation))


@exports("broadcast_to")
def _broadcast_to(node: Node, on: Emission, x: str) -> str:
    return on("Expand", x, on.integers(*node.attributes.shape))


@exports("slice")
def _slice(node: Node, on: Emission, x: str) -> str:
    a, shape = node.attributes, node.inputs[0].shape
    whole = [(0, n, 1) for n in shape]
    bounds = list(zip(a.starts, a.stops, a.steps, strict=True))
    axes = [axis for axis, bound in enumerate(bounds) if bound != whole[axis]]
    if not axes:
        return on("Identity", x)
    return sliced(on, x, axes, *zip(*(bounds[axis] for axis in axes), strict=True))


def sliced(
    on: Emission, x: str, axes: Sequence[int], starts: Sequence[int], stops: Sequence[int],
    steps: Sequence[int],
) -> str:  # fmt: skip
    """Emit a slice along some axes."""
    return on("Slice", x, *(on.integers(*each) for each in (starts, stops, axes, steps)))


@exports("reverse")
def _reverse(node: Node, on: Emission, x: str) -> str:
    axes = node.attributes.axes
    ends = [-n - 1 for n in (node.output.shape[axis] for axis in axes)]
    return sliced(on, x, axes, [-1] * len(axes), ends, [-1] * len(axes))


@exports("pad_slice")
def _pad_slice(node: Node, on: Emission, x: str) -> str:
    """Emit padding between the elements along axes with a step, then around all elements."""
    a, shape = node.attributes, list(node.inputs[0].shape)
    value = on.number(a.value, node.output.type.dtype)
    for axis, step in enumerate(a.steps):
        if step > 1 and shape[axis] > 1:
            x = _spread(on, x, shape, axis, step, value)
    behind = [n - start - have for n, start, have in zip(a.shape, a.starts, shape, strict=True)]
    return on("Pad", x, on.integers(*a.starts, *behind), value)


def _spread(on: Emission, x: str, shape: list[int], axis: int, step: int, value: str) -> str:
    """Insert `value` between the elements along an axis, so that they are `step` apart.

    `shape` is changed to the shape of the result.
    """
    before, behind = shape[:axis], shape[axis + 1 :]
    apart = on("Reshape", x, on.integers(*shape[: axis + 1], 1, *behind))
    zeros = [0] * (len(shape) + 1)
    ends = [*zeros[: axis + 1], step - 1, *zeros[axis + 2 :]]
    padded = on("Pad", apart, on.integers(*zeros, *ends), value)
    joined = on("Reshape", padded, on.integers(*before, shape[axis] * step, *behind))
    shape[axis] = (shape[axis] - 1) * step + 1
    return sliced(on, joined, [axis], [0], [shape[axis]], [1])


@exports("concat")
def _concat(node: Node, on: Emission, *parts: str) -> str:
    return on("Concat", *parts, axis=node.attributes.axis)


@exports("split")
def _split(node: Node, on: Emission, x: str) -> list[str]:
    a = node.attributes
    return on.several("Split", [x, on.integers(*a.sizes)], len(a.sizes), axis=a.axis)
