"""The base class of every op, and the registry.

An op is one class in one place: names, attributes, type inference, buffer relations, cost,
symbolic gradient and kernel. The methods below are looked up by name when the class is created
(`graphc.ir.op_class`), because their parameters are part of the declaration:

``infer(self, attributes, *input types) -> output type(s)``
    Shapes and dtypes; raises `ShapeError` or `DTypeError` with the rule that is broken.
``gradient(self, node, ...)`` or ``gradient_<input>(self, node, ...)``
    The derivative by one input, built from ops. The parameter names after ``node`` are the
    values that it reads: ``d<output>`` for the incoming gradient, or an input's or output's
    name. What is not named may die early. An op with several outputs gets None for the gradient of
    one that the loss does not depend on. Types and attributes come from ``node`` and create no
    dependency. None stands for zero. An op with one input may call its method ``gradient``.
``kernel(self, record, node, *inputs, **outputs)``
    Runs once, when a program is bound: it calls ``record(function, *args, **kwargs)`` for each
    call that a step must make. ``record.scratch`` holds the arrays that `scratch` asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from graphc.errors import OptionError
from graphc.ir.device import Device
from graphc.ir.op_class import GradientRule, check_class, check_cures, gradient_rules
from graphc.ir.types import MOST_AXES, Layout, TensorType, float32, outer_axes

if TYPE_CHECKING:
    from graphc.ir.graph import Node, Value

Array = np.ndarray[Any, np.dtype[Any]]

Strided = Mapping["Value", tuple[int, ...]]
"""Value → its strides in bytes, for the values that do not lie in one piece, row-major."""


@dataclass(frozen=True, slots=True)
class NoAttributes:
    """The attributes of an op whose inputs say everything."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one node: floating point operations, and bytes moved to and from memory."""

    flops: int
    bytes_read: int
    bytes_written: int


class Lane(Protocol):
    """Where the exchanges between ranks run, beside the other calls of a step."""

    def begins(self, node: Node, x: Array, y: Array) -> Callable[[], None]:
        """The call that begins the collective of a node, and returns before it is done."""
        ...

    def ends(self, node: Node) -> Callable[[], None]:
        """The call that waits until the collective of a node, which was bound before, is done."""
        ...


class Recorder(Protocol):
    """What a kernel sees while a program is bound."""

    scratch: tuple[Array, ...]

    @property
    def lane(self) -> Lane:
        """Where collectives run."""
        ...

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None: ...


ANY_AXES = MOST_AXES
"""Any number of axes."""


