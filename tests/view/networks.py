"""Small plans that hold every kind of buffer and every way to get bytes."""

import functools

import graphc as g
from graphc.models import lstm, mlp, resnet

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


@functools.cache
def planned(network="resnet", **options):
    return g.plan(NETWORKS[network](), optimizer=g.optim.Momentum(), **options)


STRATEGIES = (
    {"allocate": "none"},
    {"allocate": "sharing"},
    {},
    {"recompute": "cheap"},
    {"recompute": "sublinear"},
)


def every_plan():
    return [planned(network, **options) for network in SMALL for options in STRATEGIES]
