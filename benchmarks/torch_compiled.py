"""Steps that inductor compiles within a byte budget, against torch.compile's ways to save bytes.

Each network is run in eager mode, with torch.utils.checkpoint on each block, compiled by
torch.compile (alone, with these checkpoints, and with ``activation_memory_budget``), and by graphc
with ``compile=True`` at the bytes that were measured of each compiled step, and at the fewest that
it finds. Peaks are measured and include parameters, inputs and gradients. A step's time is over
that of eager steps taken in turn with it; the first call includes planning and compilation.

Run: python benchmarks/torch_compiled.py [NETWORK ...] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch_config
from model_tables import compiled_summary
from report import circumstances, output_argument, print_table, write_json
from torch import nn
from torch.utils.checkpoint import checkpoint
from turns import measure, timed

import graphc

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from torch_cases.modules import MODULES, Case
from torch_cases.steps import Run

MEMORY_BUDGETS = 0.1, 0.3, 0.5, 0.7, 0.9
Row = dict[str, Any]


class LossOf(nn.Module):
    """A model of transformers that returns its loss alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def blocks(self) -> nn.ModuleList:
        """The largest list of blocks that a step calls one after the other."""
        lists = (each for each in self.model.modules() if isinstance(each, nn.ModuleList))
        return max(lists, key=len)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss


def of_transformers(name: str, **sizes: Any) -> Callable[[], Case]:
    def made() -> Case:
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(vocab_size=2048, **sizes)
        kind = {"T5": "T5ForConditionalGeneration"}.get(name, f"{name}ForCausalLM")
        return LossOf(getattr(transformers, kind)(config)).train(), (
            torch.randint(2, 2048, (8, 256)),
        )

    return made


NETWORKS: dict[str, Callable[[], Case]] = {
    "Llama": partial(MODULES["Llama"], "full"),
    "GPT": partial(MODULES["GPT"], "full"),
    "BERT": partial(MODULES["TransformerEncoder"], "full"),
    "T5": of_transformers(
        "T5", d_model=256, d_kv=64, num_heads=4, d_ff=1024, num_layers=4, decoder_start_token_id=0
    ),
    "ViT": partial(MODULES["ViT"], "full"),
    "ResNet-50": partial(MODULES["ResNet-50"], "full"),
    "U-Net": partial(MODULES["U-Net"], "full"),
    "Mamba": of_transformers("Mamba", hidden_size=192, num_hidden_layers=4),
    "mixture of experts": partial(MODULES["mixture of experts"], "full"),
}


def checkpointed(module: nn.Module) -> nn.Module:
    """Checkpoint each block of the module."""
    for block in getattr(module, "network", module).blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return module


def ways_of_torch(
    budgets: Sequence[float],
) -> dict[str, Callable[[nn.Module], Callable[..., Any]]]:
    """Return what makes a step of a module, by name."""
    found = {
        "eager": lambda module: module,
        "checkpoint": checkpointed,
        "torch.compile": torch.compile,
        "torch.compile, checkpoint": lambda module: torch.compile(checkpointed(module)),
    }
    for budget in budgets:
        found[f"activation_memory_budget {budget}"] = torch.compile
    return found


def row_of(way: str, run: Run, plain: Run, steps: int) -> Row:
    """Measure a step, whose first call compiles. Torch's budget is the last word of `way`."""
    is_budget = way.startswith("activation")
    budget = float(way.rpartition(" ")[2]) if is_budget else 1.0
    with functorch_config.patch(activation_memory_budget=budget):
        _, first = timed(run)
        peak = run.peak()
        seconds = measure({"eager": plain, way: run}, steps)
    return {
        "way": way,
        "peak_bytes": peak,
        "time_over_eager": seconds[way] / seconds["eager"],
        "seconds": seconds[way],
        "first_seconds": first,
    }


def rows_of(name: str, steps: int, budgets: Sequence[float]) -> Iterator[Row]:
    """Yield the rows of a network. Compiled code of one way would be used for the next one."""
    module, args = NETWORKS[name]()
    plain = Run(module, module, args)
    limits: dict[str, int] = {}
    for way, make in ways_of_torch(budgets).items():
        torch.compiler.reset()
        module, args = NETWORKS[name]()
        row = row_of(way, Run(module, make(module), args), plain, steps)
        if way not in ("eager", "checkpoint"):
            limits[way] = row["peak_bytes"]
        yield row
    limits["least"] = 1
    for way, limit in limits.items():
        torch.compiler.reset()
        module, args = NETWORKS[name]()
        plan = partial(graphc.torch.plan, module, args, compile=True)
        try:
            step, seconds = timed(partial(plan, budget=limit))
        except graphc.BudgetError as error:
            if way != "least":
                yield {"way": f"graphc, bytes of {way}", "refused": str(error)}
                continue
            step, seconds = timed(partial(plan, budget=error.least_bytes))
        row = row_of(f"graphc, bytes of {way}", Run(module, step, args), plain, steps)
        row["first_seconds"] += seconds
        yield row | {"planned_bytes": step.report.peak_bytes, "extra_time": step.report.extra_time}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each")
    parser.add_argument(
        "--budgets", nargs="*", type=float, default=MEMORY_BUDGETS, help="those of torch"
    )
    output_argument(parser, "torch_compiled.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    for name in options.networks:
        rows = [row for row in rows if row["network"] != name]
        for row in rows_of(name, options.steps, options.budgets):
            rows.append({"network": name, **row})
            print_table(rows[-1:])
            write_json(options.output, {**circumstances(["graphc", "torch"]), "rows": rows})
    print_table(compiled_summary(rows))


if __name__ == "__main__":
    main()
