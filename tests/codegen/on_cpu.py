"""Generated CUDA kernels, compiled as C++ by g++ and run on NumPy's arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from codegen import compiled

from graphc import Node, Value
from graphc.codegen.lowering import calls_of
from graphc.codegen.node_calls import Gemm, NodeCalls, Scratch
from graphc.codegen.text.kernel import Kernel, module_text, prelude
from graphc.codegen.text.operands import Place
from graphc.runtime.gpu.products import Products

HERE = Path(__file__).parent
FLAGS = ("-Og", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-w")


class Library:
    """Kernels as functions of a shared library with these flags; `edit` may break its text."""

    def __init__(
        self,
        kernels: Iterable[Kernel],
        edit: Callable[[str], str] = lambda text: text,
        flags: tuple[str, ...] = (),
    ) -> None:
        kernels = list(kernels)
        exports = "\n".join(f"EXPORT({name})" for name in sorted({k.name for k in kernels}))
        header, text = (HERE / "shim.h").read_text(), edit(module_text(kernels))
        if text.startswith(prelude()):
            header, text = f"{header}\n{prelude()}", text.removeprefix(prelude())
        text = "\n".join([text, (HERE / "shim_tail.h").read_text(), exports])
        self.functions = compiled.load(text, *FLAGS, *flags, header=header)

    def run(
        self,
        found: NodeCalls,
        arrays: Mapping[Value, np.ndarray],
        descending: bool = False,
        cublas: Products | None = None,
    ) -> None:
        """All calls in order, on these arrays, with the threads of a block in that order."""
        scratch = [np.full(type.shape, 77, type.dtype.numpy) for type in found.scratch]
        buffers = {**arrays, **{Scratch(i): array for i, array in enumerate(scratch)}}
        addresses = {buffer: array.ctypes.data for buffer, array in buffers.items()}
        for launch in found.calls:
            if isinstance(launch, Gemm):
                assert cublas is not None
                cublas.run(launch, addresses)
                continue
            given = [a if isinstance(a, int) else addresses[a] for a in launch.arguments]
            pointers = (ctypes.c_void_p * len(given))(*given)
            function = getattr(self.functions, f"run_{launch.kernel.name}")
            if function(pointers, launch.grid, launch.block, int(descending)):
                raise AssertionError(f"{launch.kernel.name}: a barrier that not all threads meet")


def places_of(arrays: Mapping[Value, np.ndarray]) -> dict[Value, Place]:
    """Where arrays lie."""
    return {value: Place(a.ctypes.data, a.strides) for value, a in arrays.items()}


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy in one piece from an address that is a multiple of 256."""
    raw = np.empty(array.nbytes + 256, np.uint8)
    skip = -raw.ctypes.data % 256
    copy = raw[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def surroundings(array: np.ndarray) -> np.ndarray:
    """All bytes of the memory that an array is a part of."""
    while array.base is not None:
        array = array.base
    return array


def apart(array: np.ndarray, axis: int) -> np.ndarray:
    """The same elements as a part of a larger array, cut along `axis`."""
    shape = list(array.shape)
    shape[axis] = 2 * shape[axis] + 3
    large = aligned(np.full(shape, 77, array.dtype))
    inside = large[(*(slice(None),) * axis, slice(2, 2 + array.shape[axis]))]
    inside[...] = array
    return inside


def channels_last(array: np.ndarray) -> np.ndarray:
    """The same elements with axis 1 innermost, in one piece."""
    return aligned(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def generated(node: Node, arrays: Mapping[Value, np.ndarray]) -> NodeCalls:
    """The node's kernels for arrays as they lie."""
    return calls_of(node, places_of(arrays))


def kernels_in(found: Sequence[NodeCalls]) -> list[Kernel]:
    return [kernel for each in found for kernel in each.kernels]


def edited(found: NodeCalls, change: Callable[[str], str], suffix: str) -> NodeCalls:
    """Return the calls with changed texts of their kernels, which get names of their own."""

    def other(kernel: Kernel) -> Kernel:
        name = f"{kernel.name}_{suffix}"
        return Kernel(name, change(kernel.text).replace(kernel.name, name))

    return replace(
        found,
        calls=tuple(
            call if isinstance(call, Gemm) else replace(call, kernel=other(call.kernel))
            for call in found.calls
        ),
    )
