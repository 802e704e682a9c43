"""Small plans that hold every kind of buffer and every way to get bytes."""

import functools
import random
import re

import pytest
from plans.with_copies import randomly_copied

import graphc as g
from graphc import MeasuredCosts
from graphc.devices.device import find_device
from graphc.models import densenet121, gpt2, lstm, mlp, resnet, unet
from graphc.planner.host_link import HostLink

SMALL_RESNET = {"units": (1, 2, 1, 1), "batch": 8, "image": 64, "classes": 10}


def small_resnet():
    return resnet(**SMALL_RESNET)


NETWORKS = {
    "mlp": lambda: mlp(layers=4, hidden=32, inputs=16, batch=8),
    "wide mlp": lambda: mlp(layers=4, hidden=64, inputs=64, batch=1024),
    "resnet": small_resnet,
    "lstm": lambda: lstm(seq_len=4, layers=2, hidden=16, inputs=8, batch=4, classes=5),
}

SMALL = ("mlp", "resnet", "lstm")

NETWORKS |= {
    "gpt2": lambda: gpt2(layers=2, width=16, heads=2, seq_len=8, batch=2, vocab=11, drop=0.1),
    "densenet": lambda: densenet121(batch=1, image=32, classes=10, blocks=(3, 4, 3, 2)),
    "unet": lambda: unet(batch=1, image=32, width=8),
}


@functools.cache
def planned(network="resnet", **options):
    return g.plan(NETWORKS[network](), optimizer=g.optim.Momentum(), **options)


STRATEGIES = {
    "none": {"allocate": "none"},
    "sharing": {"allocate": "sharing"},
    "packed": {},
    "cheap": {"recompute": "cheap"},
    "sublinear": {"recompute": "sublinear"},
}
SMALL_PLANS = tuple(f"{network}, {strategy}" for network in SMALL for strategy in STRATEGIES)


QUICK = {"resnet, packed", "resnet, cheap", "lstm, sharing", "lstm, sublinear"}
"""Plans of larger networks in quick tests, which use all plans of the first network."""


def marked(names, is_quick):
    """Return names as parameters, of which the others are slow."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[] if is_quick(name) else [slow]) for name in names]


EACH_SMALL_PLAN = marked(SMALL_PLANS, lambda name: name.startswith("mlp") or name in QUICK)


def small_plan(name):
    """The plan of a name in SMALL_PLANS, made when asked for."""
    network, strategy = name.split(", ")
    return planned(network, **STRATEGIES[strategy])


UNEVEN = {
    "gpt2": {},
    "gpt2 in micro-batches": {"accumulate": 2},
    "gpt2 on a GPU": {"device": find_device("h100"), "overlap_copies": True},
    "densenet": {},
    "densenet, recursive": {"recompute": "recursive"},
    "unet": {"recompute": "cheap"},
    "lstm, recursive": {"recompute": "recursive"},
    "resnet on a GPU": {"device": find_device("h100"), "recompute": "sublinear"},
}
"""Options of plans in which values share bytes in more ways: views, parts, fused groups, copies of
copies."""

EACH_UNEVEN_PLAN = marked(UNEVEN, lambda name: name not in ("gpt2", "densenet", "resnet on a GPU"))


def uneven_plan(name):
    """The plan of a name in UNEVEN, made when asked for: some take a second."""
    return planned(re.match(r"\w+", name)[0], **UNEVEN[name])


def uneven_plans():
    """All plans of UNEVEN, by name."""
    return {name: uneven_plan(name) for name in UNEVEN}


@functools.cache
def without_copies():
    """A plan within a budget that needs no copies, of the network of `with_copies`."""
    return _within(1.0)


@functools.cache
def with_copies():
    """A plan that copies values to the host, planned for a fast link.

    By the model of the views, with the link of a CPU, its copies cause stalls.
    """
    fast = MeasuredCosts({"name": "cpu"}, (), HostLink(2e11, 2e11))
    return _within(0.3, host_budget="1GiB", costs=fast)


def _within(part, **options):
    def plan(**more):
        network = mlp(layers=6, hidden=32, inputs=16, batch=256)
        return g.plan(network, optimizer=g.optim.SGD(), **more)

    most = plan().arena_bytes
    least = plan(budget=most).bound_bytes
    return plan(budget=least + int(part * (most - least)), **options)


@functools.cache
def copied_at_random(network, seed):
    """A plan whose values, inputs and states are copied at random nodes, some several times."""
    return randomly_copied(planned(network), random.Random(seed), 8)


COPIED = [("mlp", 1), ("lstm", 2), ("resnet", 3)]

EACH_PAIR = {("lstm", "cheap"), ("gpt2", "recursive"), ("resnet", "sublinear")}
"""Networks and policies whose plans quick tests compare with plans that recompute nothing."""


def pairs_of(networks, policies):
    """Return all pairs as parameters, of which those of `EACH_PAIR` are quick."""
    slow = pytest.mark.slow
    return [
        pytest.param(network, policy, marks=[] if (network, policy) in EACH_PAIR else [slow])
        for network in networks
        for policy in policies
    ]


def all_with_copies():
    return [with_copies(), *(copied_at_random(*each) for each in COPIED)]
