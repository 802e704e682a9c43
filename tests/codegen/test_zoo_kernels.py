"""Kernels and calls of whole networks at their real sizes, from plans alone: no arena is made."""

from dataclasses import replace

import pytest

import graphc as g
from graphc.codegen.lowering import calls_of, is_generated
from graphc.codegen.text.kernel import module_text
from graphc.codegen.text.operands import in_one_piece
from graphc.codegen.workspace import gpu_workspace
from graphc.errors import PlanError
from graphc.ir.op import REGISTRY
from graphc.models import MODELS
from graphc.runtime.gpu.nvrtc import compile_cubin
from graphc.runtime.gpu.places import places_of_plan

ADDRESS = 0x7F00_0000_0000
VIEWS = {
    "batch_count", "batch_sum", "bitcast", "broadcast_to", "slice", "split", "stop_gradient",
    "transpose", "with_change", "with_gradient",
}  # fmt: skip


def test_every_op_but_views_has_a_kernel():
    assert {name for name, op in REGISTRY.items() if not is_generated(op)} == VIEWS


def kernels_of_plan(plan):
    """All kernels."""
    kernels = []
    places = places_of_plan(plan, ADDRESS)
    for node in plan.graph.nodes:
        if all(plan.placements[value].how == "view" for value in node.outputs):
            continue
        copies = gpu_workspace(node, plan.device, plan.strided).copies
        own = places | {value: in_one_piece(value.type) for value in copies}
        kernels += calls_of(node, own).kernels
    return kernels


@pytest.mark.parametrize("options", [{}, {"attention": "composed"}, {"drop": 0.0}], ids=str)
def test_a_network_at_its_real_size(options):
    loss = MODELS["gpt2"](layers=1, batch=1, **options)
    plan = g.plan(loss, optimizer=g.optim.AdamW(1e-3), reorder=False)
    kernels = kernels_of_plan(plan)
    text = module_text(kernels)
    assert text.count("__global__") == len({kernel.name for kernel in kernels})
    assert compile_cubin(text, 90).startswith(b"\x7fELF")


def test_maps_of_a_network_at_its_real_size():
    """Channels-last, with parts inside concatenations; no statistics are summed by rows."""
    plan = g.plan(MODELS["unet"](batch=1), optimizer=g.optim.SGD(0.1), device="cuda", reorder=False)
    kernels = kernels_of_plan(plan)
    assert compile_cubin(module_text(kernels), 90).startswith(b"\x7fELF")
    norms = [kernel.text for kernel in kernels if "_norm_" in kernel.name]
    assert any("across_column" in text for text in norms)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v2", "preact_resnet"])
def test_kernels_of_row_major_maps_compile(name):
    """For the channels-last maps of plans for a GPU, see test_machine_code.py."""
    plan = g.plan(MODELS[name](), optimizer=g.optim.Adam(1e-3), reorder=False)
    assert compile_cubin(module_text(kernels_of_plan(plan)), 90).startswith(b"\x7fELF")


def small_plan():
    return g.plan(outputs=[g.tanh(g.input("x", (8, 8)))])


def test_addresses_are_those_of_the_plan():
    plan = small_plan()
    places = places_of_plan(plan, ADDRESS)
    assert {value: place.address - ADDRESS for value, place in places.items()} == {
        value: plan.address(value) for value in plan.placements
    }
    assert {place.strides for place in places.values()} == {(32, 4)}


def test_arenas_are_aligned():
    with pytest.raises(PlanError, match="multiple of 256"):
        places_of_plan(small_plan(), 128)


def test_a_value_outside_the_arena_is_refused():
    plan = small_plan()
    with pytest.raises(PlanError, match="exceeds the arena"):
        places_of_plan(replace(plan, arena_bytes=256))
