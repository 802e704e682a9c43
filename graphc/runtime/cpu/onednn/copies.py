"""Copies between layouts and types, as reorder primitives of oneDNN."""

from __future__ import annotations

from graphc.codegen.text.operands import Place, Places, collapse, operand
from graphc.ir.graph import Value
from graphc.runtime.cpu.onednn.library import Library, Pointer
from graphc.runtime.cpu.onednn.primitive import (
    SOURCE,
    TARGET,
    Execution,
    Numbers,
    Tensor,
    attributes,
    chosen,
    described,
)


def strides_of(value: Value, place: Place) -> Numbers:
    """Return strides in elements; an axis of one element gets the largest stride."""
    size = value.type.dtype.itemsize
    given = [stride // size for stride in place.strides]
    reach = max((n * step for n, step in zip(value.shape, given, strict=True)), default=1)
    return tuple(
        step if n > 1 else max(1, reach) for n, step in zip(value.shape, given, strict=True)
    )


def repeats(value: Value, place: Place) -> bool:
    """Return True if an axis is broadcast (stride 0), which no primitive supports."""
    return any(n > 1 and not s for n, s in zip(value.shape, place.strides, strict=True))


def reordered(
    library: Library, ends: tuple[Pointer, Pointer], addresses: tuple[int, int], adds: bool = False
) -> Execution | None:
    """Return the call that copies a tensor to another layout and address.

    `ends` and `addresses` are those of the source and the target. With `adds`, the call adds to the
    target. Returns None if the library cannot do this without scratch.
    """
    engine, made = Pointer(library.engine.handle), attributes(library, adds)
    descriptor = library.offered(
        "primitive_desc", "dnnl_reorder_primitive_desc_create", ends[0], engine, ends[1], engine,
        Pointer(made.handle),
    )  # fmt: skip
    found = chosen(library, descriptor, lambda p: not p.scratch_bytes)
    if found is None:
        return None
    return found.on(dict(zip((SOURCE, TARGET), addresses, strict=True)), 0)


def moved(library: Library, source: Value, target: Value, places: Places) -> list[Execution] | None:
    """Return the calls that copy `source` to the address and layout of `target`.

    Both have the same shape. The list is empty if both have the same address and layout. Returns
    None if the library cannot copy it.
    """
    if places[source] == places[target]:
        return []
    if repeats(source, places[source]):
        return None
    both = [operand("", v, places[v], target.shape) for v in (source, target)]
    extents, operands = collapse(target.shape, both)
    held = [
        described(library, Tensor(extents or (1,), o.dtype, o.strides or (1,))) for o in operands
    ]
    first, second = (Pointer(each.handle) for each in held)
    addresses = places[source].address, places[target].address
    found = reordered(library, (first, second), addresses)
    return None if found is None else [found]
