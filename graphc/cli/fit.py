"""graphc fit: whether a training step of torch fits a device, without weights or a GPU."""

from __future__ import annotations

import argparse
import json
import warnings
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from graphc.cli.arguments import add_options, check_writable
from graphc.cli.models import add_loss, find_model, flag_settings
from graphc.cli.terminal import INFEASIBLE, say
from graphc.devices.device import DEFAULT_GPU, find_device, profile_with_memory
from graphc.errors import OptionError
from graphc.files import write_atomically
from graphc.keywords import declared
from graphc.models import MODELS
from graphc.runtime.memory import memory_of
from graphc.torch.versions import require_torch

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

DTYPE = "float32"


def add(commands: Commands) -> None:
    """Register the command."""
    from graphc.torch.fit.options import FitOptions

    parser = commands.add_parser("fit", help="whether a training step of torch fits a device")
    parser.add_argument(
        "model", metavar="MODEL",
        help="file.py:function, which returns a module and its arguments; a config.json of "
        "transformers or diffusers, or its directory; a name of torchvision, timm or the zoo; or "
        "file.onnx",
    )  # fmt: skip
    parser.add_argument(
        "--task", metavar="TASK",
        help="task of a config.json, such as image-classification (default: that of its class)",
    )  # fmt: skip
    for name, text in (
        ("batch", "examples per step (default: 1)"),
        ("seq", "tokens of an example"),
        ("image", "pixels of the side of an image"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
    parser.add_argument("--dtype", default=DTYPE, help="dtype of the parameters")
    parser.add_argument("--autocast", help="dtype of autocast")
    parser.add_argument(
        "--device", default=DEFAULT_GPU, metavar="D",
        help=f"a device profile, or a GPU's memory such as 16GB (default: {DEFAULT_GPU})",
    )  # fmt: skip
    add_options(parser, FitOptions, tuple(declared(FitOptions)))
    parser.add_argument(
        "--no-plans", action="store_true", help="leave out the peaks of aot_eager and of a plan"
    )
    parser.add_argument(
        "--compile", action="store_true",
        help="add the peaks of torch.compile's kernels, without and with a plan of graphc",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", metavar="FILE.html",
        help="write a page: torch's allocator over the ops of a step",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_loss(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print whether the step fits, and return the exit code; networks of graphc are planned by
    ``graphc plan``."""
    if options.output is not None:
        if not options.output.endswith(".html"):
            raise OptionError(f"--output {options.output} must end in .html")
        check_writable(options.output)
    if options.model in MODELS or options.model.endswith(".onnx"):
        return _planned(options)
    _refuse_combinations(options)
    require_torch()
    from graphc.torch.fit.answer import answer, request_of, source_of
    from graphc.torch.fit.models import from_function
    from graphc.torch.fit.options import FitOptions

    chosen = FitOptions(**{name: getattr(options, name) for name in declared(FitOptions)})
    device = find_device(profile_with_memory(options.device))
    memory = memory_of(device)
    if memory is None:
        raise OptionError(f"the memory of {device.name} is unknown; choose another --device")
    if options.device[:1].isdecimal():  # a memory, of which the smallest GPU is meant
        memory = replace(memory, name=f"{options.device} ({device.name})")
    with warnings.catch_warnings(action="ignore"):  # those of model libraries
        if ":" in options.model and ".py" in options.model:
            given = {"batch", *(n for n in ("seq", "image") if getattr(options, n) is not None)}
            source = from_function(find_model(options.model, given), options.model)
        else:
            source = source_of(options.model, options.task)
        sizes: dict[str, Any] = {
            name: getattr(options, name) for name in ("seq", "image", "dtype", "autocast")
        }
        batch = 1 if options.batch is None else options.batch
        request = request_of(source, chosen, device, memory, batch=batch, **sizes)
        found = answer(options.model, request, plans=not options.no_plans, kernels=options.compile)
    if options.json:
        say(json.dumps(found.json))
    else:
        for line in found.lines():
            say(line)
    if options.output is not None:
        write_atomically(options.output, found.page().encode("utf-8"), OptionError)
        if not options.json:
            say(f"written to {options.output}")
    return 0 if found.spare_bytes >= 0 else INFEASIBLE


def _refuse_combinations(options: argparse.Namespace) -> None:
    """Raise `OptionError` for options of other models, and for options that contradict others."""
    if options.output is not None and options.checkpoint == "graphc":
        raise OptionError("--output shows eager steps; omit --checkpoint graphc")
    if options.no_plans and options.checkpoint == "graphc":
        raise OptionError("--no-plans leaves out the plan that --checkpoint graphc asks for")
    if options.no_plans and options.compile:
        raise OptionError("--no-plans leaves out the peaks that --compile asks for")
    if options.compile and (options.shard is not None or options.checkpoint != "none"):
        name = "shard" if options.shard is not None else "checkpoint"
        raise OptionError(f"--compile shows steps of one rank without checkpoints; omit --{name}")
    if flag_settings(options):
        raise OptionError(
            "--loss and --trainable are for ONNX files; a function returns its loss, or a loss "
            "function"
        )


def _planned(options: argparse.Namespace) -> int:
    """Run ``graphc plan`` for a network of graphc; raises `OptionError` for options of torch."""
    from graphc.cli import main  # which imports this file
    from graphc.torch.fit.options import FitOptions

    model = options.model
    if options.output is not None:
        raise OptionError(f"--output shows steps of torch; for {model}, run graphc view {model}")
    defaults = {
        **asdict(FitOptions()),
        "autocast": None,
        "task": None,
        "no_plans": False,
        "compile": False,
    }
    for name, default in defaults.items():
        if name != "optimizer" and getattr(options, name) != default:
            raise OptionError(
                f"--{name.replace('_', '-')} is for modules of torch, and {model} is a network of "
                "graphc; see graphc plan --help"
            )
    length = "seq_len" if model in MODELS else "seq"
    sizes = {"batch": options.batch, length: options.seq, "image": options.image}
    if options.dtype != DTYPE:
        sizes["dtype"] = options.dtype
    settings = [f"{name}={size}" for name, size in sizes.items() if size is not None]
    given = ["--optimizer", options.optimizer or "adamw", "--device", options.device]
    settings += flag_settings(options)
    code = main(["plan", model, *settings, *given, *["--json"] * options.json])
    if model in MODELS and not options.json:
        say(
            f"\n{model} is graphc's own network; for a model of torch, give its config.json, a "
            "name such as torchvision:resnet50, or file.py:function"
        )
    return code
