"""Whole training steps by generated kernels and BLAS calls, at the places that plans give.

Everything runs on the CPU, in an arena that starts full of NaN: a kernel that reads what is not
there, writes elsewhere, or disagrees with NumPy's shows in the parameters.
"""

import numpy as np
import pytest
from codegen.fake_cublas import LtStandIn, stand_in
from codegen.on_cpu import Library, aligned, places_of

import graphc as g
from graphc.codegen.calls import NodeCalls
from graphc.codegen.generate import calls_of
from graphc.codegen.updates import grouped, groups
from graphc.codegen.workspace import gpu_workspace
from graphc.models import gpt2, mlp
from graphc.runtime.arena import Arena
from graphc.runtime.cpu.bind import arrays_of
from graphc.runtime.initial import fill_initial
from graphc.runtime.profile import random_feeds
from graphc.runtime.program import Program

SEED = 3


class Emulated:
    """A program of generated kernels; `together` runs small updates in common launches."""

    def __init__(self, plan, folder, together=False):
        self.plan, self.cublas, self.cublaslt = plan, stand_in(folder), LtStandIn(folder)
        arena = Arena(plan)
        arena.bytes.fill(0xFF)
        self.arrays = arrays_of(plan, arena)
        for state in plan.graph.states:
            fill_initial(state, SEED, self.arrays[state])
        nodes = [node for node in plan.graph.nodes if not self.is_view(node)]
        places = places_of(self.arrays)
        parts = groups(nodes, places) if together else [(node,) for node in nodes]
        self.nodes = [self.bound(*part) for part in parts]
        kernels = [kernel for *_, found in self.nodes for kernel in found.kernels]
        self.library = Library(kernels, folder)

    def is_view(self, node):
        return all(self.plan.placements[value].how == "view" for value in node.outputs)

    def bound(self, node, *others):
        """Arrays of a node, inputs to copy, kernels and calls; or of updates that run together."""
        if others:
            return self.arrays, {}, NodeCalls((grouped([node, *others], places_of(self.arrays)),))
        arrays = {value: self.arrays[value] for value in (*node.inputs, *node.outputs)}
        copies = gpu_workspace(node, self.plan.device, self.plan.strided).copies
        originals = {value: arrays[value] for value in copies}
        arrays |= {value: aligned(arrays[value]) for value in copies}
        places = places_of(arrays)
        return arrays, originals, calls_of(node, places)

    def step(self, feeds):
        for source, given in feeds.items():
            np.copyto(self.arrays[source], given)
        for arrays, originals, found in self.nodes:
            for value, original in originals.items():
                np.copyto(arrays[value], original)
            self.library.run(found, arrays, cublas=self.cublas, cublaslt=self.cublaslt)
        return {name: self.arrays[value].copy() for name, value in self.plan.graph.outputs.items()}


def small_gpt2(dtype="float64"):
    sizes = {"layers": 2, "width": 16, "heads": 2, "seq_len": 8, "batch": 2, "vocab": 11}
    return gpt2(**sizes, dtype=dtype)


def small_mlp(dtype="float64"):
    x, t = g.input("x", (6, 5), dtype), g.input("t", (6,), "int32")
    h = g.batch_norm(g.relu(g.linear(x, 8, name="a")))
    h = g.concat([g.tanh(g.linear(h, 4, name="b")), g.gelu(g.linear(h, 3, name="c"))], 1)
    return g.softmax_cross_entropy(g.linear(g.dropout(h, 0.3), 4, name="d"), t)


CASES = {
    "mlp of the zoo, adam": (
        lambda: mlp(layers=3, hidden=16, inputs=7, classes=3, batch=5), g.optim.Adam(1e-2), {}, 1e-4
    ),
    "mlp, momentum": (small_mlp, g.optim.Momentum(1e-2), {}, 1e-9),
    "mlp, accumulated": (small_mlp, g.optim.SGD(1e-2), {"accumulate": 2}, 1e-9),
    "mlp, fp16": (
        lambda: small_mlp("float32"), g.optim.Adam(1e-2), {"precision": "fp16"}, 2e-2
    ),
    "gpt2, adamw": (small_gpt2, g.optim.AdamW(1e-2), {}, 1e-8),
    "gpt2, clipped, recomputed": (
        small_gpt2, g.optim.AdamW(1e-2), {"clip_norm": 0.1, "recompute": "sublinear"}, 1e-8
    ),
    "gpt2, bf16": (
        lambda: small_gpt2("float32"), g.optim.AdamW(1e-2), {"precision": "bf16"}, 5e-2
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("network", "optimizer", "options", "tolerance"), CASES.values(), ids=CASES
)
def test_steps_equal_the_cpu_program(network, optimizer, options, tolerance, tmp_path):
    plan = g.plan(network(), optimizer=optimizer, **options)
    emulated, program = Emulated(plan, tmp_path), Program(plan, SEED)
    feeds = random_feeds(plan.graph, 1)
    for _ in range(3):
        expected = program.step({source.name: array for source, array in feeds.items()})
        found = emulated.step(feeds)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance)
    for state in plan.graph.states:
        found = emulated.arrays[state].astype(np.float64)
        expected = program.states[state.name].astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["mlp, momentum", "gpt2, adamw", "mlp, fp16"])
def test_updates_in_one_launch_give_the_same_bits(name, tmp_path, monkeypatch):
    """The plan of a GPU against one whose updates run where their gradients are, one by one."""
    network, optimizer, options, _ = CASES[name]
    plan = g.plan(network(), optimizer=optimizer, device="cuda", roofline="a100", **options)
    with monkeypatch.context() as patch:
        patch.setattr("graphc.compiler.updates_together", lambda graph, *_: graph)
        before = g.plan(network(), optimizer=optimizer, device="cuda", roofline="a100", **options)
    assert [n.label for n in plan.graph.nodes] != [n.label for n in before.graph.nodes]
    runs = Emulated(plan, tmp_path, together=True), Emulated(before, tmp_path)
    launches = [sum(len(found.calls) for *_, found in run.nodes) for run in runs]
    assert launches[0] < launches[1]
    feeds = random_feeds(plan.graph, 1)
    named = {source.name: array for source, array in feeds.items()}
    for _ in range(2):
        for run in runs:
            run.step({source: named[source.name] for source in run.plan.graph.inputs})
    states = [{s.name: run.arrays[s] for s in run.plan.graph.states} for run in runs]
    assert states[0].keys() == states[1].keys()
    for state, array in states[0].items():
        np.testing.assert_array_equal(array, states[1][state], strict=True)
