"""Copies of modules and arguments whose tensors have no data, for plans without running.

Tensors on the meta device, or of a `FakeTensorMode`, have shapes and no data. All tensors become
fake tensors on the CPU, so torch selects the same ops as for a module on a CPU, such as fused
attention. On the meta device, torch would decompose attention into matrix products, which needs
more memory than any device would use.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from graphc.devices.device import DEFAULT_GPU, DEVICES, Device, profile_with_memory
from graphc.errors import DependencyError, OptionError, TorchError, did_you_mean, quoted
from graphc.torch.budget.trace.restored import reached
from graphc.torch.versions import is_before

TRACES_FAKES = (2, 11)
"""The first tested version whose Dynamo traces tensors of a `FakeTensorMode`."""

Call = tuple[nn.Module, Any, tuple[Any, ...], dict[str, Any]]
"""A module, a loss or None, and the arguments of a call."""


def on_profile(device: str | None, call: Call) -> tuple[Device | None, Call]:
    """Return the device profile of a plan, and the call to trace.

    If `device` is None and all tensors of the module have data, returns None and `call` itself. For
    a module without tensors, its arguments decide. Raises `OptionError` for an unknown profile, and
    `DependencyError` if torch cannot trace tensors without data.
    """
    deciding = [*call[0].parameters(), *call[0].buffers()] or _tensors(call)
    if device is None and not any(e.is_meta or isinstance(e, FakeTensor) for e in deciding):
        return None, call
    name = DEFAULT_GPU if device is None else profile_with_memory(str(device))
    if name not in DEVICES:
        is_own = name.partition(":")[0] in ("gpu", "cuda")
        near = "" if is_own else did_you_mean(name, DEVICES, before="; ")
        raise OptionError(
            f"device={quoted(name)} is no device profile, for which a plan needs no data. Omit "
            "device= to plan for the device of the module's tensors, or choose one of: "
            f"{', '.join(DEVICES)}{near}"
        )
    if is_before(torch.__version__, TRACES_FAKES):
        raise DependencyError(
            "planning for a device profile, or tensors without data, needs torch 2.11, got torch "
            f"{torch.__version__}; install a newer one, or plan the module and its arguments on "
            "their device"
        )
    return DEVICES[name], without_data(call)[1]


def refuse_without_data(device: Device | None) -> None:
    """Raise `TorchError` for a call of a step that is planned for a device profile."""
    if device is not None:
        raise TorchError(
            f"this step is planned for the device profile {device.name} from tensors without "
            "data, so it has a report and cannot run; to train, create the module and its "
            "arguments on their device and plan them without device="
        )


def without_data(call: Call) -> tuple[FakeTensorMode, Call]:
    """Return a mode, and a copy of a call whose strided tensors are fake tensors of it on a CPU.

    Tensors that share a storage still share one. Other tensors, such as sparse ones, are copied.
    """
    of_storage: dict[int, list[torch.Tensor]] = defaultdict(list)
    for each in _tensors(call):
        if each.layout == torch.strided and not is_traceable_wrapper_subclass(each):
            of_storage[each.untyped_storage()._cdata].append(each)
    memo: dict[int, Any] = {}
    # Constants that a forward pass creates have data.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        for tensors in of_storage.values():
            for each, fake in zip(tensors, _fakes(tensors), strict=True):
                memo[id(each)] = _like(each, fake)
    return mode, copy.deepcopy(call, memo)


def _tensors(call: Call) -> list[torch.Tensor]:
    module, loss_fn, *given = call
    modules = [*module.modules(), *(loss_fn.modules() if isinstance(loss_fn, nn.Module) else ())]
    found = reached([*map(vars, modules), given])
    return [each for each in found if isinstance(each, torch.Tensor)]


def _fakes(tensors: list[torch.Tensor]) -> Iterable[torch.Tensor]:
    """Return a fake tensor for each of the tensors in one storage."""
    size = tensors[0].untyped_storage().nbytes()
    for each in tensors:
        if len(tensors) == 1 and size == each.numel() * each.element_size():
            yield torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="cpu")
        else:
            if each is tensors[0]:
                whole = torch.empty(size, dtype=torch.uint8, device="cpu")
            typed = whole.view(each.dtype) if each.dtype != torch.uint8 else whole
            yield typed.as_strided(each.shape, each.stride(), each.storage_offset()).detach()


def _like(given: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor that autograd treats like the given one."""
    if isinstance(given, nn.Parameter):
        return nn.Parameter(fake, given.requires_grad)
    fake.requires_grad_(given.requires_grad)
    with torch.enable_grad():
        return fake if given.is_leaf else fake.view_as(fake)
