"""RoIAlign: regions of maps, pooled to a fixed shape (He et al., 2017).

A region is divided into bins, and a bin into sample points. Each point is a bilinear mean of the
four elements around it. Weights of rows and columns are independent, so the mean of a bin is a row
of weights times the map times a column of weights. As ONNX defines it, the maximum of a bin is over
products of single elements and their weights. The op for maxima saves their indices and weights.
The CPU arithmetic is in `graphc.ops.cpu.roi_align`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any

from graphc.devices.device import Device
from graphc.errors import ShapeError, choose, truth
from graphc.ir.attributes import Between, Whole
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import Array, Cost, Op, Recorder
from graphc.ir.types import TensorType, bool_, int32, int64
from graphc.ops.cpu import roi_align as cpu
from graphc.ops.elementwise import float_dtype
from graphc.ops.embedding import require_integers
from graphc.ops.geometry import COUNTED, Extent, Pair, pair

Ratio = Annotated[int, Whole(0, 1024)]
Scale = Annotated[float, Between(above=0.0)]
MapExtents = Annotated[tuple[int, int, int], Whole(1, COUNTED)]


@dataclass(frozen=True, slots=True)
class RoiAlignAttributes:
    """The (rows, columns) of bins, the sample points of a bin per axis, and the coordinate mapping.

    A `ratio` of 0 samples one point per element.
    """

    bins: Extent
    ratio: Ratio = 0
    scale: Scale = 1.0
    aligned: bool = True


@dataclass(frozen=True, slots=True)
class MapAttributes:
    """The (batch, height, width) of the maps."""

    maps: MapExtents


@dataclass(frozen=True, slots=True)
class RoiAlignGradientAttributes:
    """The attributes of the forward op, and the (batch, height, width) of the maps."""

    bins: Extent
    maps: MapExtents
    ratio: Ratio = 0
    scale: Scale = 1.0
    aligned: bool = True


class Regions(Op):
    """Base of RoIAlign and its gradient."""

    indices = ("batch",)
    any_strides = True
    precision = "wide"

    def pooled(self, a: Any, x: TensorType, rois: TensorType, batch: TensorType) -> TensorType:
        """Return the type of the result, one number per region, channel and bin."""
        float_dtype(x, rois)
        require_integers(batch, "batch")
        if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4 or batch.shape != rois.shape[:1]:
            raise ShapeError(
                "x must be (batch, channels, height, width), rois (regions, 4) and batch "
                f"(regions,), got {x}, {rois} and {batch}"
            )
        return x.with_shape((rois.shape[0], x.shape[1], *a.bins))

    def maps(self, node: Node) -> tuple[int, ...]:
        """Return the shape of x or of its gradient."""
        raise NotImplementedError

    def index_limit(self, node: Node) -> int:
        return self.maps(node)[0]

    def cost(self, node: Node) -> Cost:
        """Count four products per sample point.

        A `ratio` of 0, which depends on data, counts as 2 x 2 points.
        """
        moved, ratio = super().cost(node), node.attributes.ratio or 2
        regions, (rows, columns) = node.inputs[1].shape[0], node.attributes.bins
        points = regions * rows * columns * ratio * ratio * self.maps(node)[1]
        return Cost(8 * points, moved.bytes_read, moved.bytes_written)

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: weights of rows and of columns, and row weights · a region."""
        _, channels, height, width = self.maps(node)
        (rows, columns), like = node.attributes.bins, node.output.type
        shapes = [(rows, height), (columns, width), (channels * rows * width,)]
        if isinstance(self, RoiAlignGradient):
            shapes.append((channels * height * width,))
        return tuple(like.with_shape(shape) for shape in shapes)

    def regions(self, record: Recorder, node: Node, rois: Array, batch: Array) -> cpu.Regions:
        """Return the regions with the node's sampling options and scratch."""
        a = node.attributes
        return cpu.Regions(rois, batch, a.ratio, a.scale, a.aligned, record.scratch)


class RoiAlign(Regions):
    """y = the mean of each bin of each region."""

    name, inputs = "roi_align", ("x", "rois", "batch")
    attributes = RoiAlignAttributes
    needs_contiguous = ("x", "rois")

    def infer(
        self, attributes: RoiAlignAttributes, x: TensorType, rois: TensorType, batch: TensorType
    ) -> TensorType:
        return self.pooled(attributes, x, rois, batch)

    def maps(self, node: Node) -> tuple[int, ...]:
        return node.inputs[0].shape

    def gradient_x(self, node: Node, dy: Value, rois: Value, batch: Value) -> Value:
        a, (n, _, height, width) = node.attributes, node.inputs[0].shape
        attributes = RoiAlignGradientAttributes(
            a.bins, (n, height, width), a.ratio, a.scale, a.aligned
        )
        return apply(RoiAlignGradient, dy, rois, batch, attributes=attributes).output

    def kernel(
        self, record: Recorder, node: Node, x: Array, rois: Array, batch: Array, *, y: Array
    ) -> None:
        record(functools.partial(cpu.pool, self.regions(record, node, rois, batch), x, y))


