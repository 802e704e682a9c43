"""Random ops that can be repeated: Philox4x32-10 (Salmon et al., 2011) as a function of a counter.

Bits depend on the program's seed, the op's stream number, the step and the element's index, and on
nothing else. A mask is never kept: the gradient, or a mirrored copy, draws the same one again.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from graphc.errors import OptionError, ShapeError
from graphc.ir.attributes import Between, Whole
from graphc.ir.builder import SEED, STEP, apply
from graphc.ir.device import Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import TensorType, bool_, int32, int64
from graphc.ops.cpu.numpy_expression import select
from graphc.ops.elementwise import float_dtype

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF

TILE_BLOCKS = 4096
"""Counters worked on at a time; each gives four numbers of 32 bits."""


def philox(counter: Array, key: tuple[int, int], product: Array) -> None:
    """Replace counters by their random words, in place.

    `counter` is (4, blocks) and `product`, scratch, (2, blocks), both 64-bit integers seen as
    unsigned; every counter word is below 2³².
    """
    words, wide = counter.view(np.uint64), product.view(np.uint64)
    low, shift = np.uint64(LOW), np.uint64(32)
    for number in range(ROUNDS):
        keys = [np.uint64((k + number * w) & LOW) for k, w in zip(key, WEYL, strict=True)]
        np.multiply(words[0], np.uint64(MULTIPLIERS[0]), out=wide[0])
        np.multiply(words[2], np.uint64(MULTIPLIERS[1]), out=wide[1])
        for target, source, other, k in ((0, 1, 1, keys[0]), (2, 0, 3, keys[1])):
            np.right_shift(wide[source], shift, out=words[target])
            np.bitwise_xor(words[target], words[other], out=words[target])
            np.bitwise_xor(words[target], k, out=words[target])
        np.bitwise_and(wide[1], low, out=words[1])
        np.bitwise_and(wide[0], low, out=words[3])


@dataclass(frozen=True, slots=True)
class DropoutAttributes:
    """The part that is dropped, and the number of this op's stream in its graph."""

    rate: Annotated[float, Between(0.0, below=1.0)]
    stream: Annotated[int, Whole(0, LOW)]


class Dropout(Op):
    """y = x / (1 - rate) where the element is kept, else 0 (Srivastava et al., 2014)."""

    name, inputs = "dropout", ("x", "seed", "step")
    attributes = DropoutAttributes
    untimed_attributes = ("stream",)
    may_overwrite = {"y": ("x",)}
    needs_contiguous = ("x",)
    flops_per_element = 30

    def infer(
        self, attributes: DropoutAttributes, x: TensorType, seed: TensorType, step: TensorType
    ) -> TensorType:
        float_dtype(x)
        if seed != TensorType((2,), int64) or step != TensorType((), int64):
            raise ShapeError(f"seed is i64[2] and step i64[], got {seed} and {step}")
        return x

    def gradient_x(self, node: Node, dy: Value, seed: Value, step: Value) -> Value:
        """dx through the same mask as y, which is drawn again."""
        return apply(Dropout, dy, seed, step, attributes=node.attributes).output

    def inference(self, node: Node) -> Value:
        return node.inputs[0]

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Counters and products of a tile; which elements stay; bit masks for choosing them."""
        y = node.output.type
        blocks = min(TILE_BLOCKS, -(-y.elements // 4))
        bits = int64 if y.dtype.itemsize == 8 else int32
        tile = (4 * blocks,)
        return (
            TensorType((4, blocks), int64),
            TensorType((2, blocks), int64),
            TensorType(tile, bool_),
            TensorType(tile, bits),
            TensorType(tile, bits),
        )

    def kernel(
        self, record: Recorder, node: Node, x: Array, seed: Array, step: Array, *, y: Array
    ) -> None:
        flat = x.reshape(-1), y.reshape(-1)
        record(functools.partial(_drop, node.attributes, *flat, seed, step), *record.scratch)


def _drop(
    attributes: DropoutAttributes, x: Array, y: Array, seed: Array, step: Array,
    counter: Array, product: Array, stays: Array, mask: Array, flip: Array,
) -> None:  # fmt: skip
    threshold = np.uint64(math.ceil(attributes.rate * 2**24))
    factor, key = 1 / (1 - attributes.rate), (int(seed[0]), int(seed[1]))
    time, words, blocks = step.item() & LOW, counter.view(np.uint64), counter.shape[1]
    for start in range(0, y.size, 4 * blocks):
        counter[0].fill(1)
        np.add.accumulate(counter[0], out=counter[1])
        np.add(counter[1], start // 4 - 1, out=counter[0])  # block numbers; 2³⁴ elements fit
        words[1].fill(0)
        words[2].fill(attributes.stream)
        words[3].fill(time)
        philox(counter, key, product)
        np.right_shift(words, np.uint64(8), out=words)
        for lane in range(4):
            np.greater_equal(words[lane], threshold, out=stays[lane::4])
        part = slice(start, min(start + 4 * blocks, y.size))
        size, out = part.stop - part.start, y[part]
        np.multiply(x[part], factor, out=out)
        select(stays[:size], out, 0.0, mask[:size], flip[:size], out)


_streams = itertools.count()


def dropout(x: Value, rate: float = 0.5) -> Value:
    """In training, x with elements zeroed with probability `rate`, the rest times 1 / (1 - rate).

    x itself in a program without an optimizer, and for the rate 0. Each call draws masks of its
    own, new ones every step, by the program's seed (Philox, Salmon et al., 2011); none is kept for
    the gradient. Raises `OptionError` unless 0 ≤ rate < 1.
    """
    if not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise OptionError(f"dropout: the rate lies in 0 to below 1, got {rate!r}")
    if rate == 0:
        return x
    attributes = DropoutAttributes(float(rate), next(_streams))
    return apply(Dropout, x, SEED, STEP, attributes=attributes).output
