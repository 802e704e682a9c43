"""Convolutions and their gradients as primitives of oneDNN.

The library computes on contiguous channels-last maps, and needs filters blocked by channels.
Filters are reordered to and from that layout in the workspace in each call; they are small compared
with maps. Maps with other layouts are copied to the workspace, some images at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from graphc.codegen.convolution.native import copied_images
from graphc.codegen.text.operands import Place, Places
from graphc.ir.graph import Node, Value
from graphc.ir.types import align, channels_last_strides, float32, is_channels_last
from graphc.ops.conv import Convolution
from graphc.ops.geometry import Geometry
from graphc.runtime.cpu.onednn.copies import moved, reordered, repeats, strides_of
from graphc.runtime.cpu.onednn.library import Library, Owned, Pointer
from graphc.runtime.cpu.onednn.patches import PatchProducts, reads_patches
from graphc.runtime.cpu.onednn.primitive import (
    ALIGNMENT,
    BIAS,
    DATA_TYPES,
    PRIMITIVES,
    SOURCE,
    SOURCE_GRADIENT,
    TARGET,
    TARGET_GRADIENT,
    WEIGHTS,
    WEIGHTS_GRADIENT,
    Execution,
    Primitive,
    Tensor,
    Workspace,
    attributes,
    chosen,
    described,
    numbers,
    with_fewer,
)

TRAINING, DIRECT = 64, 1
"""The values for training and for the direct algorithm, of `dnnl_prop_kind_t` and
`dnnl_alg_kind_t`."""

ROLES = {
    "conv2d": (SOURCE, WEIGHTS, TARGET),
    "conv2d_input_gradient": (SOURCE_GRADIENT, WEIGHTS, TARGET_GRADIENT),
    "conv2d_weight_gradient": (SOURCE, WEIGHTS_GRADIENT, TARGET_GRADIENT),
}
"""Op → the numbers of its primitive's arguments for x, the filters and y."""


def convolution_executions(
    library: Library, node: Node, places: Places, workspace: Workspace, threads: int
) -> list[Execution] | None:
    """Return the calls of a convolution or one of its gradients.

    Returns None if the library does not support it.
    """
    if any(v.type.dtype not in DATA_TYPES for v in (*node.inputs, node.output)):
        return None
    if any(repeats(v, places[v]) for v in (*node.inputs, node.output)):
        return None
    form = _form(library, node, places, workspace)
    if form.reads_foreign_bytes:
        return None
    if form.roles[1] == WEIGHTS_GRADIENT and reads_patches(form.geometry):
        products = form.patch_products(threads)
        if products is not None:
            return products
    bias = form.bias
    if (
        bias is not None
        and bias.shape[0] > 1
        and places[bias].strides[0] != bias.type.dtype.itemsize
    ):
        return None
    return with_fewer(library, threads, form.calls)


