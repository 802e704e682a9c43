"""Blocks by colouring: nobody shares one with whom it is alive, and few are needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphc as g
from graphc.errors import OptionError
from graphc.memory.coloring import MOST_COLORED, color
from graphc.memory.sharing import share
from graphc.models import mlp

LIFETIMES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(1, 50)), max_size=25
)


def bytes_of(tenants, blocks):
    sizes = {}
    for (*_, size), block in zip(tenants, blocks, strict=True):
        sizes[block] = max(size, sizes.get(block, 0))
    return sum(sizes.values())


@given(LIFETIMES)
def test_blocks_are_apart_in_time(drawn):
    tenants = sorted((first, first + length, size) for first, length, size in drawn)
    blocks = color(tenants)
    for index, (first, last, _) in enumerate(tenants):
        for other, (begin, end, _) in enumerate(tenants[:index]):
            assert blocks[index] != blocks[other] or last <= begin or end <= first
    most_alive = max((sum(a <= t < b for a, b, _ in tenants) for t in range(30)), default=0)
    assert most_alive <= len(set(blocks)) <= len(tenants)
    live = max((sum(s for a, b, s in tenants if a <= t < b) for t in range(30)), default=0)
    assert live <= bytes_of(tenants, blocks) <= sum(size for *_, size in tenants)


def test_a_chain_needs_two_blocks():
    """Each is alive with the one before it: two colours, and the two largest sizes at most."""
    tenants = [(step, step + 2, 10 + step % 3) for step in range(50)]
    assert len(set(color(tenants))) == 2
    assert bytes_of(tenants, color(tenants)) <= 24 >= bytes_of(tenants, share(tenants))


def test_as_a_strategy():
    loss = mlp(layers=4, hidden=16, inputs=8, batch=4)
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), allocate="coloring")
    sizes = plan.strategy_bytes
    assert list(sizes) == ["none", "inplace", "sharing", "packed", "coloring"]
    assert sizes["packed"] <= sizes["coloring"] == plan.arena_bytes <= sizes["inplace"]
    other = g.plan(loss, optimizer=g.optim.SGD(0.1))
    assert "coloring" not in other.strategy_bytes
    assert g.compile(loss, optimizer=g.optim.SGD(0.1), allocate="coloring").plan.to_json()


def test_large_networks_are_refused():
    tenants = [(0, 1, 1)] * (MOST_COLORED + 1)
    with pytest.raises(OptionError, match=r"at most 2,000 values, got 2,001; choose 'sharing'"):
        color(tenants)
