"""Copies to the host at random places change no bit of a step, and no layout."""

import random as randoms
import time
from contextlib import contextmanager
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans.with_copies import random_trips, randomly_copied, with_trips
from properties.strategies import OPTIMIZERS, examples, networks
from runtime.emulated_gpu.networks import small_gpt2, small_resnet, small_unet

import graphc as g
from graphc.devices.device import KERNELS
from graphc.layouts import layouts
from graphc.plans.check.check_figures import check_figures
from graphc.plans.check.check_plan import check_plan
from graphc.plans.memory_plan import ALLOCATE, RECOMPUTE
from graphc.runtime.cpu import copies
from graphc.runtime.feeds import random_feeds


@contextmanager
def delays(seed, most=5e-4):
    """Copies that begin at some time after their node, within a step."""
    run, random = copies._Ticket.run, randoms.Random(seed)

    def late(ticket):
        time.sleep(random.choice((0.0, most * random.random())))
        run(ticket)

    with mock.patch.object(copies._Ticket, "run", late):
        yield


def steps(plan, feeds, seed=0):
    """Outputs of some steps and the states after them, as bytes."""
    program = g.Program(plan, seed=seed, poison=True)
    outputs = [{k: v.tobytes() for k, v in program.step(feed).items()} for feed in feeds]
    return outputs, {name: array.tobytes() for name, array in program.states.items()}


@examples(150)
@given(
    networks(),
    st.sampled_from(OPTIMIZERS),
    st.sampled_from(RECOMPUTE),
    st.sampled_from(ALLOCATE),
    st.sampled_from(KERNELS),
    st.randoms(use_true_random=False),
)
def test_random_copies_change_no_bit(network, optimizer, recompute, strategy, kernels, random):
    options = {"optimizer": optimizer, "recompute": recompute, "kernels": kernels}
    plain = g.plan(network.loss, outputs=network.outputs, **options)
    found = randomly_copied(plain, random, 4, strategy)
    check_plan(found)
    check_figures(found)
    with delays(random.randrange(100)):
        assert steps(found, network.feeds) == steps(plain, network.feeds)


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("network", [small_resnet, small_gpt2])
def test_channels_last_maps_and_turned_heads_keep_their_bits(network, seed):
    plain = g.plan(network("float32"), optimizer=g.optim.SGD(0.1), kernels="native")
    found = randomly_copied(plain, randoms.Random(seed), 20)
    check_plan(found)
    check_figures(found)
    strided = [n for n in found.graph.nodes if n.op.copies_to and n.output in found.strided]
    assert strided or network is small_gpt2
    feeds = [{s.name: a for s, a in random_feeds(plain.graph, step).items()} for step in range(2)]
    with delays(seed):
        assert steps(found, feeds) == steps(plain, feeds)


LAYOUTS = [
    (small_resnet, "float32", "cpu"),
    (small_gpt2, "bfloat16", "h200"),
    (small_unet, "bfloat16", "h200"),
]


@pytest.mark.parametrize(("network", "dtype", "device"), LAYOUTS)
def test_layouts_are_those_without_copies(network, dtype, device):
    """Channels-last maps, turned heads and padded rows; and fetched values have them, too."""
    plan = g.plan(network(dtype), optimizer=g.optim.SGD(), device=device)
    random = randoms.Random(3)
    trips = random_trips(plan, random, 40)
    graph = with_trips(plan.graph, trips)
    before, after = (layouts(each, plan.target) for each in (plan.graph, graph))
    kept = [n for n in graph.nodes if n.host_copy is None]
    assert len(kept) == len(plan.graph.nodes)
    for node, other in zip(plan.graph.nodes, kept, strict=True):
        for value, same in zip(node.outputs, other.outputs, strict=True):
            assert before.get(value) == after.get(same)
    strided = 0
    for node in graph.nodes:
        if node.host_copy is not None and node.inputs[0] in after:
            strided += 1
            assert after[node.inputs[0]] == after[node.output]
    assert strided >= 5
