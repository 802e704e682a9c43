"""What generated kernels are checked on: rows of the op table in several dtypes and layouts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from codegen.attention_cases import attention_cases
from codegen.on_cpu import aligned, apart, channels_last
from codegen.updates import UPDATES
from ops.samples import SAMPLES, Sample, direct, scalars
from ops.test_every_op import build, draw, find_node

import graphc as g
from graphc import Node, Value
from graphc.codegen.lowering import is_generated
from graphc.codegen.products.ops import GPU_PRODUCTS
from graphc.codegen.strides import takes_strides
from graphc.devices.device import DEVICES
from graphc.ir import types
from graphc.ir.op import REGISTRY
from graphc.ir.types import channels_last_strides
from graphc.ops import (
    batch_norm,
    choice,
    cross_entropy,
    embedding,
    linear_cross_entropy,
    norm,
    norm_gradient,
    random,
    resample,
    row_cross_entropy,
    scatter,
    shape,
    softmax,
)
from graphc.ops.fused_reduce import FusedReduce, FusedReduceAttributes
from graphc.ops.reduce import square_sum

H200 = DEVICES["h200"]
LAST, LAST_OUT = "channels-last", "outputs-channels-last"
NARROW = ("float16", "bfloat16")
DTYPES = ("float64", "float32", *NARROW)
SCALAR = {sample.op for sample in scalars.SAMPLES}
"""Ops that have nothing of their own but an expression: rows of others have its layouts."""


UPSAMPLE = resample.UpsampleAttributes
EXTENT = resample.ExtentAttributes

RESIZED = (((5, 4), (2, 3, 12, 13)), ((7, 3), (1, 2, 4, 5)), ((1, 1), (2, 2, 9, 8)))
RESIZED_BACK = (((12, 13), (2, 3, 5, 4)), ((4, 5), (1, 2, 7, 3)), ((9, 8), (2, 2, 1, 1)))
LARGER = 2, (1, 1, 18, 22)


def long(op, build, shapes, dtypes=(), label=""):
    """A row of a size at which kernels take their other forms."""
    label = f" long {shapes[0]}{label}"
    return Sample(op, build, shapes, None, dtypes=dtypes, label=label, int_limit=7)


AXIS1 = shape.AxisAttributes(1)
LAYER = norm_gradient.NormGradientAttributes((3, 2112), (1,), (1,))
CHANNELS = norm_gradient.NormGradientAttributes((2, 5, 8200), (0, 2), (1,))
PLACES = norm_gradient.NormGradientAttributes((2, 5, 13, 11), (0, 2, 3), (1,))
MAPS, IMAGES, ROWS = (2, 5, 8200), (2, 5, 13, 11), (3, 2112)
MEMBERS = ("add(x0, x1)", "relu(m0)", "mul(m1, x0)")
AFTER = ("scale(x0, value=-0.5)", "exp(m0)")
EPSILON = norm.EpsilonAttributes(1e-5)
BATCH = batch_norm.BatchNormAttributes(1e-5, 0.1)
SMOOTH = row_cross_entropy.CrossEntropyAttributes(0.25, (2,))
FLOAT, COUNTERS = "float64", ("int64", "int64")

CASTS = [
    Sample(
        "cast", direct(choice.Cast, choice.CastAttributes(to)), ((5, 3),), None, dtypes=(source,),
        domain=(0.1, 9), int_limit=3, label=f" {source} to {to}",
    )
    for source in ("float64", "int32", "int64", "uint8", "bool")
    for to in [dtype.name for dtype in types.DTYPES]
    if source != to
]  # fmt: skip

LONG = [
    *attention_cases(long),
    long("add", g.add, ((3, 257), (257,))),
    long("softmax", g.softmax, (ROWS,)),
    long("softmax", g.softmax, ((2, 4097),)),
    long("softmax", lambda x: g.softmax(x, 0), ((70, 65),)),
    long("softmax_gradient", direct(softmax.SoftmaxGradient, AXIS1), ((2, 9001),) * 2),
    long("log_softmax", g.log_softmax, ((1, 9000),)),
    long("log_softmax", lambda x: g.log_softmax(x, 0), ((300, 33),)),
    long("layer_norm", direct(norm.LayerNorm, EPSILON), (ROWS, (2112,), (2112,))),
    long("batch_norm", direct(batch_norm.BatchNorm, BATCH), (MAPS, *[(5,)] * 4)),
    long(
        "norm_input_gradient", direct(norm_gradient.NormInputGradient, LAYER),
        (ROWS, ROWS, (3,), (3,), (2112,)),
    ),
    long(
        "norm_input_gradient", direct(norm_gradient.NormInputGradient, CHANNELS),
        (MAPS, MAPS, *[(5,)] * 3),
    ),
    long(
        "norm_scale_gradient", direct(norm_gradient.NormScaleGradient, CHANNELS),
        (MAPS, MAPS, (5,), (5,)),
    ),
    long("batch_norm", direct(batch_norm.BatchNorm, BATCH), (IMAGES, *[(5,)] * 4)),
    long(
        "norm_input_gradient", direct(norm_gradient.NormInputGradient, PLACES),
        (IMAGES, IMAGES, *[(5,)] * 3),
    ),
    long(
        "norm_scale_gradient", direct(norm_gradient.NormScaleGradient, PLACES),
        (IMAGES, IMAGES, (5,), (5,)),
    ),
    long("norm_bias_gradient", direct(norm_gradient.NormBiasGradient, PLACES), (IMAGES,)),
    long(
        "norm_parameter_gradients", direct(norm_gradient.NormParameterGradients, LAYER),
        (ROWS, ROWS, (3,), (3,)),
    ),
    long(
        "norm_gradients", direct(norm_gradient.NormGradients, CHANNELS), (MAPS, MAPS, *[(5,)] * 3)
    ),
    long(
        "norm_gradients", direct(norm_gradient.NormGradients, PLACES),
        (IMAGES, IMAGES, *[(5,)] * 3),
    ),
    long(
        "group_norm", direct(norm.GroupNorm, norm.GroupNormAttributes(2, 1e-5)),
        ((2, 6, 13, 11), (6,), (6,)),
    ),
    long("sum", lambda x: g.sum(x, (0, 2, 3)), (IMAGES,)),
    long("mean", lambda x: g.mean(x, (2, 3)), (IMAGES,)),
    long("square_sum", square_sum, (IMAGES,)),
    long("softmax", lambda x: g.softmax(x, 1), (IMAGES,)),
    long("add", g.add, (IMAGES, (5, 1, 1))),
    long("relu", g.relu, ((2, 64, 3, 5),)),
    long("sum", lambda x: g.sum(x, 0), ((1025, 70),)),
    long("sum", lambda x: g.sum(x, (0, 2)), ((3, 4, 9000),)),
    long("mean", g.mean, ((3, 7001),)),
    long("max", lambda x: g.max(x, 0), ((1030, 3),)),
    long("sum", g.sum, ((5, 2000),), ("int32",)),
    long("sum", lambda x: g.sum(x, 0), ((300, 5),), ("int64",)),
    long("max", lambda x: g.max(x, 1), ((4, 90),), ("uint8",)),
    long("maximum", g.maximum, ((4, 90), (90,)), ("int32", "int32")),
    long("mul", g.mul, ((4, 90), (4, 1)), ("uint8", "uint8")),
    long("square_sum", square_sum, ((20011,),)),
    *[
        long(
            "fused_reduce",
            direct(FusedReduce, FusedReduceAttributes(MEMBERS, "mean", axes, False, order, AFTER)),
            (shape, (shape[-1],)),
        )
        for shape, axes, order in (
            ((1025, 70), (0,), (0, 1)), ((3, 9001), (1,), (0, 1)),
            ((3, 4, 9000), (0, 2), (0, 1, 2)), (IMAGES, (0, 2, 3), (0, 2, 3, 1)),
            ((70, 65), (0, 1), (0, 1)),
        )
    ],
    long(
        "fused_reduce",
        direct(FusedReduce, FusedReduceAttributes(MEMBERS, "min", (1,), True, (0, 1), ())),
        ((3, 301), (301,)), (), " least",
    ),
    long(
        "dropout", direct(random.Dropout, random.DropoutAttributes(0.3, 5)), ((4, 1030), (2,), ()),
        (FLOAT, "int64", "int64"),
    ),
    *[
        long(kind.name, direct(kind, attributes), ((2,), ()), COUNTERS, f" {dtype}")
        for dtype in ("float32", "bfloat16")
        for kind, attributes in (
            (random.Uniform, random.UniformAttributes((3, 1031), dtype, -1.0, 3.0, 7)),
            (random.Normal, random.NormalAttributes((3, 1031), dtype, 0.5, 2.0, 7)),
        )
    ],
    long(
        "gather_gradient", direct(embedding.GatherGradient, embedding.RowsAttributes(7)),
        ((70, 300), (70,)), (FLOAT, "int64"),
    ),
    *[
        Sample(
            "gather_gradient", direct(embedding.GatherGradient, embedding.RowsAttributes(rows)),
            ((lookups, 3), (lookups,)), None, dtypes=(FLOAT, kind), int_limit=rows,
            label=f" marked, {rows} rows",
        )
        # 8,192 rows share no mark; of more some do, and then a part has no row that it is read for.
        for rows, lookups, kind in ((7, 1500, "int64"), (9001, 8200, "int32"))
    ],
    long("gather", g.gather, ((7, 48), (5, 9)), (FLOAT, "int32")),
    *[
        long(
            "adaptive_average_pool2d", direct(resample.AdaptiveAveragePool2d, EXTENT(extent)),
            (shape,),
        )
        for extent, shape in RESIZED
    ],
    *[
        long(
            "adaptive_average_pool2d_gradient",
            direct(resample.AdaptiveAveragePool2dGradient, EXTENT(extent)), (shape,),
        )
        for extent, shape in RESIZED_BACK
    ],
    *[
        long("upsample_bilinear2d", direct(resample.UpsampleBilinear2d, UPSAMPLE(factor)), (shape,))
        for factor, shape in ((5, (2, 1, 3, 4)), (1, (1, 2, 3, 5)), (4, (1, 2, 1, 6)))
    ],
    *[
        long(
            "upsample_bilinear2d_gradient",
            direct(resample.UpsampleBilinear2dGradient, UPSAMPLE(factor)), (shape,),
        )
        for factor, shape in ((5, (2, 1, 15, 20)), (1, (1, 2, 3, 5)), (4, (1, 2, 4, 24)), LARGER)
    ],
    long("masked_softmax", g.masked_softmax, ((3, 9001), (3, 1)), (FLOAT, "bool")),
    long("masked_softmax", g.masked_softmax, (ROWS, (2112,)), (FLOAT, "bool")),
    long("argmax", lambda x: g.argmax(x, 1, last=True), ((3, 9001),), ("int32",)),
    long("argmin", lambda x: g.argmin(x, 0), ((300, 33),)),
    long("top_k", lambda x: g.top_k(x, 5, 1, dtype="int32"), ((3, 65, 2),), ("int32",)),
    long("top_k", lambda x: g.top_k(x, 200, 0, largest=False), ((201, 2),)),
    long("cumsum", lambda x: g.cumsum(x, 0, exclusive=True), ((1030, 3),), ("int64",)),
    long("cumsum", lambda x: g.cumsum(x, 1, reverse=True), ((5, 3, 40), ), ("int32",)),
    long(
        "scatter_nd_add", direct(scatter.ScatterAdd, scatter.TupleAttributes(1)),
        ((2, 7, 300), (2, 70, 1), (2, 70, 300)), (FLOAT, "int64", FLOAT),
    ),
    Sample(
        "scatter_nd_add", direct(scatter.ScatterAdd, scatter.TupleAttributes(1)),
        ((3, 5000, 1), (3, 1300, 1), (3, 1300, 1)), None, dtypes=(FLOAT, "int64", FLOAT),
        int_limit=5000, label=" marked",
    ),
    long(
        "softmax_cross_entropy", direct(cross_entropy.SoftmaxCrossEntropy), (ROWS, (3,)),
        (FLOAT, "int64"),
    ),
    long(
        "cross_entropy", direct(row_cross_entropy.CrossEntropy, SMOOTH), (ROWS, (3,), (2112,)),
        (FLOAT, "int64", FLOAT),
    ),
    long(
        "cross_entropy_gradient", direct(row_cross_entropy.CrossEntropyGradient, SMOOTH),
        (ROWS, (3,), (3,), (2112,)), (FLOAT, "int64", FLOAT, FLOAT),
    ),
    long(
        "cross_entropy_with_slopes",
        direct(
            linear_cross_entropy.CrossEntropyWithSlopes,
            linear_cross_entropy.PaddedCrossEntropyAttributes(0.1, (1,)),
        ),
        (ROWS, (3,)), (FLOAT, "int64"),
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A node of one op with values for its inputs, and how its arrays are laid."""

    name: str
    node: Node
    feeds: dict[Value, np.ndarray]
    layout: str

    def arrays(self) -> dict[Value, np.ndarray]:
        """Arrays of all values: inputs filled, outputs full of 77."""
        node = self.node
        if self.layout == "over":
            return self._overwriting()
        arrays = {}
        for value in dict.fromkeys((*node.inputs, *node.outputs)):
            array = self.feeds.get(value)
            if array is None:
                array = np.full(value.shape, 77, value.type.dtype.numpy)
            laid = self._laid(value, array)
            name = _name(node, value)
            fits = takes_strides(node, name, value.type, laid.strides)
            arrays[value] = laid if fits else aligned(array)
        return arrays

    def _laid(self, value: Value, array: np.ndarray) -> np.ndarray:
        """The array in this layout, where its rank allows it."""
        last = self.layout == LAST or (self.layout == LAST_OUT and value in self.node.outputs)
        if last and array.ndim == 4:
            return channels_last(array)
        axis = int(self.layout[4:]) if self.layout.startswith("axis") else array.ndim
        return apart(array, axis) if axis < array.ndim else aligned(array)

    def _overwriting(self) -> dict[Value, np.ndarray]:
        """Outputs over the inputs that they may or must overwrite, each input at most once."""
        node, taken = self.node, set()
        arrays = {value: aligned(array) for value, array in self.feeds.items()}
        for index, output in enumerate(node.outputs):
            name = node.op.output_name(index)
            must = node.op.must_overwrite.get(name)
            allowed = (must,) if must else node.op.may_overwrite.get(name, ())
            under = [
                value
                for i, value in enumerate(node.inputs)
                if node.op.input_name(i) in allowed and value.type == output.type
                and value not in taken
            ]  # fmt: skip
            if under:
                taken.add(under[0])
                arrays[output] = arrays[under[0]]
            else:
                arrays[output] = aligned(np.full(output.shape, 77, output.type.dtype.numpy))
        return arrays


