"""Kernels of fused reductions give the bits of the separate kernels, in the order of memory."""

from dataclasses import dataclass, replace

import loops
import numpy as np
import pytest
from codegen.checks import ARCHITECTURES, DTYPES
from codegen.on_cpu import Library, aligned, channels_last, edited, generated, kernels_in
from passes.fusion.graphs import fuse, fuse_reductions

import graphc as g
from graphc.codegen.text.kernel import module_text
from graphc.ir.builder import apply, trace
from graphc.ops.fused_reduce import FusedReduce
from graphc.ops.reduce import square_sum
from graphc.runtime.gpu.nvrtc import compile_cubin

LAST = (0, 2, 3, 1)


def parameters(shape, dtype):
    return [g.parameter(name, shape, dtype) for name in "ab"]


def rows(dtype):
    a, b = parameters((7, 1040), dtype)
    return g.mean(g.relu(a * b) * 0.5, 1)


def rows_in_parts(dtype):
    a, b = parameters((3, 9002), dtype)
    return g.sum(g.tanh(a + b), 1, keepdims=True)


def columns(dtype):
    a, b = parameters((70, 33), dtype)
    return g.sum(a * g.parameter("row", (33,), dtype) - b, 0)


def columns_in_parts(dtype):
    a, b = parameters((700, 5), dtype)
    return g.max(g.where(g.less(a, b), a, b * 0.5), 0)


def everything(dtype):
    a, b = parameters((41, 203), dtype)
    return square_sum(a - b)


def maps(dtype):
    a, b = parameters((3, 5, 9, 7), dtype)
    return g.mean((a + g.parameter("channel", (5, 1, 1), dtype)) * b, (0, 2, 3))


def pooled(dtype):
    a, b = parameters((2, 12, 9, 8), dtype)
    return g.mean(g.maximum(a, b), (2, 3))


def masked(dtype):
    mask = g.parameter("mask", (6, 50), "bool")
    return g.sum(g.where(mask, g.parameter("a", (6, 50), dtype), g.parameter("c", (), dtype)))


def widened(dtype):
    """16-bit operands of a float32 sum: packs are those of float32."""
    a, b = parameters((12, 3000), dtype)
    return g.sum(g.cast(a, "float32") * g.cast(b, "float32"), 1)


def narrowed(dtype):
    a, b = parameters((12, 3000), "float32")
    return g.sum(g.cast(a * b, dtype), 1)


def scaled(dtype):
    """Rounded once as a mean, and at each step behind it."""
    a, b = parameters((12, 3000), dtype)
    return g.exp(g.mean(a * b, 1) * 0.3 + 0.7)


def root_in_parts(dtype):
    a, _ = parameters((3, 9002), dtype)
    return g.power(square_sum(a), 0.5) * 1.1


def bias(dtype):
    """A bias's gradient in mixed precision, of maps that are stored anyway."""
    a, _ = parameters((3, 5, 9, 7), dtype)
    return g.cast(g.sum(a, (0, 2, 3)), "float32")


NETWORKS = [
    *((make, dtype) for make in (rows, rows_in_parts, columns, columns_in_parts, everything, maps,
                                 pooled, masked, scaled, root_in_parts) for dtype in DTYPES),
    *((make, dtype) for make in (widened, narrowed, bias) for dtype in ("float16", "bfloat16")),
]  # fmt: skip


QUICK, SLOW = ("float32", "bfloat16"), ("float64", "float16")
"""Dtypes of quick tests, and those that show the same."""

MAPS = [(make, dtype) for make, dtype in NETWORKS if make in (maps, pooled)]
BEHIND = [(make, dtype) for make, dtype in NETWORKS if make in (scaled, root_in_parts, bias)]


def fused(graph, last=False):
    """The only node of the fused graph; `last` orders its sums as those of channels-last maps."""
    (node,) = fuse_reductions(fuse(graph)).nodes
    assert isinstance(node.op, FusedReduce)
    if last:
        given = replace(node.attributes, order=LAST)
        node = apply(FusedReduce, *node.inputs, attributes=given)
    return node


def feeds_of(graph):
    rng = np.random.default_rng(4)
    return {
        s: (rng.normal(size=s.shape) > 0).astype(s.type.dtype.numpy)
        if s.type.dtype.kind == "bool"
        else rng.normal(0.1, 1, s.shape).astype(s.type.dtype.numpy)
        for s in graph.states
    }


def laid(array, last):
    return channels_last(array) if last and array.ndim == 4 else aligned(array)


@dataclass(frozen=True)
class Run:
    """Nodes with the arrays of their values, and their calls."""

    nodes: list
    arrays: dict
    calls: list

    def result(self, library):
        """The last node's output by kernels of a library."""
        for each, node in zip(self.calls, self.nodes, strict=True):
            library.run(each, of_node(node, self.arrays))
        return self.arrays[self.nodes[-1].output]


def of_node(node, arrays):
    return {v: arrays[v] for v in (*node.inputs, *node.outputs)}


def prepared(nodes, feeds, last=False):
    """Return a run of nodes on these feeds; `last` lays maps with their channels last."""
    arrays = {value: laid(array, last) for value, array in feeds.items()}
    for node in nodes:
        for value in node.outputs:
            arrays[value] = laid(np.full(value.shape, 77, value.type.dtype.numpy), last)
    return Run(nodes, arrays, [generated(node, of_node(node, arrays)) for node in nodes])


def library_of(runs, edit=lambda text: text):
    return Library(kernels_in([calls for run in runs for calls in run.calls]), edit)


def run(nodes, feeds, last=False, edit=lambda text: text):
    """The last node's output by generated kernels of a library of their own."""
    given = prepared(nodes, feeds, last)
    return given.result(library_of([given], edit))


