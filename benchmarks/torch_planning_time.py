"""CPU seconds of planning PyTorch networks, by part, and of replanning for new sizes.

Each network is planned in a process of its own: with an empty cache of measurements, with the
filled one, for a second length or batch, which torch.compile traces with symbolic sizes, and for a
third one. `measuring`, `planning` and `emitting` (with checking) are timed by wrappers; `tracing`
is all the rest. Loops of the solver are compiled before, which takes 20 s once on a machine.
Requires torchvision, transformers, timm and diffusers.
Run: python benchmarks/torch_planning_time.py [NETWORK ...]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from report import circumstances, output_argument, print_table, write_json

import graphc

Made = tuple[Any, Callable[[int], dict[str, Any]], tuple[int, int, int]]
"""A module, its keyword arguments for a length or batch, and three lengths or batches."""

CASES = "cold", "warm", "second size", "third size"


def llama(layers: int = 4) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=352, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), _tokens, (128, 160, 144)


def gpt2(layers: int) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=512, n_positions=256, n_embd=64, n_layer=layers, n_head=4, use_cache=False
    )
    module = GPT2LMHeadModel(config)
    module.loss_type = "ForCausalLM"  # the default, which is logged unless it is set
    return module, _tokens, (64, 80, 72)


def _tokens(length: int) -> dict[str, Any]:
    import torch

    ids = torch.randint(512, (2, length))
    return {"input_ids": ids, "labels": ids.clone()}


def maxvit() -> Made:
    import timm

    return timm.create_model("maxvit_tiny_tf_224", num_classes=10), _images(224), (2, 3, 4)


def resnet50() -> Made:
    import torchvision

    return torchvision.models.resnet50(num_classes=10), _images(96), (4, 6, 8)


def autoencoder() -> Made:
    from diffusers import AutoencoderKL

    blocks = 4
    module = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=(32, 64, 128, 128), layers_per_block=2, latent_channels=4,
    )  # fmt: skip
    return module, lambda batch: {"sample": _images(64)(batch)["x"]}, (2, 3, 4)


def _images(size: int) -> Callable[[int], dict[str, Any]]:
    import torch

    return lambda batch: {"x": torch.randn(batch, 3, size, size)}


NETWORKS: dict[str, Callable[[], Made]] = {
    "Llama, 4 layers": llama,
    "MaxViT-T": maxvit,
    "AutoencoderKL": autoencoder,
    "ResNet-50": resnet50,
    "GPT-2, 12 layers": lambda: gpt2(12),
    "GPT-2, 48 layers": lambda: gpt2(48),
}


def timed_parts() -> Counter[str]:
    """Wrap the parts of planning, and return the CPU seconds that they accumulate."""
    from graphc.torch.budget import goal as planned

    seconds: Counter[str] = Counter()

    def timed(part: str, called: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            try:
                return called(*args, **kwargs)
            finally:
                seconds[part] += time.process_time() - started  # type: ignore[assignment]

        return run

    planned.measure = timed("measuring", planned.measure)
    planned.checked = timed("emitting", planned.checked)
    planned.Goal.planned = timed("all", planned.Goal.planned)
    return seconds


def rows_of(name: str) -> list[dict[str, Any]]:
    import torch

    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    warnings.simplefilter("ignore")
    seconds = timed_parts()
    # This imports torch.compile and compiles loops, which would count for the first network.
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(40)]
    graphc.torch.frontier(torch.nn.Sequential(*layers), (torch.zeros(256, 64),))
    module, given, sizes = NETWORKS[name]()
    rows = []
    step: Any = None
    for case, size in zip(CASES, (sizes[0], *sizes), strict=True):
        seconds.clear()
        kwargs = given(size)
        started = time.process_time()
        if case.endswith("size"):
            step.plan((), kwargs)
        else:
            torch.compiler.reset()
            step = graphc.torch.plan(module, (), "knee", kwargs=kwargs)
        total = time.process_time() - started
        nodes = len(step.plans[-1].torch_steps.joint.nodes)
        rows.append(
            {
                "network": name,
                "nodes": nodes,
                "case": case,
                "tracing": total - seconds["all"],
                "measuring": seconds["measuring"],
                "planning": seconds["all"] - seconds["measuring"] - seconds["emitting"],
                "emitting": seconds["emitting"],
                "total": total,
                "per_100_nodes": 100 * total / nodes,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    output_argument(parser, "torch_planning_time.json")
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = [row for found in pool.imap(rows_of, options.networks) for row in found]
    print_table(rows)
    packages = ["graphc", "torch", "transformers", "timm", "torchvision", "diffusers"]
    content = {**circumstances(packages), "rows": rows}
    if options.output.exists():  # rows of an earlier commit, for comparison
        content["before"] = json.loads(options.output.read_text()).get("before", [])
    write_json(options.output, content)


if __name__ == "__main__":
    main()
