"""Convolution nodes, and what they compute by the definition in float64."""

from itertools import product

import numpy as np

import graphc as g
from graphc.ir.builder import apply
from graphc.ops.conv import (
    Conv2d,
    Conv2dInputAttributes,
    Conv2dInputGradient,
    Conv2dWeightAttributes,
    Conv2dWeightGradient,
)
from graphc.ops.geometry import Conv2dAttributes

LAST = (0, 2, 3, 1)


def nodes(x, w, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, **of):
    """The convolution of x by w, the gradient of x, and that of w; `of` are a dtype, whether there
    is a bias, and the attributes of the last."""
    dtype, bias = of.pop("dtype", "float32"), of.pop("bias", False)
    geometry = (stride, padding, dilation, groups)
    inputs = [g.input("x", x, dtype), g.input("w", w, dtype)]
    added = [g.input("b", w[:1], dtype)] if bias else []
    forward = apply(Conv2d, *inputs, *added, attributes=Conv2dAttributes(*geometry))
    dy = g.input("dy", forward.output.shape, dtype)
    back = Conv2dInputAttributes(*geometry, x[2:])
    weight = Conv2dWeightAttributes(*geometry, w[2:], **of)
    total = [g.input("sum", w, dtype)] if weight.accumulate else []
    return (
        forward,
        apply(Conv2dInputGradient, dy, inputs[1], attributes=back),
        apply(Conv2dWeightGradient, dy, inputs[0], *total, attributes=weight),
    )


def lying(array, order=LAST):
    """A copy with its axes in that order in memory."""
    return array.transpose(order).copy().transpose(np.argsort(order))


def by_definition(node, arrays):
    """The result in float64, that of the magnitudes, and how many products are summed."""
    given = [arrays[value].astype(np.float64) for value in node.inputs]
    scale = _summed(node, *map(np.abs, given))
    return _summed(node, *given), scale.max(), _terms(node)


def _terms(node):
    """How many products are summed at most."""
    geometry = node.op.geometry(node)
    (k, _, r, s), (n, _, height, width) = geometry.w, geometry.y
    if node.op.name == "conv2d_weight_gradient":
        return n * height * width
    if node.op.name == "conv2d_input_gradient":
        return k // geometry.attributes.groups * r * s
    return geometry.depth


def _summed(node, first, second, *added):
    geometry = node.op.geometry(node)
    a, (_, c, r, s), (n, k, height, width) = geometry.attributes, geometry.w, geometry.y
    out = np.zeros(node.output.shape)
    top, left = a.padding[:2]
    bottom, right = a.padding[-2:]
    shape = (n, geometry.x[1], geometry.x[2] + top + bottom, geometry.x[3] + left + right)
    padded = np.zeros(shape)
    inside = padded[:, :, top : shape[2] - bottom, left : shape[3] - right]
    name = node.op.name
    if name != "conv2d_input_gradient":
        inside[...] = first if name == "conv2d" else second
    for group, i, j in product(range(a.groups), range(r), range(s)):
        rows = slice(i * a.dilation[0], i * a.dilation[0] + (height - 1) * a.stride[0] + 1)
        columns = slice(j * a.dilation[1], j * a.dilation[1] + (width - 1) * a.stride[1] + 1)
        channels = slice(group * c, group * c + c)
        filters = slice(group * (k // a.groups), (group + 1) * (k // a.groups))
        tap = padded[:, channels, rows, columns][:, :, :: a.stride[0], :: a.stride[1]]
        if name == "conv2d":
            out[:, filters] += np.einsum("nchw,kc->nkhw", tap, second[filters, :, i, j])
        elif name == "conv2d_input_gradient":
            tap += np.einsum("nkhw,kc->nchw", first[:, filters], second[filters, :, i, j])
        else:
            out[filters, :, i, j] += np.einsum("nkhw,nchw->kc", first[:, filters], tap)
    if name == "conv2d_input_gradient":
        return inside
    for each in added:
        out += each if name == "conv2d_weight_gradient" else each[:, None, None]
    return out
