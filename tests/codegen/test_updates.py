"""Many updates in one launch: the same bits as one launch each."""

from dataclasses import replace

import loops
import numpy as np
import pytest
from codegen.cases import drawn, in_dtype
from codegen.on_cpu import Library, aligned, generated, kernels_in, places_of, surroundings
from codegen.updates import UPDATES

import graphc as g
from graphc.codegen.elementwise.updates import (
    PARAMETER_BYTES,
    SMALL_BYTES,
    grouped,
    groups,
    likeness,
)
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.text.kernel import module_text
from graphc.ir.builder import apply
from graphc.ir.op import REGISTRY
from graphc.ops.update import SgdAttributes, SgdUpdate, Update
from graphc.runtime.gpu.nvrtc import compile_cubin

SHAPES = ((3,), (1031,), (16, 9), (1,), (4099,), (2, 2), (8192,), (7,))
ROWS = [s for s in UPDATES if issubclass(type(REGISTRY[s.op]), Update) and s.shapes[0]]


def states_of(node):
    """The input that each output replaces."""
    names = [node.op.input_name(i) for i in range(len(node.inputs))]
    over = [node.op.must_overwrite[node.op.output_name(i)] for i in range(len(node.outputs))]
    return [node.inputs[names.index(name)] for name in over]


def updates_like(sample, dtype, shapes=SHAPES, skip=0):
    """Nodes of an op with states of these shapes and common scalars, and arrays of all values."""
    nodes, arrays, common = [], {}, {}
    for number, shape in enumerate(shapes):
        own = tuple(shape if given else () for given in sample.shapes)
        node, feeds = drawn(in_dtype(replace(sample, shapes=own), dtype))
        inputs = []
        for index, value in enumerate(node.inputs):
            if not sample.shapes[index]:
                value = common.setdefault(index, value)
            if value not in arrays:
                fill = feeds[value] * value.type.dtype.numpy.type(1 + number % 3 / 8)
                arrays[value] = placed(fill.astype(value.type.dtype.numpy), skip)
            inputs.append(value)
        node = node.reading(tuple(inputs), None)
        arrays |= {y: arrays[x] for y, x in zip(node.outputs, states_of(node), strict=True)}
        nodes.append(node)
    return nodes, arrays


def placed(array, skip):
    """A copy that starts `skip` elements behind an aligned address."""
    room = aligned(np.full(array.size + skip, 77, array.dtype))
    room[skip:] = array.reshape(-1)
    return room[skip:].reshape(array.shape)


def copied(arrays):
    copies = {id(array): array.copy() for array in arrays.values()}
    return {value: copies[id(array)] for value, array in arrays.items()}


def calls_of_both(nodes, arrays):
    """The calls of one launch a node, and those of one launch for all."""
    single = [generated(node, arrays) for node in nodes]
    return single, [NodeCalls((grouped(nodes, places_of(arrays)),))]


def run_both(nodes, arrays, edit=lambda text: text):
    both = calls_of_both(nodes, arrays)
    return results_of(Library(kernels_in([*both[0], *both[1]]), edit), both, arrays)


def results_of(library, both, arrays):
    """Bytes after one launch a node, and after one launch for all, in both orders of threads."""
    before = {id(a): surroundings(a).copy() for a in arrays.values()}
    results = []
    for descending in (False, True):
        for runs in both:
            for array in arrays.values():
                surroundings(array)[...] = before[id(array)]
            for found in runs:
                library.run(found, arrays, descending=descending)
            results.append({v: surroundings(a).copy() for v, a in arrays.items()})
    return results


def check_equal(results):
    for other in results[1:]:
        for value, array in results[0].items():
            np.testing.assert_array_equal(array, other[value], strict=True)


@pytest.mark.parametrize(
    ("dtype", "skip"),
    [
        pytest.param("float32", 0, marks=pytest.mark.slow),
        ("float32", 1),
        ("bfloat16", 1),
        pytest.param("float16", 0, marks=pytest.mark.slow),
        pytest.param("float64", 0, marks=pytest.mark.slow),
    ],
)
def test_one_launch_gives_the_same_bits(dtype, skip):
    cases = {}
    for sample in ROWS:
        nodes, arrays = updates_like(
            sample, dtype, SHAPES if dtype == "float32" else SHAPES[:5], skip
        )
        assert list(groups(nodes, places_of(arrays))) == [tuple(nodes)]
        cases[sample.name] = calls_of_both(nodes, arrays), arrays
    calls = [call for both, _ in cases.values() for each in both for call in each]
    library = Library(kernels_in(calls))
    for name, (both, arrays) in cases.items():
        with loops.case(name):
            check_equal(results_of(library, both, arrays))
            changed = {v: a for v, a in arrays.items() if v.node is not None}
            assert any((a != 77).any() for a in changed.values())


