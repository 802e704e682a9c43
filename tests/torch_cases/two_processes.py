"""Data parallel training in two processes on one machine, which talk over gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_cases import parts

import graphc

WORLD, STEPS, WIDTH = 2, 3, 64


def module_and_batches() -> tuple[nn.Module, list[torch.Tensor]]:
    """The same module in each process, and all batches: one a process and step."""
    torch.manual_seed(0)
    module = parts.layers(4)
    return module, [torch.randn(256, WIDTH) for _ in range(WORLD * STEPS)]


def train(rank: int, folder: str, is_planned: bool) -> None:
    """Train in one process, and keep what its parameters became."""
    rendezvous = Path(folder) / f"rendezvous-{is_planned}"
    torch.distributed.init_process_group(
        "gloo", init_method=rendezvous.as_uri(), rank=rank, world_size=WORLD
    )
    module, batches = module_and_batches()
    call: Any = module
    if is_planned:
        least = graphc.torch.frontier(module, (batches[rank],)).points[-1].peak_bytes
        call = graphc.torch.plan(module, (batches[rank],), least)
        assert call.report.repeated
    else:
        call = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=False)
    parallel = DistributedDataParallel(call)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        parallel(batches[WORLD * step + rank]).square().mean().backward()
        optimizer.step()
    torch.save(list(module.parameters()), Path(folder) / f"{is_planned}-{rank}.pt")
    torch.distributed.destroy_process_group()


def train_sharded(rank: int, folder: str) -> None:
    """Train a planned step under FSDP2 in one process; keep its parameters and plan count."""
    torch.distributed.init_process_group(
        "gloo", init_method=(Path(folder) / "meeting").as_uri(), rank=rank, world_size=WORLD
    )
    module, batches = module_and_batches()
    least = graphc.torch.frontier(module, (batches[rank],)).points[-1].peak_bytes
    step = graphc.torch.plan(module, (batches[rank],), least)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (WORLD,))
    torch.distributed.fsdp.fully_shard(step, mesh=mesh)
    optimizer = torch.optim.SGD(step.parameters(), lr=0.1, momentum=0.9)
    for number in range(STEPS):
        optimizer.zero_grad()
        step(batches[WORLD * number + rank]).square().mean().backward()
        optimizer.step()
    assert step.report.repeated
    whole = [each.full_tensor() for each in step.parameters()]
    torch.save((whole, len(step.plans)), Path(folder) / f"sharded-{rank}.pt")
    torch.distributed.destroy_process_group()