def _name(node: Node, value: Value) -> str:
    if value in node.outputs:
        return node.op.output_name(node.outputs.index(value))
    return node.op.input_name(node.inputs.index(value))


def in_dtype(sample: Sample, dtype: str) -> Sample:
    """The sample with its float64 inputs in another dtype."""
    dtypes = [sample.dtype(i) for i in range(len(sample.shapes))]
    given = tuple(dtype if each == "float64" else each for each in dtypes)
    return replace(sample, dtypes=given, label=f"{sample.label} {dtype}")


def drawn(sample: Sample) -> tuple[Node, dict[Value, np.ndarray]]:
    """The node of a sample, and random values of its inputs."""
    _, _, outputs = build(sample)
    node = find_node(sample, outputs)
    rng = np.random.default_rng(5)
    return node, {v: draw(rng, sample, v.shape, v.type.dtype.name) for v in node.inputs}


def layouts(node: Node) -> list[str]:
    """Dense, cut along each axis behind the first, outputs over inputs, and channels-last: all that
    have four axes, or outputs alone."""
    values = (*node.inputs, *node.outputs)
    ranks = [v.type.rank for v in values]
    last = any(
        v.type.rank == 4
        and v.shape[1] > 1
        and takes_strides(node, _name(node, v), v.type, channels_last_strides(v.type))
        for v in values
    )
    cut = [f"axis{axis}" for axis in range(1, max(ranks, default=0))]
    overwrites = node.op.may_overwrite or node.op.must_overwrite
    found = ["dense", *([] if node.op.must_overwrite else cut), *(["over"] if overwrites else [])]
    return [*found, LAST, LAST_OUT] if last else found


