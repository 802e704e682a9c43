"""Counter-based random ops: Philox4x32-10 (Salmon et al., 2011).

Each op has its own stream of random numbers. Bits depend only on the program's seed, the stream
number, the step and the element's index. No random numbers are saved: the gradient, or a recomputed
copy, draws the same bits again.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphc.devices.device import Device
from graphc.errors import OptionError, ShapeError, quoted
from graphc.ir.attributes import Between, DTypeName, Whole
from graphc.ir.builder import SEED, STEP, apply
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
    number_of,
    tensor_type,
)
from graphc.ops.cpu.numpy_expression import select
from graphc.ops.elementwise import float_dtype

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF

TILE_BLOCKS = 4096
"""Counters (blocks) processed at a time; each gives four random words of 32 bits."""


def philox(counter: Array, key: tuple[int, int], product: Array) -> None:
    """Replace counters by their random words, in place.

    `counter` is (4, blocks) and `product`, scratch, (2, blocks). Both are 64-bit integers viewed as
    unsigned, and every counter word is below 2³².
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
    """The dropout rate, and the number of this op's stream in its graph."""

    rate: Annotated[float, Between(0.0, below=1.0)]
    stream: Annotated[int, Whole(0, LOW)]


def check_counters(seed: TensorType, step: TensorType) -> None:
    """Raise `ShapeError` unless `seed` is int64 of shape (2,) and `step` is an int64 scalar."""
    if seed != TensorType((2,), int64) or step != TensorType((), int64):
        raise ShapeError(f"seed must be i64[2] and step i64[], got {seed} and {step}")


class RandomOp(Op):
    """Base: ops that draw from the stream numbered by their attribute `stream`."""

    untimed_attributes = ("stream",)
    flops_per_element = 30


class Dropout(RandomOp):
    """y = x / (1 - rate) if the element is kept, else 0 (Srivastava et al., 2014)."""

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
        """Return dx through the same mask as y, which is drawn again."""
        return apply(Dropout, dy, seed, step, attributes=node.attributes).output

    def inference(self, node: Node) -> Value:
        return node.inputs[0]

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: a tile's counters and products, keep mask, and bit masks."""
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
    """Fill `counter` (4, blocks) with the random words of blocks from number `first` on."""
    counter[0].fill(1)
    np.add.accumulate(counter[0], out=counter[1])
    np.add(counter[1], first - 1, out=counter[0])
    np.right_shift(counter[0], 32, out=counter[1])
    np.bitwise_and(counter[0], LOW, out=counter[0])
    counter[2].fill(stream)
    counter[3].fill(step.item() & LOW)
    philox(counter, key, product)


def least_that_stays(rate: float) -> int:
    """Return the dropout threshold: an element is kept if its 24 random bits are at least it."""
    return math.ceil(rate * 2**24)


def draw_stays(
    attributes: DropoutAttributes, first: int, seed: Array, step: Array,
    counter: Array, product: Array, stays: Array,
) -> None:  # fmt: skip
    """Fill `stays` with the keep mask of the blocks of four elements from block number `first` on.

    `counter` and `product` are scratch.
    """
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
    """The shape and dtype of the result, the ends of the interval, and the stream number."""

    shape: Annotated[tuple[int, ...], Whole(1)]
    dtype: Annotated[str, DTypeName("float")]
    low: Annotated[float, Between()]
    high: Annotated[float, Between()]
    stream: Annotated[int, Whole(0, LOW)]


@dataclass(frozen=True, slots=True)
class NormalAttributes:
    """The shape and dtype of the result, the mean and standard deviation, and the stream number."""

    shape: Annotated[tuple[int, ...], Whole(1)]
    dtype: Annotated[str, DTypeName("float")]
    mean: Annotated[float, Between()]
    scale: Annotated[float, Between(0.0)]
    stream: Annotated[int, Whole(0, LOW)]