class RoiAlignGradient(Regions):
    """dx = dy distributed to the elements that each bin averages, by their weights."""

    name, inputs, outputs = "roi_align_gradient", ("dy", "rois", "batch"), ("dx",)
    attributes = RoiAlignGradientAttributes
    needs_contiguous = ("dy", "rois")

    def infer(
        self,
        attributes: RoiAlignGradientAttributes,
        dy: TensorType,
        rois: TensorType,
        batch: TensorType,
    ) -> TensorType:
        if dy.rank != 4:
            raise ShapeError(f"dy must be (regions, channels, rows, columns), got {dy}")
        n, height, width = attributes.maps
        dx = dy.with_shape((n, dy.shape[1], height, width))
        wanted = self.pooled(attributes, dx, rois, batch)
        if wanted != dy:
            raise ShapeError(f"dy must have the type of the bins of {rois}, {wanted}, got {dy}")
        return dx

    def maps(self, node: Node) -> tuple[int, ...]:
        return node.output.shape

    def gradient_dy(self, node: Node, ddx: Value, rois: Value, batch: Value) -> Value:
        a = node.attributes
        attributes = RoiAlignAttributes(a.bins, a.ratio, a.scale, a.aligned)
        return apply(RoiAlign, ddx, rois, batch, attributes=attributes).output

    def kernel(
        self, record: Recorder, node: Node, dy: Array, rois: Array, batch: Array, *, dx: Array
    ) -> None:
        record(functools.partial(cpu.spread, self.regions(record, node, rois, batch), dy, dx))


class RoiAlignMax(Regions):
    """y = the largest product of an element and its weight among each bin's points.

    Elements beyond the map have weight 0. For the gradient, it saves the map index and the weight
    of each maximum. Of equal products the first counts, ordered by row of points, row of elements
    around it, point, and column.
    """

    name, inputs = "roi_align_max", ("x", "rois", "batch")
    outputs = ("y", "place", "weight")
    attributes = RoiAlignAttributes
    needs_contiguous = ("x", "rois")
    independent = {"weight": ("x",)}

    def infer(
        self, attributes: RoiAlignAttributes, x: TensorType, rois: TensorType, batch: TensorType
    ) -> tuple[TensorType, TensorType, TensorType]:
        y = self.pooled(attributes, x, rois, batch)
        if x.shape[2] * x.shape[3] > COUNTED:
            raise ShapeError(f"a map must have at most {COUNTED} elements, got {x}")
        return y, y.with_dtype(int32), y

    def maps(self, node: Node) -> tuple[int, ...]:
        return node.inputs[0].shape

    def output_limit(self, node: Node) -> int:
        _, _, height, width = node.inputs[0].shape
        return height * width

    def gradient_x(
        self, node: Node, dy: Value | None, batch: Value, place: Value, weight: Value
    ) -> Value | None:
        if dy is None:  # only the weights are used, which do not depend on x
            return None
        n, _, height, width = node.inputs[0].shape
        attributes = MapAttributes((n, height, width))
        return apply(RoiAlignMaxGradient, dy, batch, place, weight, attributes=attributes).output

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types of the kernel.

        They are the maxima over each row of a region for each column of bins, their indices and
        weights, then a buffer for candidates, and one for the mask of larger candidates.
        """
        (_, channels, height, _), columns = node.inputs[0].shape, node.attributes.bins[1]
        between = node.outputs[0].type.with_shape((channels, height, columns))
        line = between.with_shape((channels * max(height, columns),))
        return between, between.with_dtype(int32), between, line, line.with_dtype(bool_)

    def kernel(
        self,
        record: Recorder,
        node: Node,
        x: Array,
        rois: Array,
        batch: Array,
        *,
        y: Array,
        place: Array,
        weight: Array,
    ) -> None:
        regions = self.regions(record, node, rois, batch)
        record(functools.partial(cpu.largest, regions, x, cpu.Largest(y, place, weight)))


class Chosen(Op):
    """Base of ops on the elements that are the maxima of bins, given by index and weight."""

    indices = ("batch",)
    any_strides = True
    precision = "wide"

    def check(
        self, y: TensorType, batch: TensorType, place: TensorType, weight: TensorType
    ) -> None:
        """Raise `ShapeError` or `DTypeError` unless each element of y has an index and a weight."""
        float_dtype(y, weight)
        require_integers(batch, "batch")
        if y.rank != 4 or batch.shape != y.shape[:1] or weight != y or place != y.with_dtype(int32):
            raise ShapeError(
                "bins must be (regions, channels, rows, columns) and batch (regions,), and each "
                f"bin needs an int32 place and a weight; got {y}, {batch}, {place} and {weight}"
            )

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types: the indices and the elements of one region."""
        _, _, rows, columns = node.inputs[-1].shape
        line = node.output.type.with_shape((rows * columns,))
        return line.with_dtype(int64), line


