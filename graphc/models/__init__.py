"""A zoo of networks, each a function from sizes to a scalar loss."""

from __future__ import annotations

from collections.abc import Callable

from graphc.ir.graph import Value
from graphc.models.bert import bert
from graphc.models.densenet import densenet121
from graphc.models.gpt2 import gpt2
from graphc.models.inception import inception_v3
from graphc.models.lstm import lstm
from graphc.models.mlp import mlp
from graphc.models.mobilenet import mobilenet_v2
from graphc.models.resnet import preact_resnet, resnet
from graphc.models.towers import two_tower
from graphc.models.unet import unet
from graphc.models.vgg import vgg16
from graphc.models.vit import vit

MODELS: dict[str, Callable[..., Value]] = {
    model.__name__: model
    for model in (
        bert, densenet121, gpt2, inception_v3, lstm, mlp, mobilenet_v2, preact_resnet, resnet,
        two_tower, unet, vgg16, vit,
    )
}  # fmt: skip
"""The networks by name."""

__all__ = ["MODELS", *MODELS]
