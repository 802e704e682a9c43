"""Primitives of oneDNN: tensor descriptors, the choice of an implementation, and calls."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from graphc.ir.types import DType, align, bfloat16, float32
from graphc.runtime.cpu.onednn.library import (
    LAST_IMPLEMENTATION,
    Library,
    OnednnError,
    Owned,
    Pointer,
)

DATA_TYPES = {float32: 3, bfloat16: 2}
"""Supported dtypes → values of `dnnl_data_type_t`."""

MOST_AXES = 12
ANY_FORMAT = 1
QUERY_NAME, QUERY_SCRATCHPAD, QUERY_EXECUTION_TENSOR = 8, 136, 255
USER_SCRATCHPAD = 1

SOURCE, TARGET, WEIGHTS, BIAS, SCRATCHPAD = 1, 17, 33, 41, 80
SOURCE_GRADIENT, TARGET_GRADIENT, WEIGHTS_GRADIENT = 129, 145, 161
"""The numbers by which a primitive's arguments are identified, from dnnl_types.h."""

ALLOCATING = ("gemm", "ref")
"""Substrings of the names of rejected implementations. Those based on the library's BLAS allocate
buffers in each call, and reference implementations are slow."""

ALIGNMENT = 128
"""The alignment of scratchpads in bytes, as for scratchpads that the library allocates."""

Numbers = tuple[int, ...]
Condition = Callable[["Primitive"], bool]


class Argument(ctypes.Structure):
    """The C structure `dnnl_exec_arg_t`: the number of an argument, and its memory."""

    _fields_ = (("argument", ctypes.c_int), ("memory", Pointer))


@dataclass(frozen=True, slots=True)
class Tensor:
    """The type of an operand of a primitive, with strides in elements.

    If `strides` is None, the library chooses the layout.
    """

    shape: Numbers
    dtype: DType
    strides: Numbers | None


@dataclass(frozen=True, slots=True)
class Workspace:
    """The part of the plan's workspace that the calls of a node may use."""

    address: int
    """The address of the first byte, a multiple of `ALIGNMENT`."""
    size: int


@dataclass
class Execution:
    """A call of a primitive, for the step table.

    Its C function is ``int dnnl_primitive_execute(primitive, stream, count, arguments)``.
    """

    function: int
    primitive: int
    stream: int
    arguments: ctypes.Array[Argument]
    count: int
    threads: int
    """The number of threads for which the primitive was created."""
    kept: tuple[object, ...]
    """The handles that must exist as long as the call."""


