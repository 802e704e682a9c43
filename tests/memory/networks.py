"""Small networks of the zoo, and plans of them that tests share."""

import functools

import pytest

import graphc as g
from graphc.errors import BudgetError
from graphc.models import bert, densenet121, gpt2, lstm, preact_resnet, resnet, unet, vgg16

MODELS = {
    "preact_resnet": lambda: preact_resnet(20, batch=4, image=16),
    "resnet": lambda: resnet(50, batch=1, image=64, classes=10),
    "densenet121": lambda: densenet121(batch=8, image=32, growth=8, blocks=(3, 4, 3)),
    "unet": lambda: unet(batch=1, image=64, width=8),
    "gpt2": lambda: gpt2(layers=2, width=32, heads=2, seq_len=64, batch=4, vocab=50),
    "bert": lambda: bert(  # with maps (rows x columns) of the attention weights
        layers=3, width=32, heads=2, seq_len=48, batch=4, vocab=50, masked=7, attention="composed"
    ),
    "lstm": lambda: lstm(seq_len=4, batch=16, layers=2, hidden=16, inputs=8, classes=10),
    "vgg16": lambda: vgg16(batch=4, image=64, classes=10, width=8, hidden=16),
    "longer lstm": lambda: lstm(seq_len=12, batch=16, layers=2, hidden=16, inputs=8, classes=10),
    "deeper gpt2": lambda: gpt2(
        layers=4, width=32, heads=2, seq_len=64, batch=4, vocab=50, attention="composed"
    ),
    "deeper preact_resnet": lambda: preact_resnet(29, batch=4, image=16),
}


def parameters(quick, slow):
    """Return parameters, the second ones marked as slow."""
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]


def planned(name, **options):
    return g.plan(MODELS[name](), optimizer=g.optim.SGD(), **options)


plan = functools.cache(planned)


@functools.cache
def least_bytes(name, **options):
    with pytest.raises(BudgetError) as caught:
        plan(name, **(options or {"budget": 1}))
    return caught.value.least_bytes
