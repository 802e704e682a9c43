"""The gradient of filters as products, for a convolution whose windows do not overlap.

The windows of such a convolution are patches of the input, as in the first layer of a vision
transformer. Let X be the patches (pixels of y, taps) and Y the output maps (filters, pixels). The
gradient is Y · X. Patches are copied to the workspace, some images at a time.

The library's own kernel loads channels in vectors of 16, of which an image fills three. With
patches of 16 x 16 pixels it takes ten times as long.
"""

from __future__ import annotations

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


def patch_products(
    library: Library,
    geometry: Geometry,
    values: tuple[Value, Value, Value],
    places: Places,
    workspace: Workspace,
    threads: int,
    adds: bool,
) -> list[Execution] | None:
    """Return the calls that compute the gradient of the filters w of `values`, (x, w, y).

    With `adds`, they add to w. Returns None if the library does not support them, or if they need
    more workspace.
    """
    x, w, y = values
    pixels = geometry.y[2] * geometry.y[3]
    taps = geometry.w[1] * geometry.w[2] * geometry.w[3]
    count, images = geometry.x[0], 1
    if is_channels_last(y.type, places[y].strides):
        maps, images = (1, geometry.w[0]), copied_images([x])
    elif places[y].strides == contiguous_strides(y.type):
        maps = (pixels, 1)
    else:
        return None
    if places[w].strides != contiguous_strides(w.type):
        return None
    if images < count and w.type.dtype != float32:
        return None  # the partial sum of each chunk of images would be rounded
    taken = align(images * pixels * taps * x.type.dtype.itemsize, ALIGNMENT)
    if taken > workspace.size:
        return None
    rest = Workspace(workspace.address + taken, workspace.size - taken)
    calls: list[Execution] = []
    for first in range(0, count, images):
        number = min(images, count - first)
        copied = _patches(library, geometry, x, places, (first, number), workspace.address)
        matrices = Matrices(
            (),
            Operand("y", y.type.dtype, maps, address=_image(y, places, first)),
            Operand("x", x.type.dtype, (taps, 1), address=workspace.address),
            Operand("w", w.type.dtype, (taps, 1), address=places[w].address),
            geometry.w[0],
            number * pixels,
            taps,
        )
        products = matrix_product(library, matrices, rest, threads, adds or first > 0)
        if copied is None or products is None:
            return None
        calls += [copied, *products]
    return calls


def _patches(
    library: Library,
    geometry: Geometry,
    x: Value,
    places: Places,
    images: tuple[int, int],
    address: int,
) -> Execution | None:
    """Return the call that copies the patches of (first, number) images to an address."""
    (_, c, r, s), (p, q) = geometry.w, geometry.y[2:]
    image, channel, row, column = strides_of(x, places[x])
    first, number = images
    shape = (number, p, q, c, r, s)
    strides: Numbers = (image, row * r, column * s, channel, row, column)
    held = [
        described(library, Tensor(shape, x.type.dtype, each)) for each in (strides, _packed(shape))
    ]
    ends = Pointer(held[0].handle), Pointer(held[1].handle)
    return reordered(library, ends, (_image(x, places, first), address))


def _packed(shape: Numbers) -> Numbers:
    """Return the strides in elements of a contiguous tensor."""
    strides = [1]
    for extent in shape[:0:-1]:
        strides.insert(0, strides[0] * extent)
    return tuple(strides)


def _image(value: Value, places: Places, number: int) -> int:
    """Return the address of an image of feature maps."""
    return places[value].address + number * places[value].strides[0]
