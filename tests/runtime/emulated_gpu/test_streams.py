"""Streams on an emulated GPU, which runs them in any order that their events allow."""

import functools

import pytest
from runtime.emulated_gpu.networks import (
    branches,
    plan_of,
    small_convolutions,
    small_gpt2,
    small_mlp,
    trained,
)

import graphc as g
from graphc.errors import OptionError
from graphc.models import inception_v3, two_tower

TOWERS = functools.partial(two_tower, batch=4, layers=2, width=6, rows=9, words=3)


@pytest.mark.parametrize("network", [small_convolutions, small_gpt2, branches])
@pytest.mark.parametrize("allocate", ["none", "packed"])
def test_streams_change_no_bit(network, allocate):
    """Whatever order the streams run in."""
    plan = plan_of(network, allocate=allocate)
    expected = trained(plan)[:2]
    for seed in range(2):
        *found, device = trained(plan, seed=seed, streams=3)
        assert tuple(found) == expected
        assert device.counts["captures"] == 1


@pytest.mark.parametrize(
    "network",
    [
        small_convolutions,
        small_mlp,
        branches,
        TOWERS,
        pytest.param(
            functools.partial(inception_v3, batch=1, image=75, width=2, classes=3),
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.parametrize("bytes_more", [0, 2**20])
def test_planned_streams_change_no_bit(network, bytes_more):
    """With values apart as far as there is room, whatever order the streams run in."""
    plain = plan_of(network)
    expected = trained(plain)[:2]
    budget = plain.arena_bytes + bytes_more if bytes_more else None
    for streams in (2, 4):
        plan = plan_of(network, streams=streams, budget=budget)
        used = {slot.stream for slot in plan.streams.slots.values()}
        # Of the two towers, in the bytes of one stream, no more than two nodes meet.
        assert len(used) == min(streams, 2 if network is TOWERS and not bytes_more else streams)
        for seed in range(2):
            *found, device = trained(plan, seed=seed)
            assert tuple(found) == expected
            assert device.counts["captures"] == 1


def test_the_number_of_streams_is_checked():
    for streams in (0, 1.5):
        with pytest.raises(OptionError, match="streams"):
            g.bind(plan_of(), streams=streams)
