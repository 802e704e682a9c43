"""The largest number of bytes that is live while a step of torch runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile


def measured_peak(
    run: Callable[[], object], held: Iterable[torch.Tensor] = (), reserve_bytes: int = 0
) -> int:
    """Bytes of the storages of `held`, which live before `run`, and the most that it adds to them.

    Every allocation and release of torch's CPU allocator counts, of workspaces, too. A caller
    holds parameters, buffers, inputs and those ``.grad`` that are there already.
    """
    before = storage_bytes(held) + reserve_bytes
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    found = recorded.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in found if event.name() == "[memory]"]
    live = most = 0
    for _, change in sorted(changes, key=lambda each: each[0]):
        live += change
        most = max(most, live)
    return before + most


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the tensors' storages, each of which counts once."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())