def _form(library: Library, node: Node, places: Places, workspace: Workspace) -> _Form:
    op = node.op
    assert isinstance(op, Convolution)
    named = {op.input_name(i): value for i, value in enumerate(node.inputs)}
    named[op.output_name(0)] = node.output
    x, w, y = (named[n if n in named else f"d{n}"] for n in ("x", "w", "y"))
    return _Form(
        library, node, op.geometry(node), places, workspace, x, w, y, named.get("bias"),
        named.get("sum"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Form:
    """A convolution node or one of its gradients, as x * w = y for maps x and y and filters w.

    `places` has the addresses and strides of these values.
    """

    library: Library
    node: Node
    geometry: Geometry
    places: Places
    workspace: Workspace
    x: Value
    w: Value
    y: Value
    bias: Value | None
    sum: Value | None

    def patch_products(self, threads: int) -> list[Execution] | None:
        """Return the calls that compute the gradient of the filters as products of patches."""
        with self.library.threads(threads):
            before = self._sum_moved()
        products = PatchProducts(
            self.library, self.geometry, self.x, self.w, self.y, self.places, self.workspace,
            threads, self.sum is not None,
        ).calls()  # fmt: skip
        return None if before is None or products is None else [*before, *products]

    def _sum_moved(self) -> list[Execution] | None:
        """Return the calls that copy the sum, to which the node adds, to the output."""
        if self.sum is None:
            return []
        return moved(self.library, self.sum, self.w, self.places)

    def calls(self, threads: int) -> list[Execution] | None:
        """Return all calls for `threads` threads, in order; None if one is not supported."""
        before = self._sum_moved()
        if before is None:
            return None
        found: list[Execution | None] = [*before]
        last: Primitive | None = None
        for first, images in self._chunks():
            primitive = self._primitive(images, threads)
            if primitive is None:
                return None
            if primitive is not last and self.roles[1] == WEIGHTS:
                found.append(self._filters_brought(primitive))
            last = primitive
            found += self._chunk(primitive, first, images)
            if self.roles[1] == WEIGHTS_GRADIENT:
                found.append(self._filters_back(primitive, first > 0))
        calls = [call for call in found if call is not None]
        return calls if len(calls) == len(found) else None

    @property
    def roles(self) -> tuple[int, int, int]:
        """The numbers of the primitive's arguments for x, w and y."""
        return ROLES[self.node.op.name]

    @property
    def reads_foreign_bytes(self) -> bool:
        """True if oneDNN 3.2's gradient of bfloat16 filters would read uninitialized scratch.

        It does so if maps are narrower than the stride of the window. This was found by runs on
        scratch filled with NaN.
        """
        width, step = self.geometry.x[3], self.geometry.attributes.stride[1]
        is_narrow = self.x.type.dtype != float32 or self.y.type.dtype != float32
        return self.roles[1] == WEIGHTS_GRADIENT and is_narrow and width < step

    @property
    def _is_forward(self) -> bool:
        return self.node.op.name == "conv2d"

    @property
    def _copied(self) -> tuple[Value, ...]:
        """The maps that must be copied for the library, because they are not channels-last."""
        return tuple(
            v for v in (self.x, self.y) if not is_channels_last(v.type, self.places[v].strides)
        )

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Yield (first image, number of images) of each call.

        One call covers all images. If feature maps are copied first, each covers those that fit.
        """
        count = self.geometry.x[0]
        images = copied_images(self._copied) if self._copied else count
        for first in range(0, count, images):
            yield first, min(images, count - first)

    # --- the workspace: filters, copies of maps, then the primitive's scratchpad ---

    def _filters_bytes(self, primitive: Primitive) -> int:
        return align(primitive.tensor_bytes(primitive.argument(self.roles[1])), ALIGNMENT)

    def _copy_bytes(self, value: Value, images: int) -> int:
        return align(value.type.bytes // value.shape[0] * images, ALIGNMENT)

    def _scratch(self, primitive: Primitive, images: int) -> int:
        """Return the workspace bytes of filters and copied maps, which precede the scratchpad."""
        copies = sum(self._copy_bytes(value, images) for value in self._copied)
        return self._filters_bytes(primitive) + copies

    # --- calls ---

    def _filters(self) -> Tensor:
        """Return the filters of the node as a tensor, with an axis for groups if there are any."""
        groups, (k, c, r, s) = self.geometry.attributes.groups, self.geometry.w
        strides = strides_of(self.w, self.places[self.w])
        if groups == 1:
            return Tensor((k, c, r, s), self.w.type.dtype, strides)
        by_group = (strides[0] * (k // groups), *strides)
        return Tensor((groups, k // groups, c, r, s), self.w.type.dtype, by_group)

    def _filters_brought(self, primitive: Primitive) -> Execution | None:
        """Return the call that copies the filters to the workspace in the layout of a primitive."""
        given = described(self.library, self._filters())
        ends = Pointer(given.handle), primitive.argument(WEIGHTS)
        addresses = self.places[self.w].address, self.workspace.address
        return reordered(self.library, ends, addresses)

    def _filters_back(self, primitive: Primitive, is_later: bool) -> Execution | None:
        """Return the call that copies the gradient of the filters from the workspace to the output.

        If `is_later`, or if the node adds to a sum, the copy is added to the output instead.
        """
        given = described(self.library, self._filters())
        ends = primitive.argument(WEIGHTS_GRADIENT), Pointer(given.handle)
        addresses = self.workspace.address, self.places[self.w].address
        return reordered(self.library, ends, addresses, is_later or self.sum is not None)

    def _chunk(self, primitive: Primitive, first: int, images: int) -> list[Execution | None]:
        """Return the calls for `images` images from number `first` on.

        These are copies of inputs, the primitive, and copies of outputs.
        """
        source, filters, target = self.roles
        taken = self._filters_bytes(primitive)
        addresses = {filters: self.workspace.address}
        before: list[Execution | None] = []
        behind: list[Execution | None] = []
        for value, argument in ((self.x, source), (self.y, target)):
            place = self._from(value, first)
            addresses[argument] = place.address
            if value not in self._copied:
                continue
            addresses[argument] = copy = self.workspace.address + taken
            taken += self._copy_bytes(value, images)
            given = described(self.library, self._maps(value, images, place))
            ends = Pointer(given.handle), primitive.argument(argument)
            if value in self.node.inputs:
                before.append(reordered(self.library, ends, (place.address, copy)))
            else:
                behind.append(reordered(self.library, ends[::-1], (copy, place.address)))
        if self.bias is not None:
            addresses[BIAS] = self.places[self.bias].address
        call = primitive.on(addresses, self.workspace.address + taken)
        return [*before, call, *behind]

    def _from(self, value: Value, image: int) -> Place:
        """Return the address and strides of the images of a value from number `image` on."""
        place = self.places[value]
        return Place(place.address + image * place.strides[0], place.strides)

    def _maps(self, value: Value, images: int, place: Place) -> Tensor:
        shape = (images, *value.shape[1:])
        return Tensor(shape, value.type.dtype, strides_of(value, place))

    # --- the primitive ---

    def _primitive(self, images: int, threads: int) -> Primitive | None:
        tensors = [self._last(self.x, images), self._open_filters(), self._last(self.y, images)]
        if self.bias is not None:
            tensors.append(Tensor(self.bias.shape, self.bias.type.dtype, (1,)))
        is_part = self.roles[1] == WEIGHTS_GRADIENT and images < self.geometry.x[0]
        if is_part and self.w.type.dtype != float32:
            return None  # the partial sum of each chunk of images would be rounded
        key = (
            self.node.op.name, *tensors, self.geometry.attributes, threads, self.workspace.size,
            *(value in self._copied for value in (self.x, self.y)),
        )  # fmt: skip
        return PRIMITIVES.get(key, partial(self._made, tensors, images))

    def _last(self, value: Value, images: int) -> Tensor:
        """Describe a map of `images` images with channels-last strides."""
        part = value.type.with_shape((images, *value.shape[1:]))
        size = value.type.dtype.itemsize
        strides = tuple(stride // size for stride in channels_last_strides(part))
        return Tensor(part.shape, value.type.dtype, strides)

    def _open_filters(self) -> Tensor:
        filters = self._filters()
        return Tensor(filters.shape, filters.dtype, None)

    def _made(self, tensors: list[Tensor], images: int) -> Primitive | None:
        def fits(primitive: Primitive) -> bool:
            taken = self._scratch(primitive, images) + primitive.scratch_bytes
            return taken <= self.workspace.size

        return chosen(self.library, self._described(tensors), fits)

    def _described(self, tensors: list[Tensor]) -> Owned | None:
        library, a = self.library, self.geometry.attributes
        held = [described(library, tensor) for tensor in tensors]
        x, w, y, *bias = (Pointer(each.handle) for each in held)
        window = (
            numbers(a.stride), numbers([d - 1 for d in a.dilation]),
            numbers(a.padding[:2]), numbers(a.padding[-2:]),
        )  # fmt: skip
        attribute = attributes(library)
        engine, scratch = Pointer(library.engine.handle), Pointer(attribute.handle)
        create = partial(library.offered, "primitive_desc")
        name = "dnnl_convolution_{}_primitive_desc_create"
        forward_filters = described(library, Tensor(tensors[1].shape, tensors[0].dtype, None))
        forward = create(
            name.format("forward"), engine, TRAINING, DIRECT, x, Pointer(forward_filters.handle),
            bias[0] if bias else None, y, *window, scratch,
        )  # fmt: skip
        if forward is None or self._is_forward:
            return forward
        hint = Pointer(forward.handle)
        if self.roles[1] == WEIGHTS:
            found = create(
                name.format("backward_data"), engine, DIRECT, x, w, y, *window, hint, scratch
            )
        else:
            found = create(
                name.format("backward_weights"), engine, DIRECT, x, w, None, y, *window, hint,
                scratch,
            )  # fmt: skip
        if found is not None:
            found.needs = (forward,)  # the search for other implementations reads the hint
        return found
