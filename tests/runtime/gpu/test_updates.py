"""Whole steps whose small updates run in common launches: the same bits as one by one."""

from dataclasses import replace

import pytest
from runtime.gpu.networks import bits, fed, on_gpu, small_gpt2, small_mlp

import graphc as g
from graphc.codegen.updates import grouped, groups
from graphc.runtime.gpu import backend
from graphc.runtime.gpu.bind import BoundLaunch, bind
from graphc.runtime.gpu.places import places_of_plan


def bound_together(plan, address, tf32=False):
    """The works of a plan; the first of a group of updates does all of it."""
    works = {work.node: work for work in bind(plan, address, tf32)}
    places = places_of_plan(plan, address)
    found = []
    for group in groups(works, places):
        work = works[group[0]]
        if len(group) > 1:
            launch = grouped(group, places)
            arguments = tuple(places[value].address for value in launch.arguments)
            call = BoundLaunch(launch.kernel, arguments, launch.grid, launch.block)
            work = replace(work, calls=(call,))
        found.append(work)
    return found


@pytest.mark.parametrize(
    ("network", "optimizer", "options"),
    [
        (small_mlp, g.optim.Momentum(1e-2), {}),
        (small_gpt2, g.optim.AdamW(1e-2), {"recompute": "sublinear"}),
        (lambda: small_mlp("float32"), g.optim.Adam(1e-2), {"precision": "fp16"}),
    ],
    ids=["momentum", "adamw", "fp16"],
)
def test_updates_in_one_launch_give_the_same_bits(network, optimizer, options, folder, monkeypatch):
    """Against a plan whose updates run where their gradients are, one by one."""
    loss = network()
    plan = g.plan(loss, optimizer=optimizer, device="cuda", **options)
    with monkeypatch.context() as patch:
        patch.setattr("graphc.compiler.updates_together", lambda graph, *_: graph)
        apart = g.plan(loss, optimizer=optimizer, device="cuda", **options)
    assert [n.label for n in plan.graph.nodes] != [n.label for n in apart.graph.nodes]
    expected, alone = on_gpu(apart, folder)
    monkeypatch.setattr(backend, "bind", bound_together)
    found, together = on_gpu(plan, folder)
    for step in range(3):
        assert found.step(fed(plan, step))["loss"] == expected.step(fed(apart, step))["loss"]
    assert bits(found) == bits(expected)
    assert together.counts["calls"] < alone.counts["calls"]
