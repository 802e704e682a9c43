"""Kernels of groups give the bits of the members' own kernels, and lie over what they may."""

import loops
import numpy as np
import pytest
from codegen.checks import ARCHITECTURES
from codegen.on_cpu import Library, aligned, generated, kernels_in
from passes.fusion.graphs import fuse

import graphc as g
from graphc.codegen.text.kernel import module_text
from graphc.ir.builder import trace
from graphc.runtime.gpu.nvrtc import compile_cubin

SHAPE = (6, 21)


def cell(dtype):
    """The tail of an LSTM cell, with a row and a scalar. Parameters never die, so nothing hinders a
    group."""
    a, b, c = (g.parameter(name, SHAPE, dtype) for name in "abc")
    row, factor = g.parameter("row", (SHAPE[1],), dtype), g.parameter("factor", (), dtype)
    forget = g.sigmoid(a + row)
    state = forget * c + g.tanh(b) * factor
    return {"forget": forget, "state": state, "h": g.tanh(state) * 0.5 - g.exp(state)}


def chosen(dtype):
    a, b = g.parameter("a", SHAPE, dtype), g.parameter("b", SHAPE, dtype)
    is_less = g.less(a, b * 0.5)
    return {"is_less": is_less, "y": g.where(is_less, g.gelu(a), g.maximum(a, b) ** 2.0)}


def converted(dtype):
    a = g.parameter("a", SHAPE, dtype)
    narrow = g.cast(g.cast(a, "float32") * 1.1, "bfloat16")
    return {"narrow": narrow, "y": g.cast(narrow, "float16") * 0.3}


NETWORKS = [
    *((make, dtype) for make in (cell, chosen) for dtype in
      ("float64", "float32", "float16", "bfloat16")),
    *((converted, dtype) for dtype in ("float32", "float16", "bfloat16")),
]  # fmt: skip


def prepared(graph, feeds):
    """Arrays of all values of a graph, and the calls of its nodes."""
    arrays = {value: aligned(feeds[value.name]) for value in graph.states}
    for node in graph.nodes:
        for value in node.outputs:
            arrays[value] = aligned(np.full(value.shape, 77, value.type.dtype.numpy))
    return arrays, [generated(node, of_node(node, arrays)) for node in graph.nodes]


def of_node(node, arrays):
    return {v: arrays[v] for v in (*node.inputs, *node.outputs)}


def run_by(library, graph, arrays, calls):
    """Return the outputs as bytes."""
    for node, each in zip(graph.nodes, calls, strict=True):
        library.run(each, of_node(node, arrays))
    return {name: arrays[value].tobytes() for name, value in graph.outputs.items()}


def run(graph, feeds):
    """The outputs, by generated kernels on arrays of their own, as bytes."""
    arrays, calls = prepared(graph, feeds)
    return run_by(Library(kernels_in(calls)), graph, arrays, calls)


def test_a_group_gives_the_bits_of_its_members():
    pairs = {}
    for make, dtype in NETWORKS:
        graph = trace(make(dtype))
        rng = np.random.default_rng(4)
        feeds = {s.name: rng.normal(size=s.shape).astype(s.type.dtype.numpy) for s in graph.states}
        found = fuse(graph)
        assert [node.op.name for node in found.nodes] == ["fused"]
        both = [(each, *prepared(each, feeds)) for each in (found, graph)]
        pairs[f"{make.__name__} {dtype}"] = both
    library = Library(
        kernels_in([c for both in pairs.values() for *_, calls in both for c in calls])
    )
    for name, (group, members) in pairs.items():
        with loops.case(name):
            assert run_by(library, *group) == run_by(library, *members)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_groups_compile(architecture):
    kernels = []
    for make, dtype in NETWORKS:
        (node,) = fuse(trace(make(dtype))).nodes
        values = (*node.inputs, *node.outputs)
        kernels += generated(
            node, {v: np.empty(v.shape, v.type.dtype.numpy) for v in values}
        ).kernels
    text = module_text(kernels)
    assert text.count("__global__") == len(NETWORKS)
    assert compile_cubin(text, architecture).startswith(b"\x7fELF")