def cases_of(sample: Sample, dtype: str) -> Iterator[Case]:
    """All layouts of a sample in one dtype."""
    sample = in_dtype(sample, dtype)
    node, feeds = drawn(sample)
    for layout in layouts(node):
        if sample.op in SCALAR and layout != "dense":
            continue
        if dtype in NARROW and layout not in ("dense", "axis1", "over", LAST):
            continue
        yield Case(f"{sample.name} {layout}", node, feeds, layout)


@functools.cache
def all_cases() -> list[Case]:
    """Every op with a kernel in every dtype that its row can be drawn in, in all layouts.

    Copies to the host have no kernel; tests/runtime/emulated_gpu/test_host_copies.py runs them.
    """
    rows = [
        s for s in (*SAMPLES, *UPDATES, *CASTS, *LONG)
        if is_generated(REGISTRY[s.op]) and s.op not in GPU_PRODUCTS
        and not REGISTRY[s.op].copies_to
    ]  # fmt: skip
    return [
        case for sample in rows for dtype in _dtypes(sample) for case in cases_of(sample, dtype)
    ]


def by_op(cases: Iterable[Case], is_slow: Callable[[Case], bool] = lambda case: False):
    """Lists of the cases of an op as parameters of a test, with the slow ones apart."""
    found: dict[tuple[str, bool], list[Case]] = {}
    for case in cases:
        found.setdefault((case.node.op.name, is_slow(case)), []).append(case)
    return [
        pytest.param(group, id=f"{op} slow" if slow else op, marks=[pytest.mark.slow] * slow)
        for (op, slow), group in found.items()
    ]


def _dtypes(sample: Sample) -> tuple[str, ...]:
    if "float64" not in [sample.dtype(i) for i in range(len(sample.shapes))]:
        return ("float64",)  # drawn as it is
    chained = REGISTRY[sample.op].has_effect and len(REGISTRY[sample.op].outputs) > 1
    # 16-bit results that are read later are rounded in between: float64 is no reference for them
    if chained or sample.op in ("fused", "fused_reduce"):
        return ("float64", "float32")
    if sample.op in SCALAR:
        return ("float64", "float32")
    return ("float32", "bfloat16") if sample in LONG else DTYPES