def numbers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Convert numbers to a `dnnl_dims_t`."""
    return (ctypes.c_int64 * MOST_AXES)(*values)


def described(library: Library, tensor: Tensor) -> Owned:
    """Create the memory descriptor of a tensor."""
    shape = len(tensor.shape), numbers(tensor.shape), DATA_TYPES[tensor.dtype]
    if tensor.strides is None:
        return library.made("memory_desc", *shape, ANY_FORMAT, how="create_with_tag")
    return library.made("memory_desc", *shape, numbers(tensor.strides), how="create_with_strides")


class Primitive:
    """A primitive of the library, with the properties that a call needs."""

    def __init__(self, library: Library, descriptor: Owned) -> None:
        self._library, self._descriptor = library, descriptor
        self.scratch_bytes = self.tensor_bytes(self.tensor(QUERY_SCRATCHPAD, 0))
        name = ctypes.c_char_p()
        library.call(
            "dnnl_primitive_desc_query", self.descriptor, QUERY_NAME, 0, ctypes.byref(name)
        )
        self.implementation = (name.value or b"").decode()
        self._made: Owned | None = None
        self.threads = int(library.functions.omp_get_max_threads())
        """The number of threads that the primitive runs on; see `Library.threads`."""

    @property
    def descriptor(self) -> Pointer:
        """The handle of the primitive descriptor."""
        return Pointer(self._descriptor.handle)

    @property
    def primitive(self) -> Owned:
        """The primitive, created at the first access."""
        if self._made is None:
            self._made = self._library.made("primitive", self.descriptor)
        return self._made

    @property
    def allocates(self) -> bool:
        """True if a call would allocate memory of the size of its operands, or would be slow."""
        return any(part in self.implementation for part in ALLOCATING)

    def argument(self, argument: int) -> Pointer:
        """Return the memory descriptor that the primitive requires for an argument."""
        return self.tensor(QUERY_EXECUTION_TENSOR, argument)

    def tensor(self, query: int, index: int) -> Pointer:
        """Query a memory descriptor of the primitive."""
        functions = self._library.functions
        return Pointer(functions.dnnl_primitive_desc_query_md(self.descriptor, query, index))

    def tensor_bytes(self, described: Pointer) -> int:
        """Return the bytes of a tensor; 0 for a null descriptor."""
        if not described.value:
            return 0
        return int(self._library.functions.dnnl_memory_desc_get_size(described))

    def lies(self, argument: int, tensor: Owned) -> bool:
        """Return True if the primitive requires the memory descriptor `tensor` for an argument."""
        equal = self._library.functions.dnnl_memory_desc_equal
        return bool(equal(self.argument(argument), Pointer(tensor.handle)))

    def on(self, addresses: Mapping[int, int], scratch: int) -> Execution:
        """Create a call with arguments at these addresses and a scratchpad at `scratch`."""
        library = self._library
        places = {key: (self.argument(key), address) for key, address in addresses.items()}
        if self.scratch_bytes:
            places[SCRATCHPAD] = self.tensor(QUERY_SCRATCHPAD, 0), align(scratch, ALIGNMENT)
        engine = Pointer(library.engine.handle)
        memories = {
            key: library.made("memory", tensor, engine, Pointer(address))
            for key, (tensor, address) in places.items()
        }
        listed = [Argument(key, memory.handle) for key, memory in memories.items()]
        arguments = (Argument * len(listed))(*listed)
        kept = (self, *memories.values())
        return Execution(
            library.execute, self.primitive.handle, library.stream.handle, arguments, len(listed),
            self.threads, kept,
        )  # fmt: skip


class Primitives:
    """A weak cache of the primitives in use; nodes with equal keys share a primitive."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[Hashable, Primitive] = (
            weakref.WeakValueDictionary()
        )

    def get(self, key: Hashable, make: Callable[[], Primitive | None]) -> Primitive | None:
        """Return the primitive of a key, created by `make` if there is none."""
        found = self._known.get(key)
        if found is None:
            found = make()
            if found is not None:
                self._known[key] = found
        return found


PRIMITIVES = Primitives()


def attributes(
    library: Library, adds: bool = False, activation: int | None = None, alpha: float = 0.0
) -> Owned:
    """Create the attributes of a primitive: a scratchpad of the caller, and post-ops.

    With `adds`, the result is added to the target. `activation` is a `dnnl_alg_kind_t`.
    """
    made = library.made("primitive_attr")
    handle = Pointer(made.handle)
    library.call("dnnl_primitive_attr_set_scratchpad_mode", handle, USER_SCRATCHPAD)
    if adds or activation is not None:
        after = library.made("post_ops")
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        if adds:
            library.call("dnnl_post_ops_append_sum", Pointer(after.handle), one, 0, 0)
        if activation is not None:
            library.call(
                "dnnl_post_ops_append_eltwise", Pointer(after.handle), activation,
                ctypes.c_float(alpha), zero,
            )  # fmt: skip
        library.call("dnnl_primitive_attr_set_post_ops", handle, Pointer(after.handle))
    return made


def chosen(library: Library, descriptor: Owned | None, fits: Condition) -> Primitive | None:
    """Return the first implementation of a descriptor for which `fits` is true, or None.

    Implementations that allocate memory in each call are skipped.
    """
    while descriptor is not None:
        found = Primitive(library, descriptor)
        if not found.allocates and fits(found):
            return found
        status = library.status("dnnl_primitive_desc_next_impl", Pointer(descriptor.handle))
        if status == LAST_IMPLEMENTATION:
            return None
        if status:
            raise OnednnError(f"oneDNN: dnnl_primitive_desc_next_impl: status {status}")
    return None


Made = TypeVar("Made")


def with_fewer(library: Library, threads: int, make: Callable[[int], Made | None]) -> Made | None:
    """Call `make` with `threads` threads, then with half as many each time, down to one.

    Return the first result that is not None, or None.
    """
    while threads:
        with library.threads(threads):
            found = make(threads)
        if found is not None:
            return found
        threads //= 2
    return None
