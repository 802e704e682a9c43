"""What the driver says: the plan's bytes are the bytes used, and a step allocates nothing."""

import gc

import pytest
from models.test_zoo import SMALL

import graphc as g
from graphc.runtime.feeds import random_feeds
from graphc.runtime.gpu.cuda import LIBRARY_BYTES
from graphc.runtime.host_link import gpu_link

GRANULE = 2 * 2**20
"""The driver hands out memory by pages of this size."""


def fed(program, step):
    return {s.name: a for s, a in random_feeds(program.graph, step).items()}


def forbid(size):
    raise AssertionError(f"{size} bytes are allocated in a step")


@pytest.mark.parametrize("options", [{}, {"cuda_graph": False}, {"streams": 2}], ids=str)
@pytest.mark.parametrize("name", ["resnet", "gpt2", "lstm", "unet"])
def test_a_hundred_steps_allocate_nothing(driver, name, options):
    import cupy

    program = g.compile(SMALL[name](), optimizer=g.optim.Adam(), device="cuda", **options)
    for step in range(3):  # run by call, captured, replayed
        program.step(fed(program, step))
    free = driver.free_bytes()
    with cupy.cuda.using_allocator(forbid):
        for step in range(100):
            program.step(fed(program, step))
    assert driver.free_bytes() == free


def test_the_driver_counts_the_arena(driver):
    """One cudaMalloc of the plan's bytes, and at most the stated constant for all else."""
    plan = g.plan(
        g.models.gpt2(layers=4, batch=4), optimizer=g.optim.Adam(), device="cuda"
    )  # fmt: skip
    gc.collect()  # programs of earlier tests
    before = driver.free_bytes()
    program = g.bind(plan)
    bound = driver.free_bytes()
    assert program.arena_bytes == plan.arena_bytes
    assert plan.arena_bytes <= before - bound <= plan.arena_bytes + GRANULE + LIBRARY_BYTES
    for step in range(3):
        program.step(fed(program, step))
    assert before - driver.free_bytes() <= plan.arena_bytes + GRANULE + LIBRARY_BYTES


def test_an_arena_is_one_allocation(driver):
    size = 3 * 2**30 + 256
    before = driver.free_bytes()
    driver.allocate(size)
    assert size <= before - driver.free_bytes() <= size + GRANULE


def test_a_plan_beyond_the_memory_is_refused_before_allocation(driver):
    before = driver.free_bytes()
    with pytest.raises(g.GraphcError, match="plan with budget="):
        driver.allocate(2 * driver.gpu.memory_bytes)
    assert driver.free_bytes() == before


def test_the_link_to_the_host_is_measured(driver):
    """PCIe 3 with few lanes at least, and at most NVLink-C2C."""
    link = gpu_link(driver)
    assert all(1e9 < rate < 1e12 for rate in (link.to_host, link.to_device))
    assert link.latency < 1e-3