class Noise(RandomOp):
    """Base: y has random numbers, which differ between steps; it has no gradient.

    The random words of one Philox counter (a block) give four fractions of 24 bits, or two of 53
    bits for float64.
    """

    inputs = ("seed", "step")
    needs_contiguous = ("seed",)
    native_16_bit = True

    @staticmethod
    def lanes(dtype: DType) -> int:
        """Return the number of elements that one block gives."""
        return 2 if dtype.itemsize == 8 else 4

    @staticmethod
    def unit(dtype: DType) -> float:
        """Return the distance between adjacent fractions: 2**-24, or 2**-53 for float64."""
        return 2.0**-53 if dtype.itemsize == 8 else 2.0**-24

    def line(self, attributes: Any) -> tuple[float, float]:
        """Return (offset, factor) so that y = factor · standard random number + offset."""
        raise NotImplementedError

    def infer(self, attributes: Any, seed: TensorType, step: TensorType) -> TensorType:
        check_counters(seed, step)
        y = TensorType(attributes.shape, as_dtype(attributes.dtype))
        for number in self.line(attributes):
            number_of("the random value", number, y.dtype)
        return y

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return scratch types: counters, products, two numbers per block, a tile of elements."""
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
        """Fill the tile with standard random numbers.

        They are computed from fractions (elements per block, blocks), given as integers in
        multiples of `unit`.
        """
        raise NotImplementedError


def _fractions(words: Array, lanes: int) -> None:
    """Convert 32-bit words to 24-bit integers, or pairs of words to 53-bit integers, in place."""
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
    """y = uniform random numbers in `[low, high)`."""

    name, attributes = "uniform", UniformAttributes

    def line(self, attributes: UniformAttributes) -> tuple[float, float]:
        return attributes.low, attributes.high - attributes.low

    def infer(
        self, attributes: UniformAttributes, seed: TensorType, step: TensorType
    ) -> TensorType:
        if attributes.high < attributes.low:
            raise OptionError(
                f"high must be at least low, got {attributes.low} to {attributes.high}"
            )
        return super().infer(attributes, seed, step)

    def standard(self, fractions: Array, unit: float, pair: Array, tile: Array) -> None:
        for lane, numbers in enumerate(fractions):
            np.copyto(tile[lane :: len(fractions)], numbers, casting="unsafe")
        np.multiply(tile, unit, out=tile)


class Normal(Noise):
    """y = normal random numbers, by the Box-Muller transform (1958)."""

    name, attributes = "normal", NormalAttributes

    def line(self, attributes: NormalAttributes) -> tuple[float, float]:
        return attributes.mean, attributes.scale

    def standard(self, fractions: Array, unit: float, pair: Array, tile: Array) -> None:
        radius, angle = pair
        lanes = len(fractions)
        for lane in range(0, lanes, 2):
            np.copyto(pair, fractions[lane : lane + 2], casting="unsafe")
            np.add(radius, 1.0, out=radius)  # keeps its logarithm finite
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
    """Return a stream number that no op uses yet."""
    return next(_streams)


def dropout_rate(what: str, rate: object) -> float:
    """Return the rate; raises `OptionError` unless 0 ≤ rate < 1."""
    if not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise OptionError(f"{what}: the rate must be at least 0 and below 1, got {quoted(rate)}")
    return float(rate)


def dropout(x: Value, rate: float = 0.5) -> Value:
    """In training, zero elements of x with probability `rate` and scale the rest by 1 / (1 - rate).

    Returns x itself in a program without an optimizer, and for the rate 0. Each call draws its own
    masks from the program's seed (Philox, Salmon et al., 2011), different ones at every step. No
    mask is saved for the gradient. Raises `OptionError` unless 0 ≤ rate < 1.
    """
    rate = dropout_rate("dropout", rate)
    if rate == 0:
        return x
    attributes = DropoutAttributes(rate, next_stream())
    return apply(Dropout, x, SEED, STEP, attributes=attributes).output


def uniform(
    shape: Sequence[int], low: float = 0.0, high: float = 1.0, dtype: object = "float32"
) -> Value:
    """Draw uniform random numbers in `[low, high)`, different ones at every step.

    They depend on the program's seed, the step and the element's index, in training and in
    inference. Two calls draw different numbers. The numbers are not saved for the gradient and have
    no gradient.

    Numbers are rounded to the dtype. `high` itself occurs if adjacent floats are far apart relative
    to high - low: in 16 bits, or in float32 between 1e6 and 1e6 + 1. Raises `DTypeError` if the
    dtype is not a float or cannot represent a bound, and `OptionError` if `high` is below `low`.
    """
    type = tensor_type(shape, dtype)
    least, most = (number_of("uniform", end, type.dtype) for end in (low, high))
    attributes = UniformAttributes(type.shape, type.dtype.name, least, most, next_stream())
    return apply(Uniform, SEED, STEP, attributes=attributes).output


def normal(
    shape: Sequence[int], mean: float = 0.0, scale: float = 1.0, dtype: object = "float32"
) -> Value:
    """Draw normal random numbers, different ones at every step.

    `mean` and the standard deviation `scale` are numbers. For tensors write ``mean + scale *
    normal(shape)``, which has gradients for them (Kingma and Welling, 2013). Numbers depend on
    seed, step and index as in `uniform`. In float32 they differ from the mean by at most 5.8
    standard deviations, in float64 by 8.6. Raises `DTypeError` if the dtype is not a float or
    cannot represent a number, and `OptionError` for a scale below 0.
    """
    type = tensor_type(shape, dtype)
    middle, spread = (number_of("normal", number, type.dtype) for number in (mean, scale))
    attributes = NormalAttributes(type.shape, type.dtype.name, middle, spread, next_stream())
    return apply(Normal, SEED, STEP, attributes=attributes).output