class Op:
    """The base of all ops; instances carry no state, one per class lives in the registry."""

    name: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    """Input names; a last name with a star, ``*parts``, takes any number of values."""
    outputs: ClassVar[tuple[str, ...]] = ("y",)
    attributes: ClassVar[type[Any]] = NoAttributes
    views: ClassVar[str | None] = None
    """The input whose bytes the outputs are, wherever `view` finds a layout."""
    may_overwrite: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Output → inputs whose bytes it may take when nothing else reads them, best first."""
    must_overwrite: ClassVar[Mapping[str, str]] = {}
    """Output → the state input that it replaces. Such a node has an effect and is never copied."""
    independent: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Output → inputs that it does not depend on: their gradient rules need not take what comes
    back to it."""
    instead_of_gradient: ClassVar[Mapping[str, str]] = {}
    """Input without a gradient rule → what to do where its gradient is asked for, as the error says
    it."""
    flops_per_element: ClassVar[int] = 0
    """Floating point operations per element of the first output, for the default `cost`."""
    native_16_bit: ClassVar[bool] = False
    """Whether the kernel takes 16-bit floats itself; otherwise it is run on float32 copies."""

    precision: ClassVar[Literal["narrow", "wide", "follow", "lookup"]] = "follow"
    """What the op does with float32 operands in mixed precision, see `graphc.passes.precision`."""
    wide_inputs: ClassVar[tuple[str, ...]] = ()
    """Inputs that stay float32 in mixed precision."""

    gathers: ClassVar[str | None] = None
    """The variadic input whose values may lie inside the output, where `gather` says."""
    needs_contiguous: ClassVar[tuple[str, ...]] = ()
    """Inputs that the kernel reshapes: where one is a strided view, it is run on a copy."""
    strided_axes: ClassVar[Mapping[str, int]] = {}
    """Input or output → how many of its first axes may have strides of their own if the rest lies
    in one piece. What is computed must not depend on the strides in any bit. An input that is not
    named takes any strides, or none if it is in `needs_contiguous`; an output none."""

    any_strides: ClassVar[bool] = False
    """Whether kernels that are generated for the op take any strides of all operands."""
    on_maps: ClassVar[bool] = False
    """Whether outputs of rank 4 are maps (batch, channels, height, width) or weights, whatever is
    read: they lie channels-last where a target prefers that."""
    convolves: ClassVar[bool] = False
    """Whether the op is a convolution or a gradient of one: without any, nothing is a map."""
    sends: ClassVar[bool] = False
    """Whether the op is a collective: what it reads goes to other ranks."""
    joins: ClassVar[bool] = False
    """Whether the output has the operands of all ranks behind each other."""
    awaits: ClassVar[bool] = False
    """Whether the op waits until a collective whose output it reads is done."""
    multiplies: ClassVar[bool] = False
    """Whether the op is a product of matrices, whose rows are padded where a target prefers it."""

    indices: ClassVar[tuple[str, ...]] = ()
    """Inputs that `index_limit` is about; where none is named, all that are integers."""
    counts_from_end: ClassVar[bool] = False
    """Whether such an input may also hold numbers from minus its limit, counted from the end."""
    learning_rates: ClassVar[tuple[str, ...]] = ()
    """Inputs that are learning rates: what a user feeds to one is a finite number from 0 up."""

    untimed_attributes: ClassVar[tuple[str, ...]] = ()
    """Attributes that have nothing to do with how long the kernel takes."""

    gradients: ClassVar[Mapping[str, GradientRule]] = {}
    """Input → rule; filled in from the gradient methods when the class is created."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__:
            check_class(cls, Op, REGISTRY)
            cls.gradients = gradient_rules(cls)
            check_cures(cls)
            REGISTRY[cls.name] = cls()

    @property
    def has_effect(self) -> bool:
        return bool(self.must_overwrite)

    @property
    def is_variadic(self) -> bool:
        return self.inputs[-1:] != () and self.inputs[-1].startswith("*")

    def input_name(self, index: int) -> str:
        """The declared name of input number `index`."""
        return self.inputs[min(index, len(self.inputs) - 1)].lstrip("*")

    def output_name(self, index: int) -> str:
        """The declared name of output number `index`."""
        return self.outputs[min(index, len(self.outputs) - 1)].lstrip("*")

    def infer_types(self, attributes: Any, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        """The output types by `infer`, always as a tuple."""
        inferred = getattr(self, "infer")(attributes, *types)  # noqa: B009 - declared by subclasses
        return inferred if isinstance(inferred, tuple) else (inferred,)

    def title(self, attributes: Any) -> str:
        """What printouts call a node with these attributes."""
        return self.name

    def view(self, node: Node, source: Layout) -> tuple[Layout, ...] | None:
        """Layouts of the outputs inside the viewed input, or None where a copy is needed."""
        return None

    def effects(self, copies: Sequence[Node]) -> tuple[Node, ...]:
        """Updates of states that a training step adds because a node is in it.

        `copies` is the node in each of the step's micro-batches, usually one.
        """
        return ()

    def inference(self, node: Node) -> Value | None:
        """What stands for this node's first output outside training; None where nothing changes."""
        return None

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Tensors that the kernel needs while it runs; the plan gives them a workspace."""
        return ()

    def index_limit(self, node: Node) -> int | tuple[int, ...] | None:
        """The limit below which integer inputs must lie, from 0, where they number rows or classes;
        one each for what lies along their last axis; None where they number nothing."""
        return None

    def output_limit(self, node: Node) -> int | None:
        """The limit below which integer outputs lie, from 0, whatever is read; None for none."""
        return None

    def ignored_index(self, node: Node) -> int | None:
        """The one integer beyond the limit that such inputs may hold; None where there is none."""
        return None

    def sent_bytes(self, node: Node) -> int:
        """The bytes that a rank sends to others; 0 but for collectives."""
        return 0

    def widens(self, node: Node) -> bool:
        """Whether the kernel runs on float32 copies of 16-bit operands here."""
        return not self.native_16_bit and any(map(is_16_bit, node.inputs + node.outputs))

    def gather(self, node: Node, whole: Layout) -> tuple[Layout, ...]:
        """Layouts of the gathered inputs inside the output, which lies at `whole`."""
        raise NotImplementedError

    def numpy_views(self, node: Node, x: Array) -> Sequence[Array]:
        """The outputs as NumPy's own functions make them of the viewed input.

        The checker of plans compares every view with it, so it shares nothing with `view`. Raises
        `ValueError` where NumPy would have to copy.
        """
        raise NotImplementedError

    def numpy_parts(self, node: Node, y: Array) -> Sequence[Array]:
        """The places of the gathered inputs as NumPy slices them out of the output.

        The checker of plans compares every part with it, so it shares nothing with `gather`.
        """
        raise NotImplementedError

    def free_axes(self, node: Node, name: str) -> int:
        """How many first axes of an input or output may have strides of their own.

        This is `strided_axes`; an op overrides it where the number depends on the node.
        """
        takes_any = name not in self.outputs and name not in self.needs_contiguous
        return self.strided_axes.get(name, ANY_AXES if takes_any else 0)

    def straightened(self, node: Node, strided: Strided) -> tuple[Value, ...]:
        """Inputs that lie as no kernel takes them: they are copied into one piece first."""
        found = {
            value: None
            for index, value in enumerate(node.inputs)
            if value in strided
            and outer_axes(value.type, strided[value])
            > self.free_axes(node, self.input_name(index))
        }
        return tuple(found)

    def prepared(self, node: Node, strided: Strided) -> tuple[Value, ...]:
        """Inputs that the kernel sees as contiguous float32 or contiguous copies."""
        straightened = self.straightened(node, strided)
        if not self.widens(node):
            return straightened
        return tuple(v for v in dict.fromkeys(node.inputs) if is_16_bit(v) or v in straightened)

    def workspace(self, node: Node, device: Device, strided: Strided) -> tuple[TensorType, ...]:
        """All tensors that the NumPy kernel needs beside its values: prepared inputs, widened
        outputs, scratch."""
        prepared = [value.type for value in self.prepared(node, strided)]
        scratch = self.scratch(node, device)
        if not self.widens(node):
            return (*prepared, *scratch)
        outputs = [value.type for value in node.outputs if is_16_bit(value)]
        return tuple(_widened(type) for type in (*prepared, *outputs, *scratch))

    def contracts(self, node: Node) -> bool:
        """Whether a node's work is sums of products, which tensor cores compute."""
        return self.multiplies or self.convolves

    def cost(self, node: Node) -> Cost:
        """The work of one node on contiguous operands."""
        read = sum(value.type.bytes for value in node.inputs)
        written = sum(value.type.bytes for value in node.outputs)
        return Cost(self.flops_per_element * node.outputs[0].type.elements, read, written)


def _narrow(type: TensorType) -> bool:
    """Whether elements of a type are 16-bit floats."""
    return type.dtype.kind == "float" and type.dtype.itemsize == 2


def _widened(type: TensorType) -> TensorType:
    return type.with_dtype(float32) if _narrow(type) else type


def is_16_bit(value: Value) -> bool:
    """Whether a value is a 16-bit float."""
    return _narrow(value.type)


REGISTRY: dict[str, Op] = {}
"""Name → the op, for all op classes that were created."""


def find_op(name: str) -> Op:
    """The op of that name; raises `OptionError` that says how to list those that are known."""
    if name not in REGISTRY:
        raise OptionError(f"unknown op {name!r}; `graphc ops` lists the {len(REGISTRY)} known ones")
    return REGISTRY[name]


def attribute_items(attributes: Any) -> tuple[tuple[str, Any], ...]:
    """(field, value) of an attributes object, in declared order."""
    return tuple((field.name, getattr(attributes, field.name)) for field in fields(attributes))
