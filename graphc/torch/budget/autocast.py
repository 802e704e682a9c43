"""Autocast of planned steps: the option of a plan, and the context of each call."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from graphc.errors import OptionError, quoted


@dataclass(frozen=True)
class Autocast:
    """Arguments of ``torch.autocast``, whose contexts cannot be entered by several threads."""

    device_type: str
    dtype: torch.dtype
    enabled: bool = True
    cache_enabled: bool = True

    @classmethod
    def of(cls, autocast: object, module: nn.Module, is_profiled: bool) -> Autocast | None:
        """Return the autocast for an option of a plan; raises `OptionError`.

        A plan for a device profile is traced on a CPU, whose ops other autocasts do not change.
        """
        if autocast is None:
            return None
        if isinstance(autocast, torch.autocast):
            if is_profiled and autocast.device != "cpu":
                raise OptionError(
                    "autocast must be a dtype for a plan without data, such as autocast="
                    f"{autocast.fast_dtype}, got a torch.autocast of {autocast.device}"
                )
            enabled, cached = autocast._enabled, autocast._cache_enabled
            return cls(autocast.device, autocast.fast_dtype, enabled, cached)
        if isinstance(autocast, torch.dtype):
            device = next((each.device.type for each in module.parameters()), "cpu")
            return cls(device, autocast)
        raise OptionError(
            "autocast must be a dtype, such as torch.bfloat16, or a torch.autocast, got "
            f"{quoted(autocast)}"
        )


def context_of(autocast: Autocast | None) -> AbstractContextManager[object]:
    """Return a new context of this autocast, or an empty one."""
    if autocast is None:
        return nullcontext()
    context: AbstractContextManager[object] = torch.autocast(
        autocast.device_type, autocast.dtype, autocast.enabled, autocast.cache_enabled
    )
    return context