def test_a_wrong_table_is_found():
    """The check above can fail."""
    nodes, arrays = updates_like(ROWS[0], "float32")
    check_equal(run_both(nodes, arrays))
    with pytest.raises(AssertionError):
        check_equal(run_both(nodes, arrays, lambda text: text.replace("w_new_2;", "w_new_1;")))
    with pytest.raises(AssertionError):
        check_equal(
            run_both(nodes, arrays, lambda text: text.replace("elements = 3u", "elements = 2u"))
        )


def test_scalars_of_their_own():
    """Two learning rates in one launch."""
    nodes, arrays = updates_like(ROWS[0], "float32", SHAPES[:4])
    rate = g.input("other", (), "float32")
    arrays[rate] = aligned(np.float32(0.7).reshape(()))
    old, other = nodes[1], nodes[1].reading((*nodes[1].inputs[:2], rate), None)
    arrays[other.output] = arrays[old.output]
    nodes[1] = other
    assert list(groups(nodes, places_of(arrays))) == [tuple(nodes)]
    check_equal(run_both(nodes, arrays))


def test_groups_stay_within_the_parameters_of_a_launch():
    for sample, pointers in ((ROWS[0], 2), (next(s for s in ROWS if s.op == "adam_update"), 4)):
        nodes, arrays = updates_like(sample, "float32", [(5,)] * 600)
        found = list(groups(nodes, places_of(arrays)))
        assert [node for group in found for node in group] == nodes
        scalars = sum(not shape for shape in sample.shapes)
        most = (PARAMETER_BYTES // 8 - scalars) // pointers
        assert [len(group) for group in found[:-1]] == [most] * (600 // most)
        for group in found:
            launch = grouped(group, places_of(arrays))
            assert 8 * len(launch.arguments) <= PARAMETER_BYTES


def sgd(w, g_, rate, decay=0.0):
    return apply(SgdUpdate, w, g_, rate, attributes=SgdAttributes(decay))


def dense(nodes):
    values = dict.fromkeys(v for n in nodes for v in (*n.inputs, *n.outputs))
    return places_of({v: np.zeros(v.shape, v.type.dtype.numpy) for v in values})


def lengths(nodes, places=None):
    return [len(group) for group in groups(nodes, places or dense(nodes))]


def values(count, shape=(4,), dtype="float32"):
    return [g.input(f"v{i}", shape, dtype) for i in range(count)]


def test_unequal_updates_are_not_grouped():
    rate = g.input("rate", ())
    a, b, c, d = values(4)
    assert lengths([sgd(a, b, rate), sgd(c, d, rate)]) == [2]
    assert lengths([sgd(a, b, rate), sgd(c, d, rate, 0.1)]) == [1, 1]
    assert lengths([sgd(a, b, rate), g.relu(c).node, sgd(c, d, rate)]) == [1, 1, 1]
    wide = [g.input(n, (4,), "float64") for n in "wg"]
    assert lengths([sgd(a, b, rate), sgd(*wide, g.input("r", (), "float64"))]) == [1, 1]
    large = [g.input(n, (SMALL_BYTES // 4,)) for n in "xy"]
    assert lengths([sgd(a, b, rate), sgd(*large, rate)]) == [1, 1]
    assert likeness(sgd(*large, rate)) is None


def test_updates_that_touch_the_same_values_run_one_after_the_other():
    rate = g.input("rate", ())
    a, b, c = values(3)
    first = sgd(a, b, rate)
    assert lengths([first, sgd(c, first.output, rate)]) == [1, 1]  # reads what is written
    assert lengths([sgd(a, b, rate), sgd(b, c, rate)]) == [1, 1]  # writes what is read
    seen = g.reshape(g.reshape(b, (2, 2)), (4,))
    assert lengths([sgd(a, seen, rate), sgd(b, c, rate)]) == [1, 1]  # through views


def test_gradients_that_do_not_lie_in_one_piece_keep_their_launch():
    rate = g.input("rate", ())
    (a, b), (c, d) = values(2), values(2, (3, 5))
    nodes = [sgd(a, b, rate), sgd(c, d, rate)]
    places = dense(nodes)
    assert lengths(nodes, places) == [2]
    places |= places_of({d: np.zeros((5, 3), np.float32).T})
    assert lengths(nodes, places) == [1, 1]


@pytest.mark.slow
def test_nvrtc_compiles_a_full_launch():
    kernels = []
    for sample in ROWS:
        nodes, arrays = updates_like(sample, "float32", [(5 + i,) for i in range(130)])
        group = next(groups(nodes, places_of(arrays)))
        kernels.append(grouped(group, places_of(arrays)).kernel)
    for architecture in (80, 90, 100):
        assert compile_cubin(module_text(kernels), architecture).startswith(b"\x7fELF")
