"""The networks whose steps step_time.py measures, and what they begin with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import graphc
from graphc.models import MODELS
from graphc.runtime.feeds import random_feeds
from graphc.runtime.initial import fill_initial


@dataclass(frozen=True)
class Case:
    """A network of the zoo, the optimizer, and its sizes, from which peers are made, too."""

    label: str
    model: str
    optimizer: str
    sizes: Mapping[str, Any]


MLP = {"layers": 50, "hidden": 1024, "inputs": 784, "classes": 10, "batch": 512}
PREACT = {"depth": 29, "batch": 32, "image": 32, "classes": 10}
LSTM = {
    "seq_len": 16, "batch": 64, "layers": 4, "hidden": 1024, "inputs": 50, "classes": 5000,
    "by_layer": True,
}  # fmt: skip
GPT = {
    "layers": 4, "width": 128, "heads": 4, "seq_len": 128, "batch": 16, "vocab": 256,
    "positions": 128, "drop": 0,
}  # fmt: skip
RESNET = {
    "units": (3, 4, 6, 3), "form": "common", "batch": 8, "image": 224, "classes": 1000,
}  # fmt: skip
VIT = {
    "layers": 12, "width": 384, "heads": 6, "patch": 16, "image": 224, "classes": 1000, "batch": 8,
}  # fmt: skip
MOBILENET = {"batch": 16, "image": 224, "classes": 1000, "drop": 0}
BERT = {
    "layers": 12, "width": 768, "heads": 12, "seq_len": 128, "batch": 8, "vocab": 30522,
    "positions": 512, "masked": 19, "drop": 0,
}  # fmt: skip
GPT_SMALL = {
    "layers": 12, "width": 768, "heads": 12, "seq_len": 256, "batch": 2, "vocab": 50257,
    "positions": 256, "drop": 0,
}  # fmt: skip
CASES = (
    Case("mlp 50 x 1024, batch 512, sgd", "mlp", "sgd", MLP),
    Case("mlp 50 x 1024, batch 512, adam", "mlp", "adam", MLP),
    Case("preact_resnet 29, batch 32, sgd", "preact_resnet", "sgd", PREACT),
    Case("lstm 4 x 1024, T=16, batch 64, sgd", "lstm", "sgd", LSTM),
    Case("gpt2 4 x 128, T=128, batch 16, adam", "gpt2", "adam", GPT),
    Case("resnet 50, batch 8, sgd", "resnet", "sgd", RESNET),
    Case("vit 12 x 384, patch 16, batch 8, adam", "vit", "adam", VIT),
    Case("mobilenet_v2, batch 16, sgd", "mobilenet_v2", "sgd", MOBILENET),
    Case("bert 12 x 768, T=128, batch 8, adam", "bert", "adam", BERT),
    Case("gpt2 12 x 768, T=256, batch 2, adam", "gpt2", "adam", GPT_SMALL),
)


OPTIMIZERS = {"sgd": graphc.optim.SGD, "adam": graphc.optim.Adam}


def network(case: Case) -> graphc.Value:
    """The loss."""
    return MODELS[case.model](**case.sizes)


def graphc_program(case: Case) -> graphc.Program:
    return graphc.compile(network(case), optimizer=OPTIMIZERS[case.optimizer](1e-3))


def draw_feeds(graph: graphc.Graph) -> dict[str, np.ndarray]:
    """Random arrays for the inputs that have no default."""
    return {
        source.name: array
        for source, array in random_feeds(graph, 0).items()
        if source.default is None
    }


def initial_parameters(graph: graphc.Graph) -> dict[str, np.ndarray]:
    """What a program begins to train with."""
    found = {}
    for state in graph.states:
        if state.trainable:
            found[state.name] = np.empty(state.shape, state.type.dtype.numpy)
            fill_initial(state, 0, found[state.name])
    return found
