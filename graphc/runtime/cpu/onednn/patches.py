"""The gradient of filters as products, for a convolution whose windows do not overlap.

The windows of such a convolution are patches of the input, as in the first layer of a vision
transformer. Let X be the patches (pixels, taps) and Y the gradient of the output (filters, pixels).
The gradient of the filters is Y · X. Patches are copied to the workspace, those of some images at a
time, or of one image if y is row-major.

The library's own kernel loads channels in vectors of 16, of which an image fills three. With
patches of 16 x 16 pixels it takes ten times as long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphc.codegen.convolution.native import copied_images
from graphc.codegen.text.operands import Operand, Places
from graphc.ir.graph import Value
from graphc.ir.types import align, contiguous_strides, float32, is_channels_last
from graphc.ops.geometry import Geometry
from graphc.runtime.cpu.onednn.copies import reordered, strides_of
from graphc.runtime.cpu.onednn.library import Library, Pointer
from graphc.runtime.cpu.onednn.primitive import (
    ALIGNMENT,
    Execution,
    Numbers,
    Tensor,
    Workspace,
    described,
)
from graphc.runtime.cpu.onednn.products import Matrices, matrix_product

MOST_CHANNELS = 8
"""With more channels, the library's own kernel is as fast."""


def reads_patches(geometry: Geometry) -> bool:
    """Return true if the windows of a convolution are patches of few channels."""
    a = geometry.attributes
    return (
        a.groups == 1
        and geometry.w[1] <= MOST_CHANNELS
        and max(a.stride) > 1
        and a.stride == geometry.w[2:]
        and a.dilation == (1, 1)
        and not any(a.padding)
    )


@dataclass(frozen=True, slots=True)
class PatchProducts:
    """The gradient of the filters w of a convolution of x by patches; y is the gradient of the
    output. With `adds`, the products add to w."""

    library: Library
    geometry: Geometry
    x: Value
    w: Value
    y: Value
    places: Places
    workspace: Workspace
    threads: int
    adds: bool

    def calls(self) -> list[Execution] | None:
        """Return the calls, or None if the library does not support them.

        As many images are multiplied together as the workspace has patches of.
        """
        if self.places[self.w].strides != contiguous_strides(self.w.type):
            return None
        images = self._most_images()
        while images:
            found = self._products(images)
            if found is not None:
                return found
            images //= 2
        return None

    @property
    def _maps(self) -> Numbers | None:
        """The strides of y as a matrix (filters, pixels), or None if it is none."""
        strides = self.places[self.y].strides
        if is_channels_last(self.y.type, strides):
            return 1, self.geometry.w[0]
        is_row_major = strides == contiguous_strides(self.y.type)
        return (self._pixels, 1) if is_row_major else None

    @property
    def _pixels(self) -> int:
        return self.geometry.y[2] * self.geometry.y[3]

    @property
    def _taps(self) -> int:
        return math.prod(self.geometry.w[1:])

    def _most_images(self) -> int:
        """Return the number of images whose pixels in y are one matrix, within a limit of bytes."""
        is_matrix = is_channels_last(self.y.type, self.places[self.y].strides)
        return copied_images([self.x]) if is_matrix else 1

    def _products(self, images: int) -> list[Execution] | None:
        """Return the calls for `images` images at a time."""
        maps, taps, (count, *_) = self._maps, self._taps, self.geometry.x
        if maps is None or (images < count and self.w.type.dtype != float32):
            return None  # partial sums of narrow filters would be rounded
        taken = align(images * self._pixels * taps * self.x.type.dtype.itemsize, ALIGNMENT)
        if taken > self.workspace.size:
            return None
        rest = Workspace(self.workspace.address + taken, self.workspace.size - taken)
        calls: list[Execution] = []
        for first in range(0, count, images):
            number = min(images, count - first)
            y, w = _image(self.y, self.places, first), self.places[self.w].address
            matrices = Matrices(
                (),
                Operand("y", self.y.type.dtype, maps, address=y),
                Operand("x", self.x.type.dtype, (taps, 1), address=self.workspace.address),
                Operand("w", self.w.type.dtype, (taps, 1), address=w),
                self.geometry.w[0],
                number * self._pixels,
                taps,
            )
            copied = self._copied(first, number)
            adds = self.adds or first > 0
            products = matrix_product(self.library, matrices, rest, self.threads, adds)
            if copied is None or products is None:
                return None
            calls += [copied, *products]
        return calls

    def _copied(self, first: int, number: int) -> Execution | None:
        """Return the call that copies the patches of `number` images to the workspace."""
        (_, c, r, s), (p, q) = self.geometry.w, self.geometry.y[2:]
        image, channel, row, column = strides_of(self.x, self.places[self.x])
        shape = (number, p, q, c, r, s)
        apart: Numbers = (image, row * r, column * s, channel, row, column)
        with self.library.threads(self.threads):
            source, target = (
                described(self.library, Tensor(shape, self.x.type.dtype, strides))
                for strides in (apart, _packed(shape))
            )
            ends = Pointer(source.handle), Pointer(target.handle)
            addresses = _image(self.x, self.places, first), self.workspace.address
            return reordered(self.library, ends, addresses)


def _packed(shape: Numbers) -> Numbers:
    """Return the strides in elements of a contiguous tensor."""
    strides = [1]
    for extent in shape[:0:-1]:
        strides.insert(0, strides[0] * extent)
    return tuple(strides)


def _image(value: Value, places: Places, number: int) -> int:
    """Return the address of an image of feature maps."""
    return places[value].address + number * places[value].strides[0]
