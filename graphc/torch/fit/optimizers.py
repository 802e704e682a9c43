"""Bytes of optimizer states by formula, and optimizers that allocate them on fake tensors.

The formulas are those of torch.optim (SGD, Adam, AdamW, Adafactor, Muon), of bitsandbytes
(Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022) and of lion-pytorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import nn

from graphc.errors import choose
from graphc.torch.fit.parameters import Parameter, parameters_of

SCALAR_BYTES = 4
"""Bytes of a counter of steps, a float32 number in torch."""

BLOCK = 256
"""Elements of a block that has one scale, in 8-bit Adam."""

LEAST_QUANTIZED = 4096
"""The smallest number of elements whose states 8-bit Adam stores in 8 bits."""

MAPS_BYTES = 2 * 256 * 4
"""Bytes of 8-bit Adam's tables of the signed and unsigned 8-bit floats, one pair per device."""


def state_sizes(optimizer: str, parameters: Iterable[Parameter]) -> list[int]:
    """Return the bytes of each tensor of an optimizer's state; frozen parameters have none.

    Raises `OptionError` for an unknown optimizer.
    """
    states = STATES[choose("optimizer", optimizer, tuple(STATES))]
    trained = [each for each in parameters if each.is_trainable]
    sizes = [size for each in trained for size in states(each)]
    if optimizer == "adam8bit" and any(each.count >= LEAST_QUANTIZED for each in trained):
        sizes.append(MAPS_BYTES)
    return sizes


def _adam(parameter: Parameter) -> tuple[int, ...]:
    return (SCALAR_BYTES, parameter.size_bytes, parameter.size_bytes)


def _adam_8bit(parameter: Parameter) -> tuple[int, ...]:
    if parameter.count < LEAST_QUANTIZED:
        return (4 * parameter.count,) * 2
    return (parameter.count, 4 * -(-parameter.count // BLOCK)) * 2


def _adafactor(parameter: Parameter) -> tuple[int, ...]:
    """Return sizes for factors of rows and columns (Shazeer and Stern, 2018), as in torch."""
    shape, width = parameter.shape, parameter.element_bytes
    if len(shape) < 2:
        return (SCALAR_BYTES, parameter.size_bytes)
    return (SCALAR_BYTES, width * prod(shape[:-1]), width * prod(shape[:-2]) * shape[-1])


def _one(parameter: Parameter) -> tuple[int, ...]:
    return (parameter.size_bytes,)


STATES: dict[str, Callable[[Parameter], tuple[int, ...]]] = {
    "sgd": lambda parameter: (),
    "momentum": _one,
    "adam": _adam,
    "adam-fused": _adam,
    "adamw": _adam,
    "adamw-fused": _adam,
    "adafactor": _adafactor,
    "adam8bit": _adam_8bit,
    "muon": lambda parameter: (_one if parameter.is_matrix else _adam)(parameter),
    "lion": _one,
}
"""The bytes of each state tensor of one parameter. Muon leaves all but matrices to AdamW."""

CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adam-fused": partial(torch.optim.Adam, fused=True),
    "adamw-fused": partial(torch.optim.AdamW, fused=True),
}
"""Optimizers of torch that update any parameter, and run on tensors without data."""


def optimizer_of(name: str, module: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer for the trainable parameters of a module, to be run on fake tensors.

    It is torch's own if it is in `CLASSES`, else one that allocates the states of
    `state_sizes` and changes no parameter. Raises `OptionError` for an unknown name.
    """
    choose("optimizer", name, tuple(STATES))
    trained = [each for each in module.parameters() if each.requires_grad]
    return CLASSES[name](trained) if name in CLASSES else _StatesOnly(name, module)


class _StatesOnly(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer whose step allocates states by formula, as one fused kernel would."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.formula = name
        self.sizes = parameters_of(module)
        super().__init__(list(module.parameters()), {})

    def step(self, closure: Any = None) -> None:
        """Allocate the states of all parameters at the first call."""
        (group,) = self.param_groups
        if self.state:
            return
        first = group["params"][0]
        for number, size in enumerate(state_sizes(self.formula, self.sizes)):
            self.state[first][number] = torch.empty(size, dtype=torch.uint8, device=first.device)