quick_and_slow = pytest.mark.parametrize(
    "dtypes", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["quick", "slow"]
)


def check_bits(networks, make_runs):
    """Compare the bits of the runs of each network; one library has the kernels of all.

    `make_runs` returns runs whose results have equal bits.
    """
    cases = {f"{make.__name__} {dtype}": make_runs(make, dtype) for make, dtype in networks}
    library = library_of([run for runs in cases.values() for run in runs])
    for name, runs in cases.items():
        with loops.case(name):
            wanted, *others = (run.result(library).tobytes() for run in runs)
            for other in others:
                assert other == wanted


def of_dtypes(networks, dtypes):
    return [(make, dtype) for make, dtype in networks if dtype in dtypes]


@quick_and_slow
def test_the_bits_are_those_of_separate_kernels(dtypes):
    def runs(make, dtype):
        graph = trace({"y": make(dtype)})
        feeds = feeds_of(graph)
        return prepared(graph.nodes, feeds), prepared([fused(graph)], feeds)

    check_bits(of_dtypes(NETWORKS, dtypes), runs)


@quick_and_slow
def test_sums_follow_the_memory_of_maps(dtypes):
    """The order is what counts, whatever the layout of the operands."""

    def runs(make, dtype):
        graph = trace({"y": make(dtype)})
        feeds, by_order = feeds_of(graph), fused(graph, last=True)
        return (
            prepared(graph.nodes, feeds, last=True),
            prepared([by_order], feeds, last=True),
            prepared([by_order], feeds),
        )

    check_bits(of_dtypes(MAPS, dtypes), runs)


@pytest.mark.parametrize("dtype", [pytest.param("float64", marks=pytest.mark.slow), "float32"])
def test_another_order_of_a_sum_has_other_bits(dtype):
    graph = trace({"y": maps(dtype)})
    feeds = feeds_of(graph)
    results = [run([fused(graph, last)], feeds, last=True).tobytes() for last in (False, True)]
    assert results[0] != results[1]


@quick_and_slow
def test_ops_after_a_reduction_read_its_rounded_result(dtypes):
    for last in (False, True):

        def runs(make, dtype, last=last):
            graph = trace({"y": make(dtype)})
            feeds, node = feeds_of(graph), fused(graph)
            assert node.attributes.after != ()
            return prepared(graph.nodes, feeds, last), prepared([node], feeds, last)

        check_bits(of_dtypes(BEHIND, dtypes), runs)


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.slow), "bfloat16"])
def test_a_result_that_is_not_rounded_is_found(dtype):
    graph = trace({"y": bias(dtype)})
    feeds, node = feeds_of(graph), fused(graph)

    def edit(text):
        assert "result_value = widen(result_narrow);" in text
        return text.replace("= widen(result_narrow);", "= total_value;")

    assert run([node], feeds, edit=edit).tobytes() != run([node], feeds).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_on_the_way_are_rounded(dtype):
    """A sum of few terms is that of NumPy, if every term is rounded to 16 bits."""
    a, b = parameters((5, 4), dtype)
    graph = trace({"y": g.sum(a * b * a, 1)})
    feeds = feeds_of(graph)
    found = run([fused(graph)], feeds)
    x, y = (feeds[v].astype(np.float64) for v in (a, b))
    kind = found.dtype
    rounded = ((x * y).astype(kind).astype(np.float64) * x).astype(kind).astype(np.float64)
    wanted = rounded.sum(1)
    reach = float(np.abs(wanted - (x * y * x).sum(1)).max())
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(kind).astype(np.float64),
                               rtol=1e-6)  # fmt: skip
    assert reach > 1e-4


BREAKS = {
    "products are not rounded": ("m0_value = widen(m0_narrow);", "m0_value = r0;"),
    "what is summed is not rounded": ("m1_value = widen(m1_narrow);", "m1_value = r1;"),
    "an element is left out": ("item = first + rank", "item = first + rank + 1"),
    "a part is left out": ("const Index end = first", "const Index end = 0 * first"),
    "other packs": ("item += 512u", "item += 256u"),
}


def test_broken_kernels_are_found():
    a, b = parameters((3, 9002), "bfloat16")
    graph = trace({"y": g.sum(g.cast(a * b * a, "float32"), 1)})
    feeds = feeds_of(graph)
    separate, right_run = prepared(graph.nodes, feeds), prepared([fused(graph)], feeds)
    broken = {}
    for number, (name, (right, wrong)) in enumerate(BREAKS.items()):
        with loops.case(name):
            each = prepared([fused(graph)], feeds)
            assert any(right in kernel.text for kernel in kernels_in(each.calls))
            calls = [
                edited(found, lambda text, r=right, w=wrong: text.replace(r, w), f"{number}")
                for found in each.calls
            ]
            broken[name] = replace(each, calls=calls)
    library = library_of([separate, right_run, *broken.values()])
    wanted = separate.result(library).tobytes()
    assert right_run.result(library).tobytes() == wanted
    for name, each in broken.items():
        with loops.case(name):
            assert each.result(library).tobytes() != wanted


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_fused_reductions_compile(architecture):
    kernels = []
    for make, dtype in NETWORKS:
        node = fused(trace({"y": make(dtype)}))
        values = (*node.inputs, *node.outputs)
        arrays = {v: np.empty(v.shape, v.type.dtype.numpy) for v in values}
        kernels += generated(node, arrays).kernels
    text = module_text(list(dict.fromkeys(kernels)))
    assert text.count("__global__") >= len(NETWORKS)
    assert compile_cubin(text, architecture).startswith(b"\x7fELF")
