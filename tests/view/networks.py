"""Small plans that hold every kind of buffer and every way to get bytes."""

import functools
import random

from plans.with_copies import randomly_copied

import graphc as g
from graphc.ir.device import find_device
from graphc.ir.host_link import HostLink
from graphc.models import densenet121, gpt2, lstm, mlp, resnet, unet
from graphc.plans.costs import MeasuredCosts

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


def small_plan(name):
    """The plan of a name in SMALL_PLANS, made when asked for."""
    network, strategy = name.split(", ")
    return planned(network, **STRATEGIES[strategy])


def uneven_plans():
    """Plans in which values share bytes in more ways: views, parts, fused groups, copies of copies.

    Made when asked for: some take a second.
    """
    return {
        "gpt2": planned("gpt2"),
        "gpt2 in micro-batches": planned("gpt2", accumulate=2),
        "gpt2 on a GPU": planned("gpt2", device=find_device("h100"), overlap_copies=True),
        "densenet": planned("densenet"),
        "densenet, recursive": planned("densenet", recompute="recursive"),
        "unet": planned("unet", recompute="cheap"),
        "lstm, recursive": planned("lstm", recompute="recursive"),
        "resnet on a GPU": planned("resnet", device=find_device("h100"), recompute="sublinear"),
    }


UNEVEN = (
    "gpt2", "gpt2 in micro-batches", "gpt2 on a GPU", "densenet", "densenet, recursive", "unet",
    "lstm, recursive", "resnet on a GPU",
)  # fmt: skip


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


def all_with_copies():
    return [with_copies(), *(copied_at_random(*each) for each in COPIED)]
