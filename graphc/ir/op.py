"""The base class of all ops, and the registry.

An op is one class in one place: names, attributes, type inference, buffer relations, cost, symbolic
gradient and kernel. The methods below are found by name when the class is created
(`graphc.ir.op_class`), because their parameters are part of the declaration:

``infer(self, attributes, *input types) -> output type(s)``
    Returns shapes and dtypes; raises `ShapeError` or `DTypeError` with the rule that is broken.
``gradient(self, node, ...)`` or ``gradient_<input>(self, node, ...)``
    Returns the derivative with respect to one input, built from ops. The parameters after ``node``
    name the values that it reads: ``d<output>`` for the incoming gradient, or an input or output.
    Values that are not named may be freed early. If the loss does not depend on one of several
    outputs, its gradient is None. Types and attributes come from ``node`` and create no dependence.
    Returning None means zero. An op with one input may call its method ``gradient``.
``kernel(self, record, node, *inputs, **outputs)``
    Runs once, when a program is bound: it calls ``record(function, *args, **kwargs)`` for each
    call that a step must make. ``record.scratch`` holds the arrays that `scratch` requested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from graphc.devices.device import Device
from graphc.errors import OptionError
from graphc.ir.op_class import GradientRule, check_class, check_cures, gradient_rules
from graphc.ir.types import MOST_AXES, Layout, TensorType, float32, outer_axes

if TYPE_CHECKING:
    from graphc.ir.graph import Node, Value

Array = np.ndarray[Any, np.dtype[Any]]

Treatment = Literal["narrow", "wide", "follow", "lookup"]

Strided = Mapping["Value", tuple[int, ...]]
"""Value → its strides in bytes, for values that are not contiguous and row-major."""


@dataclass(frozen=True, slots=True)
class NoAttributes:
    """The attribute class of ops without attributes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one node: floating point operations, and bytes moved to and from memory."""

    flops: int
    bytes_read: int
    bytes_written: int


class Lane(Protocol):
    """An executor of collectives and copies, which run concurrently with other calls of a step."""

    def begins(self, node: Node, x: Array, y: Array) -> Callable[[], None]:
        """Return a function that starts the work of a node and does not wait for its end."""
        ...

    def ends(self, node: Node) -> Callable[[], None]:
        """Return a function that waits for the work of a node; `begins` was called before."""
        ...


class Recorder(Protocol):
    """The interface that kernels use while a program is bound."""

    scratch: tuple[Array, ...]

    @property
    def lane(self) -> Lane:
        """The lane that runs collectives, and copies between device and host."""
        ...

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None: ...


ANY_AXES = MOST_AXES
"""The value of `free_axes` if all axes may have any strides."""


class Op:
    """The base of all ops; instances have no state, and the registry holds one per class."""

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    """Input names; a last name with a star, such as ``*parts``, takes any number of values."""
    outputs: ClassVar[tuple[str, ...]] = ("y",)
    attributes: ClassVar[type[Any]] = NoAttributes
    views: ClassVar[str | None] = None
    """The input that the outputs view, if `view` finds a layout."""
    may_overwrite: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Output → inputs whose bytes it may reuse if no other node reads them later, best first."""
    must_overwrite: ClassVar[Mapping[str, str]] = {}
    """Output → the input that it replaces: a state, or the copy of a state on the host.

    Such a node has an effect and is never copied."""
    independent: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Output → inputs on which it does not depend.

    Their gradient rules need not read the output's gradient.
    """
    instead_of_gradient: ClassVar[Mapping[str, str]] = {}
    """Input without a gradient rule → advice for the error if its gradient is requested."""
    only_floats: ClassVar[bool] = False
    """True if all operands are floats, whose expressions have no bitwise operators."""
    flops_per_element: ClassVar[int] = 0
    """Floating point operations per element of the first output, for the default `cost`."""
    native_16_bit: ClassVar[bool] = False
    """True if the kernel takes 16-bit floats itself; otherwise it runs on float32 copies."""

    precision: ClassVar[Treatment] = "follow"
    """Treatment of float32 operands in mixed precision, see `graphc.passes.precision`."""
    wide_inputs: ClassVar[tuple[str, ...]] = ()
    """Inputs that stay float32 in mixed precision."""

    gathers: ClassVar[str | None] = None
    """The variadic input whose values may be stored inside the output, at layouts from `gather`."""
    needs_contiguous: ClassVar[tuple[str, ...]] = ()
    """Inputs that the kernel reshapes: strided views of these are copied first."""
    strided_axes: ClassVar[Mapping[str, int]] = {}
    """Input or output → the number of leading axes that may have any strides.

    The remaining axes are contiguous. Strides must not change a bit of the result. An input that is
    not named takes any strides, or none if it is in `needs_contiguous`; an output takes none."""

    any_strides: ClassVar[bool] = False
    """True if generated kernels of the op accept any strides of all operands."""
    on_maps: ClassVar[bool] = False
    """True if outputs of rank 4 are maps (batch, channels, height, width) or filters.

    They are then channels-last if a target prefers it, for any layouts of the inputs.
    """
    convolves: ClassVar[bool] = False
    """True if the op is a convolution or a gradient of one.

    Only graphs with such an op use channels-last layouts.
    """
    sends: ClassVar[bool] = False
    """True if the op is a collective: its input is sent to other ranks."""
    joins: ClassVar[bool] = False
    """True if the output is the concatenation of the operands of all ranks."""
    copies_to: ClassVar[Literal["", "host", "device"]] = ""
    """The memory to which the op starts a copy of its input; empty for all other ops."""
    awaits: ClassVar[bool] = False
    """True if the op waits for the collective or copy whose output is its first input."""
    multiplies: ClassVar[bool] = False
    """True if the op is a product of matrices, whose rows are padded if a target prefers that."""

    indices: ClassVar[tuple[str, ...]] = ()
    """Inputs that `index_limit` applies to; if none is named, all integer inputs."""
    counts_from_end: ClassVar[bool] = False
    """True if inputs in `indices` may also hold negative indices, down to minus the limit."""
    limited: ClassVar[tuple[str, ...]] = ()
    """Outputs that `output_limit` applies to; if none is named, all integer outputs."""
    learning_rates: ClassVar[tuple[str, ...]] = ()
    """Inputs that are learning rates: users may feed finite numbers from 0 up."""

    untimed_attributes: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that do not affect the time of the kernel."""

    gradients: ClassVar[Mapping[str, GradientRule]] = {}
    """Input → gradient rule; set from the gradient methods when the class is created."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if {"name", "expressions"} & vars(cls).keys():
            check_class(cls, Op, REGISTRY)
            cls.gradients = gradient_rules(cls)
            check_cures(cls)
            REGISTRY[cls.name] = cls()

    @property
    def has_effect(self) -> bool:
        return bool(self.must_overwrite)

    @property
    def begins(self) -> bool:
        """True if a node only starts its work, so that its output is read through an arrival."""
        return self.sends or bool(self.copies_to)

    @property
    def is_variadic(self) -> bool:
        return self.inputs[-1:] != () and self.inputs[-1].startswith("*")

    def input_name(self, index: int) -> str:
        """Return the declared name of input number `index`."""
        return self.inputs[min(index, len(self.inputs) - 1)].lstrip("*")

    def output_name(self, index: int) -> str:
        """Return the declared name of output number `index`."""
        return self.outputs[min(index, len(self.outputs) - 1)].lstrip("*")

    def infer_types(self, attributes: Any, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """Return the output types from `infer`, always as a tuple."""
        inferred = getattr(self, "infer")(attributes, *types)  # noqa: B009 - declared by subclasses
        return inferred if isinstance(inferred, tuple) else (inferred,)

    def title(self, attributes: Any) -> str:
        """Return the printed name of a node with these attributes."""
        return self.name

    def view(self, node: Node, source: Layout) -> tuple[Layout, ...] | None:
        """Return layouts of the outputs inside the viewed input, or None if a copy is needed."""
        return None

    def effects(self, copies: Sequence[Node]) -> tuple[Node, ...]:
        """Return updates of states that a training step adds for a node.

        `copies` is the node in each of the step's micro-batches, usually one.
        """
        return ()

    def inference(self, node: Node) -> Value | None:
        """Return the value that replaces this node's first output in inference; None if nothing
        changes."""
        return None

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return tensors that the kernel needs while it runs; the plan allocates a workspace for
        them."""
        return ()

    def index_limit(self, node: Node) -> int | tuple[int, ...] | None:
        """Return the exclusive upper limit of integer inputs that index rows or classes, from 0.

        A tuple has one limit for each element along the last axis of the inputs. None if integer
        inputs are not indices.
        """
        return None

    def output_limit(self, node: Node) -> int | None:
        """Return the exclusive upper limit of integer outputs, from 0, for any input; None if
        unlimited."""
        return None

    def ignored_index(self, node: Node) -> int | None:
        """Return the one integer outside `index_limit` that index inputs may hold.

        None if there is none.
        """
        return None

    def sent_bytes(self, node: Node) -> int:
        """Return the bytes that a rank sends to others; 0 except for collectives."""
        return 0

    def widens(self, node: Node) -> bool:
        """Return whether the kernel of a node runs on float32 copies of its 16-bit operands."""
        return not self.native_16_bit and any(map(is_16_bit, node.inputs + node.outputs))

    def gather(self, node: Node, whole: Layout) -> tuple[Layout, ...]:
        """Return layouts of the gathered inputs inside the output, which has the layout `whole`."""
        raise NotImplementedError

    def numpy_views(self, node: Node, x: Array) -> Sequence[Array]:
        """Return the outputs as views of the array `x`, created by NumPy's functions.

        The plan checker compares the planned views with these, so this method shares no code with
        `view`. Raises `ValueError` if NumPy would have to copy.
        """
        raise NotImplementedError

    def numpy_parts(self, node: Node, y: Array) -> Sequence[Array]:
        """Return the gathered inputs as NumPy slices of the output.

        The plan checker compares the planned parts with these, so this method shares no code with
        `gather`.
        """
        raise NotImplementedError

    def free_axes(self, node: Node, name: str) -> int:
        """Return the number of leading axes of an input or output that may have any strides.

        This is `strided_axes`; an op overrides it if the number depends on the node.
        """
        takes_any = name not in self.outputs and name not in self.needs_contiguous
        return self.strided_axes.get(name, ANY_AXES if takes_any else 0)

    def straightened(self, node: Node, strided: Strided) -> tuple[Value, ...]:
        """Return inputs that are copied since the kernel does not accept their strides."""
        found = {
            value: None
            for index, value in enumerate(node.inputs)
            if value in strided
            and outer_axes(value.type, strided[value])
            > self.free_axes(node, self.input_name(index))
        }
        return tuple(found)

    def prepared(self, node: Node, strided: Strided) -> tuple[Value, ...]:
        """Return inputs that are copied before the kernel runs: as float32, or as contiguous."""
        straightened = self.straightened(node, strided)
        if not self.widens(node):
            return straightened
        return tuple(v for v in dict.fromkeys(node.inputs) if is_16_bit(v) or v in straightened)

    def workspace(self, node: Node, device: Device, strided: Strided) -> tuple[TensorType, ...]:
        """Return all tensors that the NumPy kernel needs in addition to its values.

        They are copies of inputs (`prepared`), float32 copies of 16-bit outputs, and scratch.
        """
        prepared = [value.type for value in self.prepared(node, strided)]
        scratch = self.scratch(node, device)
        if not self.widens(node):
            return (*prepared, *scratch)
        outputs = [value.type for value in node.outputs if is_16_bit(value)]
        return tuple(_widened(type) for type in (*prepared, *outputs, *scratch))

    def contracts(self, node: Node) -> bool:
        """Return whether a node computes sums of products, which tensor cores support."""
        return self.multiplies or self.convolves

    def cost(self, node: Node) -> Cost:
        """Return the work of one node on contiguous operands."""
        read = sum(value.type.bytes for value in node.inputs)
        written = sum(value.type.bytes for value in node.outputs)
        return Cost(self.flops_per_element * node.outputs[0].type.elements, read, written)


def _narrow(type: TensorType) -> bool:
    """Return whether elements of a type are 16-bit floats."""
    return type.dtype.kind == "float" and type.dtype.itemsize == 2


def _widened(type: TensorType) -> TensorType:
    return type.with_dtype(float32) if _narrow(type) else type


def is_16_bit(value: Value) -> bool:
    """Return whether a value is a 16-bit float."""
    return _narrow(value.type)


REGISTRY: dict[str, Op] = {}
"""Name → op, for all op classes."""


def find_op(name: str) -> Op:
    """Return the op of that name; raises `OptionError` for an unknown name."""
    if name not in REGISTRY:
        raise OptionError(f"unknown op {name!r}; `graphc ops` lists the {len(REGISTRY)} known ops")
    return REGISTRY[name]


def attribute_items(attributes: Any) -> tuple[tuple[str, Any], ...]:
    """Return (field, value) pairs of an attributes object, in declared order."""
    return tuple((field.name, getattr(attributes, field.name)) for field in fields(attributes))
