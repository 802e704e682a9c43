"""graphc devices: list the CPU and the GPUs, or the reason why there are none."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc.cli.declined import told
from graphc.cli.terminal import say
from graphc.errors import GpuUnavailable, GraphcError
from graphc.ir.types import format_bytes
from graphc.runtime.cpu.onednn.library import VERSION, WHEEL, load_onednn
from graphc.runtime.gpu import cublaslt, nvrtc
from graphc.runtime.gpu.device import cuda_versions, find_gpus
from graphc.runtime.memory import machine_memory
from graphc.runtime.profile import machine

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("devices", help="list the CPU and the GPUs, or why there are none")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the devices and libraries."""
    found = describe()
    if options.json:
        say(json.dumps(found))
        return
    cpu = found["cpu"]
    say(f"cpu     {cpu['name']}, {format_bytes(cpu['memory_bytes'])}, NumPy {cpu['numpy']}")
    for gpu in found["gpus"]:
        memory = f"{format_bytes(gpu['free_bytes'])} free of {format_bytes(gpu['memory_bytes'])}"
        say(f"cuda:{gpu['number']}  {gpu['name']}, sm_{gpu['architecture']}, {memory}")
        for line in _declined(gpu["cudnn_declines"]):
            say(f"        {line}")
    if found["gpu_unavailable"]:
        say(f"cuda    {found['gpu_unavailable']}")
    for name, version in found["libraries"].items():
        say(f"        {name}: {version}")
    say("        what has run on which GPU: docs/gpu-status.md")


def _declined(found: Mapping[str, Sequence[str]] | str) -> Iterator[str]:
    """Yield lines on the requests that cuDNN declines."""
    if isinstance(found, str):
        yield found
    elif not found:
        yield "cuDNN serves the convolutions and the attention of a small network"
    else:
        for precision, requests in found.items():
            yield f"cuDNN declines in {precision}: {'; '.join(requests)}"


def describe() -> dict[str, Any]:
    """Return the devices of this machine as a mapping, with memory in bytes.

    The keys are ``cpu``, ``gpus``, ``gpu_unavailable`` (a sentence or None) and ``libraries``
    (versions, or why they are missing). A GPU's ``cudnn_declines`` maps precisions to the requests
    of a small network that cuDNN does not support, or is the reason why cuDNN is not available.
    """
    found: dict[str, Any] = {
        "cpu": {
            "name": machine(),
            "memory_bytes": machine_memory().total_bytes,
            "numpy": np.__version__,
        },
        "gpus": [],
        "gpu_unavailable": None,
        "libraries": {"onednn": _onednn(), "nvrtc": _nvrtc(), "cublas": _cublas()},
    }
    try:
        found["gpus"] = [
            {name: getattr(gpu, name) for name in type(gpu).__slots__}
            | {"cudnn_declines": told(gpu)}
            for gpu in find_gpus()
        ]
        found["libraries"] |= cuda_versions()
    except GpuUnavailable as error:
        found["gpu_unavailable"] = str(error)
    return found


def _onednn() -> str:
    if load_onednn() is None:
        return f"missing; products and convolutions run slower, as NumPy's: pip install {WHEEL}"
    return ".".join(map(str, VERSION))


def _nvrtc() -> str:
    try:
        major, minor = nvrtc.version()
    except GraphcError as error:
        return str(error)
    return f"{major}.{minor}"


def _cublas() -> str:
    try:
        return cublaslt.version(cublaslt.load_cublaslt())
    except GraphcError as error:
        return str(error)
