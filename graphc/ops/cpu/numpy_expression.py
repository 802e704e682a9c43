"""Expressions evaluated with NumPy ufuncs, tile by tile, into given output arrays.

Nothing of an array's size is allocated. Intermediate results go to registers, which are rows of a
small scratch array from the plan. A tile is short enough for its registers to stay in the cache.
Only the last instruction of an expression writes its output, so an output may alias any input of
the same type. 16-bit floats are computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import scipy.special

from graphc.ir.expression import FUNCTIONS, LOGIC, PREDICATES, Expression, Operand, Result
from graphc.ir.types import DType, TensorType, bool_, compute_dtype

Array = np.ndarray[Any, np.dtype[Any]]

TILE_ELEMENTS = 16384
"""Elements of one register: 64 KiB of float32; a few of them fit a second-level cache."""

UFUNCS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name) for name in FUNCTIONS if name not in ("erf", "sigmoid", "where")
}
UFUNCS |= {"erf": scipy.special.erf, "sigmoid": scipy.special.expit}


Slot = int | float | np.generic
"""A slot number (int), or a literal (float, or a NumPy integer for integer ops)."""


@dataclass(frozen=True, slots=True)
class UfuncCall:
    """A call `function(*operands)` that writes to slot `target`.

    Slots number inputs, then outputs, then registers.
    """

    function: Callable[..., Any]
    operands: tuple[Slot, ...]
    target: int


@dataclass(frozen=True, slots=True)
class Lowering:
    """Expressions lowered to ufunc calls on slots: inputs, then outputs, then registers."""

    calls: tuple[UfuncCall, ...]
    registers: tuple[DType, ...]


def select(
    condition: Array, a: Array | float, b: Array | float, mask: Array, flip: Array, out: Array
) -> None:
    """Compute `out = a where condition else b` by bit masks: ten times faster than a masked copy.

    `mask` and `flip` are scratch of the integer type as wide as `out`. `out` may be `a` or `b`.
    """
    np.copyto(mask, condition)
    np.negative(mask, out=mask)
    chosen, other = (np.asarray(x, out.dtype).view(mask.dtype) for x in (a, b))
    if isinstance(b, float) and b == 0.0:
        np.bitwise_and(chosen, mask, out=out.view(mask.dtype))
        return
    np.bitwise_xor(chosen, other, out=flip)
    np.bitwise_and(flip, mask, out=flip)
    np.bitwise_xor(other, flip, out=out.view(mask.dtype))


def lower(
    expressions: Mapping[str, Expression],
    inputs: Mapping[str, DType],
    outputs: Mapping[str, DType],
    locals: Mapping[str, DType] = MappingProxyType({}),
) -> Lowering:
    """Lower specialized expressions to ufunc calls, in order, and assign registers to results.

    An expression may read earlier outputs and locals by name. `locals` has the dtypes of locals.
    """
    return _Lowerer(inputs, outputs, locals).run(expressions)


class _Lowerer:
    def __init__(
        self,
        inputs: Mapping[str, DType],
        outputs: Mapping[str, DType],
        locals: Mapping[str, DType],
    ) -> None:
        self.dtypes = {**inputs, **outputs}
        self.locals = locals
        self.defined: dict[str, int] = {}
        """Local → its register, for locals that later expressions read."""
        self.slots = {name: slot for slot, name in enumerate(self.dtypes)}
        self.registers: list[DType] = []
        self.free: dict[DType, list[int]] = {}
        self.calls: list[UfuncCall] = []
        floats = [dtype for dtype in self.dtypes.values() if dtype.kind == "float"]
        self.float = compute_dtype(floats[0]) if floats else None

    def acquire(self, dtype: DType) -> int:
        available = self.free.setdefault(dtype, [])
        if available:
            return available.pop()
        self.registers.append(dtype)
        return len(self.dtypes) + len(self.registers) - 1

    def release(self, slot: int) -> None:
        if slot >= len(self.dtypes):
            self.free[self.registers[slot - len(self.dtypes)]].append(slot)

    def run(self, expressions: Mapping[str, Expression]) -> Lowering:
        last = {name: at for at, e in enumerate(expressions.values()) for name in e.names}
        for at, (name, expression) in enumerate(expressions.items()):
            if name in self.locals:
                self.defined[name] = self.local(self.locals[name], expression)
            else:
                self.expression(name, expression)
            for read in [read for read in self.defined if last.get(read, -1) <= at]:
                self.release(self.defined.pop(read))
        return Lowering(tuple(self.calls), tuple(self.registers))

    def expression(self, output: str, expression: Expression) -> None:
        target, dtype = self.slots[output], self.dtypes[output]
        narrow = compute_dtype(dtype) != dtype
        source, held = self.computed(expression, dtype, None if narrow else target)
        if not isinstance(source, int) or source != target:
            self.calls.append(UfuncCall(_assign, (source,), target))
        for register in held:
            self.release(register)

    def local(self, dtype: DType, expression: Expression) -> int:
        """Compute a local, rounded to its dtype; return its register."""
        source, held = self.computed(expression, dtype, None)
        if isinstance(source, int) and source in held:
            held.remove(source)
            register = source
        else:
            register = self.acquire(compute_dtype(dtype))
            self.calls.append(UfuncCall(_assign, (source,), register))
        if compute_dtype(dtype) != dtype:
            narrow = self.acquire(dtype)
            self.calls += [
                UfuncCall(_assign, (register,), narrow),
                UfuncCall(_assign, (narrow,), register),
            ]
            self.release(narrow)
        for other in held:
            self.release(other)
        return register

    def computed(
        self, expression: Expression, dtype: DType, target: int | None
    ) -> tuple[Slot, list[int]]:
        """Return the slot of an expression's value, and the registers to release after its use.

        The last instruction writes to slot `target`, if it is given. `dtype` is the dtype of the
        value.
        """
        widened = {
            name: self.load(self.slots[name], dtype_of)
            for name, dtype_of in self.dtypes.items()
            if name in expression.names and compute_dtype(dtype_of) != dtype_of
        }
        held = dict.fromkeys(range(len(expression.instructions)), 0)
        for instruction in expression.instructions:
            for operand in instruction.operands:
                if isinstance(operand, Result):
                    held[operand.index] += 1
        where: dict[int, int] = {}

        def slot(operand: Operand) -> Slot:
            if isinstance(operand, Result):
                return where[operand.index]
            if isinstance(operand, str):
                known = widened if operand in widened else self.defined
                return known[operand] if operand in known else self.slots[operand]
            if self.float is None:  # an integer op: its literals are integers of its dtype
                integer: np.generic = dtype.numpy.type(operand)
                return integer
            return operand

        for index, instruction in enumerate(expression.instructions):
            operands = tuple(slot(operand) for operand in instruction.operands)
            if target is not None and expression.value == Result(index):
                result = target
            else:
                result = self.acquire(self.dtype_of(instruction.function, operands))
            self.emit(instruction.function, operands, result)
            where[index] = result
            for operand in instruction.operands:
                if isinstance(operand, Result):
                    held[operand.index] -= 1
                    if held[operand.index] == 0 and operand != expression.value:
                        self.release(where[operand.index])
        registers = list(widened.values())
        if isinstance(expression.value, Result) and where[expression.value.index] != target:
            registers.insert(0, where[expression.value.index])
        return slot(expression.value), registers

    def load(self, slot: int, dtype: DType) -> int:
        register = self.acquire(compute_dtype(dtype))
        self.calls.append(UfuncCall(_assign, (slot,), register))
        return register

    def dtype_of(self, function: str, operands: tuple[Slot, ...]) -> DType:
        """Return the dtype of the result of `function` on these slots."""
        dtypes = list(self.dtypes.values()) + self.registers
        found = [dtypes[operand] for operand in operands if isinstance(operand, int)]
        is_logic = function in LOGIC and all(dtype == bool_ for dtype in found)
        if function in PREDICATES or is_logic:
            return bool_
        arithmetic = [compute_dtype(dtype) for dtype in found if dtype != bool_]
        if arithmetic:
            return max(arithmetic, key=lambda dtype: (dtype.kind == "float", dtype.itemsize))
        return self.float or next(iter(self.dtypes.values()))

    def emit(self, function: str, operands: tuple[Slot, ...], target: int) -> None:
        if function != "where":
            self.calls.append(UfuncCall(UFUNCS[function], operands, target))
            return
        dtype = (list(self.dtypes.values()) + self.registers)[target]
        bits = DType("bits", "bits", "int", dtype.itemsize, np.dtype(f"i{dtype.itemsize}"))
        mask, flip = self.acquire(bits), self.acquire(bits)
        self.calls.append(UfuncCall(select, (*operands, mask, flip), target))
        self.release(mask)
        self.release(flip)


def _assign(source: Array | float, out: Array) -> None:
    np.copyto(out, source, casting="same_kind")


def registers_type(lowering: Lowering, output: TensorType) -> tuple[TensorType, ...]:
    """Return the types of the registers that a lowering needs to compute `output`, as scratch."""
    if not lowering.registers:
        return ()
    axis = _longest_axis(output.shape)
    rest = output.elements // output.shape[axis] if output.shape else 1
    rows = min(output.shape[axis], max(1, TILE_ELEMENTS // rest)) if output.shape else 1
    shape = tuple(rows if i == axis else n for i, n in enumerate(output.shape))
    return tuple(TensorType(shape, dtype) for dtype in lowering.registers)


def _longest_axis(shape: tuple[int, ...]) -> int:
    """Return the axis that tiles divide: the longest, so that slices across it are smallest."""
    return max(range(len(shape)), key=lambda axis: (shape[axis], -axis), default=0)


def evaluate(
    lowering: Lowering,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    registers: Sequence[Array],
) -> Callable[[], None]:
    """Bind a lowering to arrays: return a function that fills `outputs`, all of one shape."""
    shape = outputs[0].shape
    if len(lowering.calls) == 1 and not registers:
        call = lowering.calls[0]
        arrays = [*inputs, *outputs]
        operands = [arrays[o] if isinstance(o, int) else o for o in call.operands]
        return functools.partial(call.function, *operands, out=arrays[call.target])
    arrays = [*inputs, *outputs]
    if all(
        array.size == 1 or (array.shape == shape and array.flags.c_contiguous) for array in arrays
    ):
        flat = [np.broadcast_to(array.reshape(-1), outputs[0].size) for array in inputs]
        flat += [array.reshape(-1) for array in outputs]
        scratch = [register.reshape(-1) for register in registers]
        tile = scratch[0].size if scratch else TILE_ELEMENTS
        return functools.partial(_run_tiles, lowering.calls, flat, scratch, tile)
    axis = _longest_axis(shape)
    tile = registers[0].shape[axis] if registers and shape else max(shape, default=1)
    full = [np.broadcast_to(array, shape) for array in inputs] + list(outputs)
    moved = [array[None] if not shape else np.moveaxis(array, axis, 0) for array in full]
    scratch = [r[None] if not shape else np.moveaxis(r, axis, 0) for r in registers]
    return functools.partial(_run_tiles, lowering.calls, moved, scratch, tile)


def _run_tiles(
    calls: Sequence[UfuncCall], arrays: Sequence[Array], registers: Sequence[Array], tile: int
) -> None:
    length = arrays[-1].shape[0]
    for start in range(0, length, tile):
        stop = min(start + tile, length)
        slots = [array[start:stop] for array in arrays]
        slots += [register[: stop - start] for register in registers]
        for call in calls:
            operands = [slots[o] if type(o) is int else o for o in call.operands]
            call.function(*operands, out=slots[call.target])
