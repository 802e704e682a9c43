"""Matrix products: `matmul` and `linear` nodes as matmul primitives of oneDNN.

All batch axes are axes of one primitive if an implementation supports their strides. Otherwise some
or all of them become a loop over calls. The implementations that do not allocate accept matrices
stored by rows or by columns, and the batch strides that `codegen.products.native.takes_strides`
accepts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from graphc.codegen.products.gemm import stored
from graphc.codegen.products.native import column_parts
from graphc.codegen.text.operands import Operand, Places, collapse, operand
from graphc.ir.graph import Node, Value
from graphc.ops.matmul import Activation
from graphc.runtime.cpu.onednn.copies import moved
from graphc.runtime.cpu.onednn.library import Library, Owned, Pointer
from graphc.runtime.cpu.onednn.primitive import (
    BIAS,
    DATA_TYPES,
    PRIMITIVES,
    SOURCE,
    TARGET,
    WEIGHTS,
    Execution,
    Numbers,
    Primitive,
    Tensor,
    Workspace,
    attributes,
    chosen,
    described,
    with_fewer,
)

ACTIVATIONS: dict[Activation, int | None] = {"none": None, "gelu": 0x2B}
"""Supported activations → values of `dnnl_alg_kind_t`; gelu is the tanh approximation."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """The extents of a product, and its operands, with strides in elements.

    Strides are those of the batch axes, then those of the two matrix axes.
    """

    batch: Numbers
    first: Operand
    second: Operand
    result: Operand
    rows: int
    inner: int
    columns: int


def product_executions(
    library: Library, node: Node, places: Places, workspace: Workspace, threads: int
) -> list[Execution] | None:
    """Return the calls of a matmul or linear node; None if the library does not support it."""
    is_linear = node.op.name == "linear"
    activation: Activation = node.attributes.activation if is_linear else "none"
    added = node.inputs[2:]
    matrices = _matrices(node, places)
    if matrices is None:
        return None
    if any(v.type.dtype not in DATA_TYPES for v in (*node.inputs, node.output)):
        return None
    bias = added[0] if is_linear else None
    sums = () if is_linear else added
    calls: list[Execution] = []
    for value in sums:
        copy = moved(library, value, node.output, places)
        if copy is None:
            return None
        calls += copy
    form = _Form(library, bias, places, bool(sums), ACTIVATIONS[activation], workspace, threads)
    products = form.products(matrices)
    return None if products is None else [*calls, *products]


def matrix_product(
    library: Library, matrices: Matrices, workspace: Workspace, threads: int, adds: bool
) -> list[Execution] | None:
    """Return the calls of a product, which is added to the result with `adds`; None if the library
    does not support it."""
    return _Form(library, None, {}, adds, None, workspace, threads).products(matrices)


def _matrices(node: Node, places: Places) -> Matrices | None:
    """Return the operands of a product in the form that the library needs.

    Returns None if an operand is stored neither by rows nor by columns, or if the result is not
    stored by rows.
    """
    (a, b), c = node.inputs[:2], node.output
    is_linear = node.op.name == "linear"
    transposes = (
        not is_linear and node.attributes.transpose_a,
        is_linear or node.attributes.transpose_b,
        False,
    )
    values, batch = (a, b, c), c.shape[:-2]
    whole = [operand("", v, places[v], (*batch, *v.shape[-2:])) for v in values]
    extents, outer = collapse(batch, [each.on(each.strides[:-2]) for each in whole])
    found = []
    for value, each, turned in zip(values, outer, transposes, strict=True):
        strides = _matrix_strides(value, places)
        if strides is None:
            return None
        found.append(each.on((*each.strides, *(strides[::-1] if turned else strides))))
    rows, columns = c.shape[-2:]
    inner = a.shape[-2] if transposes[0] else a.shape[-1]
    if found[2].strides[-1] != 1:
        return None
    first, second, result = found
    return Matrices(extents, first, second, result, rows, inner, columns)


def _matrix_strides(value: Value, places: Places) -> Numbers | None:
    """Return the (row, column) strides of a value's matrices in elements.

    Returns None if they are stored neither by rows nor by columns.
    """
    size = value.type.dtype.itemsize
    below, right = (stride // size for stride in places[value].strides[-2:])
    rows, columns = value.shape[-2:]
    found = stored(rows, columns, below, right)
    if found is None:
        return None
    by_columns, leading = found
    return (1, leading) if by_columns else (leading, 1)


@dataclass(frozen=True, slots=True)
class _Form:
    """The properties that all calls of a matmul or linear node share."""

    library: Library
    bias: Value | None
    places: Places
    adds: bool
    activation: int | None
    workspace: Workspace
    threads: int

    def products(self, matrices: Matrices) -> list[Execution] | None:
        """Return the calls of a product, in parts if that is faster and the workspace suffices."""
        found = None if self.bias is not None else self._batched(_in_parts(matrices))
        return self._batched(matrices) if found is None else found

    def _batched(self, matrices: Matrices) -> list[Execution] | None:
        """Return one call for the whole batch, or one for each index of some batch axes."""
        axes = range(len(matrices.batch))
        longest = sorted(axes, key=lambda axis: (matrices.batch[axis], axis))
        for kept in dict.fromkeys((tuple(axes), tuple(longest[-1:]), ())):
            for outer in (0, 1) if len(kept) == 1 else (0,):
                found = self._looped(matrices, kept, outer)
                if found is not None:
                    return found
        return None

    def _looped(self, matrices: Matrices, kept: Numbers, outer: int) -> list[Execution] | None:
        """Return one call for each index of the batch axes that are not in `kept`.

        The axes `kept` are the batch of each call. If `outer` is 1, a leading axis of extent 1 is
        added. For a single batch axis, the library supports matrices with interleaved rows only
        with such an axis. Returns None if the library supports no such call.
        """
        operands = matrices.first, matrices.second, matrices.result
        primitive = with_fewer(
            self.library,
            self.threads,
            lambda count: self._primitive(matrices, kept, outer, count),
        )
        if primitive is None:
            return None
        others = [axis for axis in range(len(matrices.batch)) if axis not in kept]
        calls = []
        for index in itertools.product(*(range(matrices.batch[axis]) for axis in others)):
            addresses = {
                argument: each.address + _offset(each, others, index)
                for argument, each in zip((SOURCE, WEIGHTS, TARGET), operands, strict=True)
            }
            if self.bias is not None:
                addresses[BIAS] = self.places[self.bias].address
            calls.append(primitive.on(addresses, self.workspace.address))
        return calls

    def _primitive(
        self, matrices: Matrices, kept: Numbers, outer: int, threads: int
    ) -> Primitive | None:
        m = matrices
        tensors = [
            _tensor(m, m.first, kept, outer, (m.rows, m.inner)),
            _tensor(m, m.second, kept, outer, (m.inner, m.columns)),
            _tensor(m, m.result, kept, outer, (m.rows, m.columns)),
        ]
        ones = (1,) * (outer + len(kept) + 1)
        if self.bias is not None:
            if m.columns > 1 and self._bias_step != self.bias.type.dtype.itemsize:
                return None
            strides = (m.columns,) * len(ones)
            tensors.append(Tensor((*ones, m.columns), self.bias.type.dtype, (*strides, 1)))
        key = (
            "product", *tensors, self.adds, self.activation, threads, self.workspace.size,
        )  # fmt: skip
        return PRIMITIVES.get(key, lambda: self._made(tensors))

    @property
    def _bias_step(self) -> int:
        assert self.bias is not None
        return self.places[self.bias].strides[0]

    def _made(self, tensors: Sequence[Tensor]) -> Primitive | None:
        library = self.library
        made: list[Owned] = [described(library, tensor) for tensor in tensors]
        first, second, result, *bias = (Pointer(each.handle) for each in made)
        attribute = attributes(library, self.adds, self.activation)
        descriptor = library.offered(
            "primitive_desc", "dnnl_matmul_primitive_desc_create", Pointer(library.engine.handle),
            first, second, bias[0] if bias else None, result, Pointer(attribute.handle),
        )  # fmt: skip
        return chosen(library, descriptor, lambda p: p.scratch_bytes <= self.workspace.size)


def _in_parts(matrices: Matrices) -> Matrices:
    """Return a batch of products of fewer columns that computes a product, see `column_parts`."""
    m = matrices
    is_by_rows = m.second.strides[-1] == 1
    count = column_parts(m.rows, m.columns, m.second.dtype) if is_by_rows else 1
    if count == 1:
        return m
    columns = m.columns // count
    first, second, result = m.first, m.second, m.result
    return Matrices(
        (count, *m.batch),
        first.on((0, *first.strides)),
        second.on((columns, *second.strides)),
        result.on((columns, *result.strides)),
        m.rows,
        m.inner,
        columns,
    )


def _tensor(
    matrices: Matrices, each: Operand, kept: Numbers, outer: int, shape: tuple[int, int]
) -> Tensor:
    """Describe an operand with the batch axes `kept`; an axis with stride 0 gets extent 1."""
    batch = [matrices.batch[axis] if each.strides[axis] else 1 for axis in kept]
    matrix = each.strides[-2:]
    inside = [(n, step) for n, step in zip(shape, matrix, strict=True)]
    inside += [(n, each.strides[axis]) for n, axis in zip(batch, kept, strict=True)]
    reach = max(n * step for n, step in inside)
    steps = [each.strides[axis] or reach for axis in kept]
    return Tensor((*(1,) * outer, *batch, *shape), each.dtype, (*(reach,) * outer, *steps, *matrix))


def _offset(each: Operand, axes: Sequence[int], index: Sequence[int]) -> int:
    """Return the offset in bytes of the matrix at this index of the batch axes `axes`."""
    step = sum(i * each.strides[axis] for i, axis in zip(index, axes, strict=True))
    return step * each.dtype.itemsize
