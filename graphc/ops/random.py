"""Random ops that can be repeated: Philox4x32-10 (Salmon et al., 2011) as a function of a counter.

Bits depend on the program's seed, the op's stream number, the step and the element's index, and on
nothing else. Nothing random is kept: the gradient, or a mirrored copy, draws the same again.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphc.errors import OptionError, ShapeError
from graphc.ir.attributes import Between, DTypeName, Whole
from graphc.ir.builder import SEED, STEP, apply, number_of
from graphc.ir.device import Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.types import (
    DType,
    TensorType,
    as_dtype,
    bool_,
    compute_dtype,
    int32,
    int64,
    tensor_type,
)
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


def check_counters(seed: TensorType, step: TensorType) -> None:
    """Raise `ShapeError` unless the two are what a program keeps of its seed and its steps."""
    if seed != TensorType((2,), int64) or step != TensorType((), int64):
        raise ShapeError(f"seed is i64[2] and step i64[], got {seed} and {step}")


class RandomOp(Op):
    """Base: ops that draw from the stream of that number among their attributes."""

    untimed_attributes = ("stream",)
    flops_per_element = 30


class Dropout(RandomOp):
    """y = x / (1 - rate) where the element is kept, else 0 (Srivastava et al., 2014)."""

    name, inputs = "dropout", ("x", "seed", "step")
    attributes = DropoutAttributes
    may_overwrite = {"y": ("x",)}
    needs_contiguous = ("x", "seed")

    def infer(
        self, attributes: DropoutAttributes, x: TensorType, seed: TensorType, step: TensorType
    ) -> TensorType:
        float_dtype(x)
        check_counters(seed, step)
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


def _draw(
    counter: Array, product: Array, first: int, stream: int, step: Array, key: tuple[int, int]
) -> None:
    """Replace `counter` by the words of blocks from the number `first` on."""
    counter[0].fill(1)
    np.add.accumulate(counter[0], out=counter[1])
    np.add(counter[1], first - 1, out=counter[0])
    np.right_shift(counter[0], 32, out=counter[1])
    np.bitwise_and(counter[0], LOW, out=counter[0])
    counter[2].fill(stream)
    counter[3].fill(step.item() & LOW)
    philox(counter, key, product)


def least_that_stays(rate: float) -> int:
    """Elements stay whose 24 random bits are no number below this."""
    return math.ceil(rate * 2**24)


def draw_stays(
    attributes: DropoutAttributes, first: int, seed: Array, step: Array,
    counter: Array, product: Array, stays: Array,
) -> None:  # fmt: skip
    """Which elements stay of the blocks of four from the number `first` on; two are scratch."""
    words, least = counter.view(np.uint64), np.uint64(least_that_stays(attributes.rate))
    _draw(counter, product, first, attributes.stream, step, (int(seed[0]), int(seed[1])))
    np.right_shift(words, np.uint64(8), out=words)
    for lane in range(4):
        np.greater_equal(words[lane], least, out=stays[lane::4])


def _drop(
    attributes: DropoutAttributes, x: Array, y: Array, seed: Array, step: Array,
    counter: Array, product: Array, stays: Array, mask: Array, flip: Array,
) -> None:  # fmt: skip
    factor = 1 / (1 - attributes.rate)
    for start in range(0, y.size, stays.size):
        draw_stays(attributes, start // 4, seed, step, counter, product, stays)
        part = slice(start, min(start + stays.size, y.size))
        size, out = part.stop - part.start, y[part]
        np.multiply(x[part], factor, out=out)
        select(stays[:size], out, 0.0, mask[:size], flip[:size], out)


@dataclass(frozen=True, slots=True)
class UniformAttributes:
    """What to fill, the ends of the interval, and the number of the stream."""

    shape: Annotated[tuple[int, ...], Whole(1)]
    dtype: Annotated[str, DTypeName("float")]
    low: Annotated[float, Between()]
    high: Annotated[float, Between()]
    stream: Annotated[int, Whole(0, LOW)]


@dataclass(frozen=True, slots=True)
class NormalAttributes:
    """What to fill, the distribution's mean and deviation, and the number of the stream."""

    shape: Annotated[tuple[int, ...], Whole(1)]
    dtype: Annotated[str, DTypeName("float")]
    mean: Annotated[float, Between()]
    scale: Annotated[float, Between(0.0)]
    stream: Annotated[int, Whole(0, LOW)]


