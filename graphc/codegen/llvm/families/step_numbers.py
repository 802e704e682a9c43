"""Scalars of a step, computed in float64 and rounded once, as in NumPy's kernels."""

from __future__ import annotations

import math

from llvmlite import ir

from graphc.codegen.llvm.elements import NumberReader
from graphc.codegen.llvm.families.numbers import bits_of, load_integer, read_float, store_rounded
from graphc.codegen.llvm.kernel import NativeCall, NativeCalls, kernel_of
from graphc.codegen.llvm.lanes import DOUBLE, MEMORY, Builder, IrValue, declared, index, widen
from graphc.codegen.llvm.rules import native_rule
from graphc.codegen.text.operands import Places
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.graph import Node
from graphc.ir.types import DType, float64
from graphc.ops.learning_rate import LearningRateAttributes


def _of_library(builder: Builder, name: str, *operands: IrValue) -> IrValue:
    """Call a float64 function of the C library."""
    function = declared(builder, name, DOUBLE, [DOUBLE] * len(operands))
    return builder.call(function, operands)


def _real(number: float) -> IrValue:
    return ir.Constant(DOUBLE, number)


@native_rule("adam_correction")
def _adam_correction(node: Node, places: Places) -> NativeCalls:
    rate, step = (value.type.dtype for value in node.inputs)
    numbers = bits_of(node.attributes.beta1), bits_of(node.attributes.beta2)
    kernel = kernel_of("adam_correction", (rate, step), lambda b: _write_correction(b, rate, step))
    return NativeCalls((NativeCall(kernel, (*node.inputs, *node.outputs), numbers, 1, 4),))


def _write_correction(builder: Builder, dtype: DType, of_step: DType) -> None:
    b, given = builder, NumberReader(builder)
    learning_rate, step, rate, correction = (given.pointer() for _ in range(4))
    betas = read_float(b, given), read_float(b, given)
    count = b.sitofp(b.add(load_integer(b, step, index(0), of_step), index(1)), DOUBLE)
    left, spread = (b.fsub(_real(1.0), _of_library(b, "pow", beta, count)) for beta in betas)
    stored = b.load(learning_rate, align=dtype.itemsize, typ=MEMORY[dtype])
    base = widen(b, stored, dtype)
    if arithmetic_dtype(dtype) != float64:
        base = b.fpext(base, DOUBLE)
    store_rounded(b, b.fdiv(base, left), float64, rate, dtype)
    found = _of_library(b, "pow", spread, _real(-0.5))
    store_rounded(b, found, float64, correction, dtype)


@native_rule("learning_rate")
def _learning_rate(node: Node, places: Places) -> NativeCalls:
    a: LearningRateAttributes = node.attributes
    form, step, dtype = a.form, node.inputs[0].type.dtype, node.output.type.dtype
    kernel = kernel_of(
        "learning_rate", (form, step, dtype), lambda b: _write_rate(b, form, step, dtype)
    )
    length = max(1, a.steps - a.warmup)
    numbers = (bits_of(a.peak), bits_of(a.floor), a.warmup, length)
    return NativeCalls((NativeCall(kernel, (*node.inputs, node.output), numbers, 1, 2),))


def _write_rate(builder: Builder, form: str, of_step: DType, dtype: DType) -> None:
    b, given = builder, NumberReader(builder)
    counter, rate = given.pointer(), given.pointer()
    peak, floor = read_float(b, given), read_float(b, given)
    warmup, length = given.some(2)
    step = load_integer(b, counter, index(0), of_step)
    step = b.select(b.icmp_signed("<", step, index(0)), index(0), step)
    run = b.fdiv(b.sitofp(b.sub(step, warmup), DOUBLE), b.sitofp(length, DOUBLE))
    part = b.select(b.fcmp_ordered("<", run, _real(1.0)), run, _real(1.0))
    falling = _falling(b, form, peak, floor, part)
    reached = b.fmul(peak, b.sitofp(b.add(step, index(1)), DOUBLE))
    rising = b.fdiv(reached, b.sitofp(warmup, DOUBLE))
    now = b.select(b.icmp_signed("<", step, warmup), rising, falling)
    store_rounded(b, now, float64, rate, dtype)


def _falling(builder: Builder, form: str, peak: IrValue, floor: IrValue, part: IrValue) -> IrValue:
    """Return the rate at a fraction of the schedule from the peak to the floor."""
    b = builder
    match form:
        case "linear":
            return b.fadd(peak, b.fmul(b.fsub(floor, peak), part))
        case "cosine":
            turned = _of_library(b, "cos", b.fmul(_real(math.pi), part))
            raised = b.fmul(b.fsub(peak, floor), b.fadd(_real(1.0), turned))
            return b.fadd(floor, b.fdiv(raised, _real(2.0)))
        case "exponential":
            return b.fmul(peak, _of_library(b, "pow", b.fdiv(floor, peak), part))
    return peak
