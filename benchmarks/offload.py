"""Recomputation, offload and both within a part of the bytes, for training steps given as data.

Each network's training step becomes a problem of `graphc remat`: a node for each kernel, with the
seconds that the cost model gives it on a device, and a link of PCIe 4 to the host. Parameters and
their state are left out. Budgets are parts of the live bytes without recomputation. Times are
modeled, not measured. Run: python benchmarks/offload.py [NETWORK ...]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import graphc
from graphc.allocation.allocate import Allocation
from graphc.models import MODELS
from graphc.options import PlanOptions
from graphc.pipeline import Compilation, before, run, traced
from graphc.remat.training_graph import TrainingGraph

RATE = 25e9
"""Bytes per second of the link in each direction: PCIe 4 with 16 lanes."""

NETWORKS: dict[str, Callable[[], graphc.Value]] = {
    "ResNet-50, batch 64": partial(MODELS["resnet"], depth=50, batch=64, form="common"),
    "U-Net, batch 16": partial(MODELS["unet"], batch=16),
    "BERT large, batch 16": partial(MODELS["bert"], size="large", batch=16),
    "GPT-2 medium, batch 8": partial(MODELS["gpt2"], size="medium", batch=8),
}


def as_data(network: graphc.Value, device: str, precision: str) -> dict[str, Any]:
    """Return the training step of a network as a problem in the format of `graphc remat`."""
    options = PlanOptions(network, optimizer=graphc.optim.SGD(), device=device, precision=precision)
    graph = run(traced(options), before("recompute"), Compilation(options))
    allocation = Allocation(graph, options.target)
    steps = TrainingGraph(allocation, options.cost_model.seconds, False).steps
    names = {}
    for step, outputs in enumerate(steps.outputs):
        names |= {value: [step, index] for index, value in enumerate(outputs)}
    nodes = []
    for step, inputs in enumerate(steps.inputs):
        known = [value for value in inputs if value in names]
        outputs = steps.outputs[step]
        nodes.append(
            {
                "id": step,
                "cost": steps.cost[step],
                "bytes": [steps.bytes[value] for value in outputs],
                "inputs": [names[value] for value in known],
                "workspace": steps.workspace[step],
                "overwrites": [
                    [outputs.index(output), known.index(operand)]
                    for output, operand in steps.overwrites[step]
                    if operand in known
                ],
                "pinned": step in steps.once and not outputs,
            }
        )
    live_out = [names[value] for value in sorted(steps.live_out) if value in names]
    return {"nodes": nodes, "outputs": live_out, "boundary": steps.runs[0].boundary}
