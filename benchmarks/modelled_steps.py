"""The modelled step on an H200 of the networks that GPU work is judged by; no GPU is needed.

See graphc/runtime/gpu/step_model.py for what the model takes for granted. Run:
python benchmarks/modelled_steps.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.models import gpt2, resnet
from graphc.runtime.gpu.step_model import StepModel, model_step

MODELS: dict[str, tuple[Callable[[], graphc.Value], graphc.optim.Optimizer]] = {
    "ResNet-50, batch 64": (
        lambda: resnet(batch=64, form="common"), graphc.optim.Momentum(0.1)
    ),
    "GPT-2 small, 16 x 1024, composed attention": (
        lambda: gpt2(batch=16, seq_len=1024, drop=0.0), graphc.optim.AdamW(1e-4)
    ),
    "GPT-2 small, 16 x 1024, fused attention": (
        lambda: gpt2(batch=16, seq_len=1024, drop=0.0, attention="fused"),
        graphc.optim.AdamW(1e-4),
    ),
}  # fmt: skip


def row_of(network: str, with_cudnn: bool, step: StepModel) -> dict[str, object]:
    """The figures of one step as a row, in milliseconds."""
    kinds = {f"{kind}_ms": seconds * 1e3 for kind, seconds in step.by_kind.items()}
    return {
        "network": network,
        "cudnn": with_cudnn,
        "step_ms": step.seconds * 1e3,
        **kinds,
        "calls": step.calls,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="h200", help="a device profile")
    parser.add_argument("--precision", default="bf16")
    output_argument(parser, "modelled_steps.json")
    options = parser.parse_args()
    rows, steps = [], []
    for network, (build, optimizer) in MODELS.items():
        plan = graphc.plan(
            build(), optimizer=optimizer, device=options.device, precision=options.precision
        )
        for with_cudnn in (False, True):
            step = model_step(plan, with_cudnn)
            rows.append(row_of(network, with_cudnn, step))
            found: dict[str, Any] = {"network": network, "cudnn": with_cudnn, **step.as_json()}
            steps.append({**found, "arena_bytes": plan.arena_bytes})
    print_table(rows)
    asked = {"device": options.device, "precision": options.precision}
    content = {**circumstances(["graphc", "numpy"]), **asked, "modelled": True, "steps": steps}
    write_json(Path(options.output), content)


if __name__ == "__main__":
    main()