class Noise(RandomOp):
    """Base: y is drawn anew at every step; nothing flows back.

    A block of Philox gives four fractions of 24 bits, or two of 53 bits for float64, exactly.
    """

    inputs = ("seed", "step")
    needs_contiguous = ("seed",)
    native_16_bit = True

    @staticmethod
    def lanes(dtype: DType) -> int:
        """The elements of one block."""
        return 2 if dtype.itemsize == 8 else 4

    @staticmethod
    def unit(dtype: DType) -> float:
        """The step between fractions."""
        return 2.0**-53 if dtype.itemsize == 8 else 2.0**-24

    def line(self, attributes: Any) -> tuple[float, float]:
        """What is added to a number of the standard distribution, and its factor before that."""
        raise NotImplementedError

    def infer(self, attributes: Any, seed: TensorType, step: TensorType) -> TensorType:
        check_counters(seed, step)
        y = TensorType(attributes.shape, as_dtype(attributes.dtype))
        for number in self.line(attributes):
            number_of("what is drawn", number, y.dtype)
        return y

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Counters and products of a tile, two numbers of each block, and the tile's elements."""
        y = node.output.type
        lanes, held = self.lanes(y.dtype), compute_dtype(y.dtype)
        blocks = min(TILE_BLOCKS, -(-y.elements // lanes))
        return (
            TensorType((4, blocks), int64),
            TensorType((2, blocks), int64),
            TensorType((2, blocks), held),
            TensorType((lanes * blocks,), held),
        )

    def kernel(self, record: Recorder, node: Node, seed: Array, step: Array, *, y: Array) -> None:
        record(functools.partial(self.fill, node, y.reshape(-1), seed, step), *record.scratch)

    def fill(
        self, node: Node, y: Array, seed: Array, step: Array,
        counter: Array, product: Array, pair: Array, tile: Array,
    ) -> None:  # fmt: skip
        """Draw all elements of y, tile by tile."""
        lanes, key = self.lanes(node.output.type.dtype), (int(seed[0]), int(seed[1]))
        offset, factor = self.line(node.attributes)
        for start in range(0, y.size, tile.size):
            _draw(counter, product, start // lanes, node.attributes.stream, step, key)
            _fractions(counter.view(np.uint64), lanes)
            self.standard(counter[:lanes], self.unit(node.output.type.dtype), pair, tile)
            np.multiply(tile, factor, out=tile)
            np.add(tile, offset, out=tile)
            part = y[start : start + tile.size]
            np.copyto(part, tile[: part.size], casting="same_kind")

    def standard(self, fractions: Array, unit: float, pair: Array, tile: Array) -> None:
        """Fill the tile from fractions (lanes, blocks), whole numbers of units."""
        raise NotImplementedError


def _fractions(words: Array, lanes: int) -> None:
    """Words of 32 bits as numbers of 24 bits, or each two of them as one of 53 bits, in place."""
    if lanes == 4:
        np.right_shift(words, np.uint64(8), out=words)
        return
    for lane in (0, 1):
        high, low = words[2 * lane], words[2 * lane + 1]
        np.right_shift(high, np.uint64(5), out=high)
        np.left_shift(high, np.uint64(26), out=high)
        np.right_shift(low, np.uint64(6), out=low)
        np.bitwise_or(high, low, out=words[lane])


class Uniform(Noise):
    """y = numbers from low up to below high, all alike."""

    name, attributes = "uniform", UniformAttributes

    def line(self, attributes: UniformAttributes) -> tuple[float, float]:
        return attributes.low, attributes.high - attributes.low

    def infer(
        self, attributes: UniformAttributes, seed: TensorType, step: TensorType
    ) -> TensorType:
        if attributes.high < attributes.low:
            raise OptionError(f"high is at least low, got {attributes.low} to {attributes.high}")
        return super().infer(attributes, seed, step)

    def standard(self, fractions: Array, unit: float, pair: Array, tile: Array) -> None:
        for lane, numbers in enumerate(fractions):
            np.copyto(tile[lane :: len(fractions)], numbers, casting="unsafe")
        np.multiply(tile, unit, out=tile)


class Normal(Noise):
    """y = numbers of the normal distribution, by Box and Muller's transform (1958)."""

    name, attributes = "normal", NormalAttributes

    def line(self, attributes: NormalAttributes) -> tuple[float, float]:
        return attributes.mean, attributes.scale

    def standard(self, fractions: Array, unit: float, pair: Array, tile: Array) -> None:
        radius, angle = pair
        lanes = len(fractions)
        for lane in range(0, lanes, 2):
            np.copyto(pair, fractions[lane : lane + 2], casting="unsafe")
            np.add(radius, 1.0, out=radius)  # its logarithm is finite
            np.multiply(pair, unit, out=pair)
            np.log(radius, out=radius)
            np.multiply(radius, -2.0, out=radius)
            np.sqrt(radius, out=radius)
            np.multiply(angle, 2 * math.pi, out=angle)
            for function, place in ((np.cos, lane), (np.sin, lane + 1)):
                function(angle, out=tile[place::lanes])
                np.multiply(tile[place::lanes], radius, out=tile[place::lanes])


_streams = itertools.count()


def next_stream() -> int:
    """A number of a stream that no op has yet."""
    return next(_streams)


def dropout_rate(what: str, rate: object) -> float:
    """Return the rate; raises `OptionError` unless 0 ≤ rate < 1."""
    if not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise OptionError(f"{what}: the rate lies in 0 to below 1, got {rate!r}")
    return float(rate)


def dropout(x: Value, rate: float = 0.5) -> Value:
    """In training, x with elements zeroed with probability `rate`, the rest times 1 / (1 - rate).

    x itself in a program without an optimizer, and for the rate 0. Each call draws masks of its
    own, new ones every step, by the program's seed (Philox, Salmon et al., 2011); none is kept for
    the gradient. Raises `OptionError` unless 0 ≤ rate < 1.
    """
    rate = dropout_rate("dropout", rate)
    if rate == 0:
        return x
    attributes = DropoutAttributes(rate, next_stream())
    return apply(Dropout, x, SEED, STEP, attributes=attributes).output


def uniform(
    shape: Sequence[int], low: float = 0.0, high: float = 1.0, dtype: object = "float32"
) -> Value:
    """Random numbers from `low` up to below `high`, all alike, drawn anew at every step.

    They depend on the program's seed, the step and the place, in training and outside of it; each
    call draws numbers of its own. None is kept for the gradient, and none flows back. Numbers are
    rounded to the dtype, so `high` itself comes where floats lie far apart beside high - low: in
    16 bits, and in float32 from 1e6 to 1e6 + 1. Raises `DTypeError` for what is no float dtype or a
    number that it does not hold, and `OptionError` where `high` is below `low`.
    """
    type = tensor_type(shape, dtype)
    least, most = (number_of("uniform", end, type.dtype) for end in (low, high))
    attributes = UniformAttributes(type.shape, type.dtype.name, least, most, next_stream())
    return apply(Uniform, SEED, STEP, attributes=attributes).output


def normal(
    shape: Sequence[int], mean: float = 0.0, scale: float = 1.0, dtype: object = "float32"
) -> Value:
    """Random numbers of the normal distribution, drawn anew at every step.

    `mean` and the deviation `scale` are numbers; for values write ``mean + scale * normal(shape)``,
    which passes them gradients (Kingma and Welling, 2013). All else is as for `uniform`. float32
    reaches 5.8 deviations, float64 8.6. Raises `DTypeError` for what is no float dtype or a number
    that it does not hold, and `OptionError` for a scale below 0.
    """
    type = tensor_type(shape, dtype)
    middle, spread = (number_of("normal", number, type.dtype) for number in (mean, scale))
    attributes = NormalAttributes(type.shape, type.dtype.name, middle, spread, next_stream())
    return apply(Normal, SEED, STEP, attributes=attributes).output
