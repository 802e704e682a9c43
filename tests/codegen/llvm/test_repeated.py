"""Operands that are repeated, with strides of 0, are read as their copies are."""

import loops
import numpy as np
import pytest
from codegen.cases import all_cases, by_op
from codegen.llvm.native import Native
from codegen.on_cpu import aligned, places_of

import graphc as g
from graphc.codegen.llvm.rules import native_rule_of
from graphc.codegen.native import NativeTarget, is_native, native_calls
from graphc.codegen.rules import gives_programs
from graphc.devices.device import NATIVE_CPU

TARGET = NativeTarget(NATIVE_CPU)


DENSE = [
    case for case in all_cases()
    if "dense" in (words := case.name.split()) and not {"float16", "bfloat16"} & {*words}
    and (gives_programs(case.node.op) or native_rule_of(case.node.op))
]  # fmt: skip


def natives(cases):
    """One case of each native node of an op, in float32 where it has floats."""
    kinds = {}
    for case in cases:
        types = tuple(str(value.type) for value in case.node.inputs)
        kinds.setdefault((repr(case.node.attributes), types), case)
    found, narrow = [], set()
    for (attributes, types), case in sorted(kinds.items(), key=lambda kind: "f64" in str(kind[0])):
        is_covered = "f64" in str(types) and attributes in narrow
        if not is_covered and is_native(case.node):
            found.append(case)
            if "f32" in str(types):
                narrow.add(attributes)
    return found


def repeated(array, axes):
    """A view that repeats what lies first along these axes."""
    first = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(array.ndim))
    return np.broadcast_to(aligned(array[first]), array.shape)


def outputs(node, arrays):
    """What the node's kernels write, over nothing that they read."""
    arrays = arrays | {v: np.full(v.shape, 77, v.type.dtype.numpy) for v in node.outputs}
    Native().run(native_calls(node, places_of(arrays)), arrays)
    return [arrays[value] for value in node.outputs]


def check(case, axes_of):
    node = case.node
    if node.op.must_overwrite:
        return
    for index, value in enumerate(node.inputs):
        for axes in axes_of(value.shape):
            view = repeated(case.feeds[value], axes)
            name = node.op.input_name(index)
            if not TARGET.takes_strides(node, name, value.type, view.strides):
                continue
            expected = outputs(node, case.feeds | {value: aligned(view)})
            found = outputs(node, case.feeds | {value: view})
            for wanted, each in zip(expected, found, strict=True):
                # sums go in the order of axes in memory, which differs
                np.testing.assert_allclose(each, wanted, 2e-5, 2e-5, err_msg=f"{name}, {axes}")


@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cases", by_op(DENSE))
def test_a_repeated_element_is_read_as_its_copies(cases, most):
    for case in natives(cases)[:most]:
        with loops.case(case.name):
            check(case, lambda shape: [range(len(shape))] if shape else [])


@pytest.mark.parametrize("cases", by_op(DENSE, lambda case: "pool" not in case.name))
def test_a_repeated_axis_is_read_as_its_copies(cases):
    for case in natives(cases):
        with loops.case(case.name):
            check(case, lambda shape: [{axis} for axis in range(len(shape)) if shape[axis] > 1])


@pytest.mark.parametrize("pool", [g.max_pool2d, g.average_pool2d])
def test_the_gradient_of_a_mean_of_pooled_maps(pool):
    """Its every element is the same, so a view of one is what the pool's gradient reads."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 8, 12, 12)).astype(np.float32)
    moved = {}
    for kernels in ("native", "numpy"):
        w = g.parameter("w", (8, 1, 1), initial=g.Initial("constant", 1.0))
        loss = g.mean(pool(g.relu(g.input("x", x.shape) * w), 2))
        program = g.compile(loss, optimizer=g.optim.SGD(1.0), kernels=kernels)
        program.step(x=x)
        moved[kernels] = program.parameters["w"]
    np.testing.assert_allclose(moved["native"], moved["numpy"], rtol=1e-6)