class RoiAlignMaxGradient(Chosen):
    """dx = dy times the weight of each bin's maximum, added at the index of the maximum."""

    name, inputs = "roi_align_max_gradient", ("dy", "batch", "place", "weight")
    outputs = ("dx",)
    attributes = MapAttributes
    needs_contiguous = ("dy", "place", "weight")

    def infer(
        self,
        attributes: MapAttributes,
        dy: TensorType,
        batch: TensorType,
        place: TensorType,
        weight: TensorType,
    ) -> TensorType:
        self.check(dy, batch, place, weight)
        n, height, width = attributes.maps
        return dy.with_shape((n, dy.shape[1], height, width))

    def index_limit(self, node: Node) -> int:
        return node.output.shape[0]

    def gradient_dy(
        self, node: Node, ddx: Value, batch: Value, place: Value, weight: Value
    ) -> Value:
        return apply(RoiAlignMaxSelect, ddx, batch, place, weight).output

    def gradient_weight(
        self, node: Node, ddx: Value, dy: Value, batch: Value, place: Value
    ) -> Value:
        return apply(RoiAlignMaxSelect, ddx, batch, place, dy).output

    def kernel(
        self,
        record: Recorder,
        node: Node,
        dy: Array,
        batch: Array,
        place: Array,
        weight: Array,
        *,
        dx: Array,
    ) -> None:
        chosen = cpu.Largest(dy, place, weight)
        record(functools.partial(cpu.spread_chosen, chosen, batch, dx, *record.scratch))


class RoiAlignMaxSelect(Chosen):
    """y = the elements of x at the indices of maxima, times their weights."""

    name, inputs = "roi_align_max_select", ("x", "batch", "place", "weight")
    needs_contiguous = ("x", "place", "weight")

    def infer(
        self,
        attributes: Any,
        x: TensorType,
        batch: TensorType,
        place: TensorType,
        weight: TensorType,
    ) -> TensorType:
        self.check(weight, batch, place, weight)
        if x.rank != 4 or x.shape[1] != weight.shape[1] or x.dtype != weight.dtype:
            raise ShapeError(
                "x must be (batch, channels, height, width), with as many channels as the bins and "
                f"their dtype, got x {x} and bins {weight}"
            )
        return weight

    def index_limit(self, node: Node) -> int:
        return node.inputs[0].shape[0]

    def gradient_x(self, node: Node, dy: Value, batch: Value, place: Value, weight: Value) -> Value:
        n, _, height, width = node.inputs[0].shape
        attributes = MapAttributes((n, height, width))
        return apply(RoiAlignMaxGradient, dy, batch, place, weight, attributes=attributes).output

    def gradient_weight(self, node: Node, dy: Value, x: Value, batch: Value, place: Value) -> Value:
        return apply(RoiAlignMaxSelect, x, batch, place, dy).output

    def kernel(
        self,
        record: Recorder,
        node: Node,
        x: Array,
        batch: Array,
        place: Array,
        weight: Array,
        *,
        y: Array,
    ) -> None:
        chosen = cpu.Largest(y, place, weight)
        record(functools.partial(cpu.select_chosen, x, batch, chosen, *record.scratch))


MODES = {"avg": RoiAlign, "max": RoiAlignMax}
"""Pooling mode → the op that computes it."""


def roi_align(
    x: Value,
    rois: Value,
    batch: Value,
    bins: int | Pair,
    sampling_ratio: int = 0,
    scale: float = 1.0,
    aligned: bool = True,
    mode: str = "avg",
) -> Value:
    """Average x (batch, channels, height, width) over the bins of regions.

    `rois` is float (regions, 4): left, top, right and bottom, which are in elements of x after
    multiplication by `scale`. `batch` is integers (regions,), the image of each region. The result
    is (regions, channels, *bins), where `bins` is one number or (rows, columns).

    A bin is the mean of its sample points, `sampling_ratio` along each axis. With 0 there are as
    many points as the bin has elements, rounded up. Points more than an element beyond x are 0.
    With `aligned` the centers of elements are at half-integers. Otherwise they are at integers, and
    regions are at least one element wide.

    With `mode` "max" a bin is the largest product of an element around one of its points and the
    element's bilinear weight. This is the ONNX definition, not the largest bilinear mean. Points
    beyond x count as 0, and the gradient goes to the first of equal products. x gets a gradient,
    regions do not. Raises `ShapeError`, `OptionError` and `DTypeError` for invalid arguments.
    """
    as_value("roi_align", x)
    centred = truth("roi_align: aligned", aligned)
    attributes = RoiAlignAttributes(pair("bins", bins, 1), sampling_ratio, scale, centred)
    op = MODES[choose("mode", mode, tuple(MODES))]
    return apply(op, x, rois, batch, attributes=attributes).outputs[0]
