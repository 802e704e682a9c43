"""Requests that a GPU's cuDNN declines, tried on a step of a few layers.

Engines are looked up but not run. Other networks may request other sizes; the `report` of their
program lists the declined requests.
"""

from __future__ import annotations

from graphc.compiler import plan
from graphc.errors import GraphcError
from graphc.ir.builder import input
from graphc.ir.graph import Value
from graphc.ops.activation import relu
from graphc.ops.attention import multi_head_attention
from graphc.ops.conv_layers import conv2d
from graphc.ops.elementwise import add
from graphc.ops.matmul import linear
from graphc.ops.reduce import mean
from graphc.optim import SGD
from graphc.plans.memory_plan import PRECISIONS, Precision
from graphc.runtime.gpu.bind import bind
from graphc.runtime.gpu.cuda import CudaDevice
from graphc.runtime.gpu.cudnn import Cudnn, load_cudnn, shown
from graphc.runtime.gpu.device import Gpu, find_gpu, profile_of
from graphc.runtime.gpu.places import ARENA_ALIGNMENT


def layers() -> Value:
    """Return typical convolutions of residual and mobile networks, and causal attention.

    The heads of the attention have 64 elements.
    """
    images, tokens = input("images", (8, 3, 64, 64)), input("tokens", (2, 128, 64))
    h = relu(conv2d(images, 64, 7, stride=2, padding=3, name="stem"))
    h = relu(conv2d(h, 64, 1, name="narrow"))
    h = relu(conv2d(h, 64, 3, padding=1, name="window"))
    h = relu(conv2d(h, 64, 3, padding=1, groups=64, name="depthwise"))
    h = relu(conv2d(h, 128, 3, stride=2, padding=1, name="strided"))
    heads = multi_head_attention(linear(tokens, 384, name="qkv"), 2, True, form="fused")
    return add(mean(h), mean(heads))


def declined(gpu: Gpu) -> dict[Precision, list[str]]:
    """Map each precision to the distinct requests of a step without an engine in cuDNN.

    Precisions without such requests are omitted. No device memory is accessed. Raises `GraphcError`
    if cuDNN is missing or finds no usable GPU.
    """
    found: dict[Precision, list[str]] = {}
    with CudaDevice(gpu).active():
        cudnn = Cudnn(load_cudnn())
        try:
            for precision in PRECISIONS:
                requests = _declined(gpu, cudnn, precision)
                if requests:
                    found[precision] = requests
        finally:
            cudnn.close()
    return found


def _declined(gpu: Gpu, cudnn: Cudnn, precision: Precision) -> list[str]:
    made = plan(layers(), optimizer=SGD(), device=profile_of(gpu), precision=precision)
    requests: dict[str, None] = {}
    bind(
        made, ARENA_ALIGNMENT, precision == "tf32", cudnn,
        declines=lambda request: requests.setdefault(shown(request)),
    )  # fmt: skip
    return list(requests)


def told(gpu: Gpu) -> dict[Precision, list[str]] | str:
    """Return the result of `declined`, or the reason why cuDNN is not available."""
    try:
        find_gpu(gpu.number)  # raises an error if the GPU is too old
        return declined(gpu)
    except (GraphcError, RuntimeError) as error:  # CUDA raises RuntimeError
        return str(error)
