"""Generated CUDA kernels, compiled as C++ by g++ and run on NumPy's arrays."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from graphc.ir.graph import Node, Value
from graphc.runtime.gpu.source.generate import kernels_of
from graphc.runtime.gpu.source.kernel import Kernel, NodeKernels, Scratch, module_text
from graphc.runtime.gpu.source.layout import Place

HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-shared", "-ffp-contract=off", "-w")


class Library:
    """Kernels as functions of a shared library, built once for each text; `edit` may break it."""

    def __init__(
        self,
        kernels: Iterable[Kernel],
        folder: Path,
        edit: Callable[[str], str] = lambda text: text,
    ) -> None:
        kernels = list(kernels)
        exports = "\n".join(f"EXPORT({name})" for name in sorted({k.name for k in kernels}))
        parts = (HERE / "shim.h").read_text(), edit(module_text(kernels))
        text = "\n".join([*parts, (HERE / "shim_tail.h").read_text(), exports])
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        path = folder / f"kernels_{digest}.so"
        with (folder / f"{digest}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the first worker builds it for all
            if not path.exists():
                source, built = folder / f"{digest}.cc", folder / f"{digest}.partial"
                source.write_text(text)
                subprocess.run(["g++", *FLAGS, str(source), "-o", str(built)], check=True)
                built.replace(path)
        self.functions = ctypes.CDLL(str(path))

    def run(
        self,
        found: NodeKernels,
        arrays: Mapping[Value, np.ndarray],
        descending: bool = False,
    ) -> None:
        """All launches in order, on these arrays, with the threads of a block in that order."""
        scratch = [np.full(type.shape, 77, type.dtype.numpy) for type in found.scratch]
        for launch in found.launches:
            given = [_argument(argument, arrays, scratch) for argument in launch.arguments]
            pointers = (ctypes.c_void_p * len(given))(*given)
            function = getattr(self.functions, f"run_{launch.kernel.name}")
            if function(pointers, launch.grid, launch.block, int(descending)):
                raise AssertionError(f"{launch.kernel.name}: a barrier that not all threads meet")


def _argument(argument, arrays, scratch):
    if isinstance(argument, int):
        return argument
    buffer = scratch[argument.index] if isinstance(argument, Scratch) else arrays[argument]
    return buffer.ctypes.data


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


def generated(node: Node, arrays: Mapping[Value, np.ndarray]) -> NodeKernels:
    """The node's kernels for arrays as they lie."""
    return kernels_of(node, places_of(arrays))


def kernels_in(found: Sequence[NodeKernels]) -> list[Kernel]:
    return [launch.kernel for each in found for launch in each.launches]
