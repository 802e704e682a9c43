"""graphc devices: list the CPU and the GPUs, or the reason why there are none."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc.byte_sizes import format_bytes
from graphc.cli.terminal import WIDTH, say
from graphc.compiler.compile import plan
from graphc.devices.device import profiles_with_memory
from graphc.devices.device_memory import machine_memory
from graphc.errors import GpuUnavailable, GraphcError
from graphc.ir.builder import input
from graphc.ir.graph import Value
from graphc.ops.activation import relu
from graphc.ops.attention import multi_head_attention
from graphc.ops.conv_layers import conv2d
from graphc.ops.elementwise import add as plus
from graphc.ops.matmul import linear
from graphc.ops.reduce import mean
from graphc.optim import SGD
from graphc.plans.memory_plan import PRECISIONS, Precision
from graphc.runtime.cpu.onednn.library import VERSION, WHEEL, load_onednn
from graphc.runtime.gpu import cublaslt, nvrtc
from graphc.runtime.gpu.bind import bind
from graphc.runtime.gpu.cuda import CudaDevice
from graphc.runtime.gpu.cudnn import Cudnn, load_cudnn, shown
from graphc.runtime.gpu.device import Gpu, cuda_versions, find_gpu, find_gpus, profile_of
from graphc.runtime.gpu.places import ARENA_ALIGNMENT
from graphc.runtime.profile import machine

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

INDENT = " " * 8


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
        for line in _lines(gpu["cudnn_declines"]):
            say(f"        {line}")
    if found["gpu_unavailable"]:
        say(f"cuda    {found['gpu_unavailable']}")
    for name, version in found["libraries"].items():
        say(f"        {name}: {version}")
    say("        what has run on which GPU: docs/gpu-status.md")
    listed = f"to plan for without a GPU: {profiles_with_memory()}"
    say(textwrap.fill(listed, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT))


def _lines(found: Mapping[str, Sequence[str]] | str) -> Iterator[str]:
    """Yield lines about the requests that cuDNN does not support."""
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
            | {"cudnn_declines": _cudnn_declines(gpu)}
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


def _layers() -> Value:
    """Build a loss with typical convolutions of residual and mobile networks, and attention.

    The attention is causal, and its heads have 64 elements.
    """
    images, tokens = input("images", (8, 3, 64, 64)), input("tokens", (2, 128, 64))
    h = relu(conv2d(images, 64, 7, stride=2, padding=3, name="stem"))
    h = relu(conv2d(h, 64, 1, name="narrow"))
    h = relu(conv2d(h, 64, 3, padding=1, name="window"))
    h = relu(conv2d(h, 64, 3, padding=1, groups=64, name="depthwise"))
    h = relu(conv2d(h, 128, 3, stride=2, padding=1, name="strided"))
    heads = multi_head_attention(linear(tokens, 384, name="qkv"), 2, True, form="fused")
    return plus(mean(h), mean(heads))


def _declined_by_precision(gpu: Gpu) -> dict[Precision, list[str]]:
    """Map each precision to the requests of a step for which cuDNN has no engine.

    Precisions without such requests are omitted. No device memory is accessed. Raises `GraphcError`
    if cuDNN is missing or finds no usable GPU.
    """
    found: dict[Precision, list[str]] = {}
    with CudaDevice(gpu).active():
        cudnn = Cudnn(load_cudnn())
        try:
            for precision in PRECISIONS:
                if precision == "fp8":  # its requests are those of bf16
                    continue
                requests = _declined_requests(gpu, cudnn, precision)
                if requests:
                    found[precision] = requests
        finally:
            cudnn.close()
    return found


def _declined_requests(gpu: Gpu, cudnn: Cudnn, precision: Precision) -> list[str]:
    made = plan(_layers(), optimizer=SGD(), device=profile_of(gpu), precision=precision)
    requests: dict[str, None] = {}
    bind(
        made, ARENA_ALIGNMENT, precision == "tf32", cudnn,
        declines=lambda request: requests.setdefault(shown(request)),
    )  # fmt: skip
    return list(requests)


def _cudnn_declines(gpu: Gpu) -> dict[Precision, list[str]] | str:
    """Return the requests that cuDNN does not support, or the reason why cuDNN is not available."""
    try:
        find_gpu(gpu.number)  # raises an error if the GPU is too old
        return _declined_by_precision(gpu)
    except (GraphcError, RuntimeError) as error:  # CUDA raises RuntimeError
        return str(error)
