"""Low-rank adapters on a module (LoRA), and linear layers stored in 4 bits (QLoRA) or 8 bits.

LoRA is from Hu et al., 2021; NF4 with double quantization from Dettmers et al., "QLoRA: Efficient
Finetuning of Quantized LLMs", 2023; products of 8-bit integers from Dettmers et al., "LLM.int8():
8-bit Matrix Multiplication for Transformers at Scale", 2022. The modules are for tensors without
data: quantized weights have the bytes of bitsandbytes, and no values.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from graphc.errors import OptionError, or_all, quoted
from graphc.torch.fit.options import Lora
from graphc.torch.fit.parameters import output_layer

BLOCK = 64
"""Weights that share a scale in NF4."""

SCALE_BLOCK = 256
"""Scales that share a second scale in double quantization."""

TABLE_BYTES = 4 * 16 + 4 * 256 + 4
"""Bytes per weight of the tables of NF4 and of 8-bit scales, and of the mean of the scales."""

OUTLIER = 6.0
"""The magnitude from which an input of an 8-bit layer is an outlier, as in transformers."""


def nf4_sizes(count: int) -> tuple[int, int, int, int]:
    """Return the bytes of `count` weights in NF4 with double quantization.

    They are two weights per byte, an 8-bit scale per `BLOCK` weights, a float32 scale per
    `SCALE_BLOCK` of those, and tables. Together, this approaches 0.5 + 1 / 64 + 4 / (64 * 256)
    bytes, or 4.127 bits, per weight.
    """
    scales = -(-count // BLOCK)
    return -(-count // 2), scales, 4 * -(-scales // SCALE_BLOCK), TABLE_BYTES


class Nf4Linear(nn.Linear):  # type: ignore[misc]
    """A frozen linear layer with NF4 weights, as `bitsandbytes.nn.Linear4bit`.

    Each forward and backward pass dequantizes the scales and the weight, and frees them.
    """

    def __init__(self, layer: nn.Module) -> None:
        nn.Module.__init__(self)
        weight = cast(torch.Tensor, layer.weight)
        self.in_features, self.out_features = _features(layer)
        self.weight_dtype = weight.dtype
        packed, *rest = (
            torch.empty(size, dtype=torch.uint8, device=weight.device)
            for size in nf4_sizes(weight.numel())
        )
        self.weight = nn.Parameter(packed, requires_grad=False)
        for name, each in zip(("scales", "scales_of_scales", "tables"), rest, strict=True):
            self.register_buffer(name, each)
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        shape = (self.out_features, self.in_features)
        product = _Nf4Product.apply(x, self.weight, self.scales, bias, shape, self.weight_dtype)
        return cast(torch.Tensor, product)


class _Nf4Product(torch.autograd.Function):  # type: ignore[misc]
    """A product with a weight that is dequantized in both passes instead of saved."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        packed: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        shape: tuple[int, int],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        ctx.save_for_backward(packed, scales)
        ctx.shape, ctx.dtype = shape, dtype
        weight = _dequantized(packed, scales, shape, dtype)
        return cast(torch.Tensor, functional.linear(x, weight.to(x.dtype), bias))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        packed, scales = ctx.saved_tensors
        weight = _dequantized(packed, scales, ctx.shape, ctx.dtype)
        return gradient @ weight.to(gradient.dtype), None, None, None, None, None


def _dequantized(
    packed: torch.Tensor, scales: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    """Allocate float32 scales and a weight, and return the weight."""
    whole = scales.new_empty(scales.shape, dtype=torch.float32)
    weight = packed.new_empty(shape, dtype=dtype)
    del whole
    return weight


class Int8Linear(nn.Linear):  # type: ignore[misc]
    """A frozen linear layer with 8-bit weights, as `bitsandbytes.nn.Linear8bitLt`.

    The forward pass multiplies 8-bit integers; inputs without outliers are assumed. The backward
    pass dequantizes the weight, and frees it.
    """

    def __init__(self, layer: nn.Module) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = _features(layer)
        weight = cast(torch.Tensor, layer.weight)
        shape = (self.out_features, self.in_features)
        self.weight = nn.Parameter(weight.new_empty(shape, dtype=torch.int8), requires_grad=False)
        self.register_buffer("scales", weight.new_empty(self.out_features, dtype=torch.float32))
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return cast(torch.Tensor, _Int8Product.apply(x, self.weight, self.scales, bias))


class _Int8Product(torch.autograd.Function):  # type: ignore[misc]
    """A product with the tensors of bitsandbytes' kernels for CUDA, without their values."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(rows, weight, scales)
        ctx.shape = x.shape
        quantized, row_scales = _quantized(rows.to(torch.float16))
        sums = rows.new_empty((len(rows), len(weight)), dtype=torch.int32)
        result = torch.empty_like(sums, dtype=torch.float16)
        if bias is not None and bias.dtype != result.dtype:
            result.add_(bias)
        result = result.to(x.dtype)
        del quantized, row_scales, sums
        return result.reshape(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        rows, weight, scales = ctx.saved_tensors
        gradient = gradient.reshape(-1, gradient.shape[-1])
        whole = weight.to(rows.dtype, copy=True).mul_(scales.unsqueeze(1).mul(1 / 127))
        found = torch.matmul(gradient.to(rows.dtype), whole)
        return found.view(ctx.shape), None, None, None


def _quantized(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate rows of 8-bit integers and their scales, and look for outliers."""
    scales = rows.new_empty(len(rows), dtype=torch.float32)
    quantized = torch.empty_like(rows, dtype=torch.int8)
    outliers = rows.abs() >= OUTLIER
    del outliers
    return quantized, scales


BASES = {"4bit": Nf4Linear, "8bit": Int8Linear}
"""The layers that store frozen weights."""


def quantize_base(module: nn.Module, base: str = "4bit") -> nn.Module:
    """Replace the linear layers of a module by those of `BASES`, in place; return the module.

    As in transformers, the output layer, layers with tied weights, and the layer with the last
    parameter keep their dtype. Raises `OptionError` if the module has no other linear layer.
    """
    kept = _unquantized(module)
    chosen = {
        name: each
        for name, each in module.named_modules()
        if _is_linear(each) and id(each.weight) not in kept
    }
    if not chosen:
        raise OptionError(f"--base {base} has no effect, because no hidden layer is linear")
    for name, each in chosen.items():
        module.set_submodule(name, BASES[base](each))
    return module


def _unquantized(module: nn.Module) -> set[int]:
    """Return the ids of weights that stay in their dtype."""
    output = output_layer(module)
    weights = [each.weight for each in module.modules() if isinstance(each, nn.Embedding)]
    if output is not None:
        weights += output.parameters()
    return {id(each) for each in (*weights, *list(module.parameters())[-1:])}


def _is_linear(module: nn.Module) -> bool:
    """Return True for linear layers of torch, and for transformers' with a transposed weight.

    `nn.MultiheadAttention` reads the weight of its projection without calling the layer.
    """
    name = type(module).__name__
    is_linear = isinstance(module, nn.Linear) and name != "NonDynamicallyQuantizableLinear"
    return is_linear or name == "Conv1D"


def _features(layer: nn.Module) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a linear layer."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    rows, columns = cast(torch.Tensor, layer.weight).shape
    return rows, columns


def add_lora(module: nn.Module, lora: Lora) -> nn.Module:
    """Freeze a module and add trainable adapters to it, in place; return the module.

    peft adds them if it is installed. Without it, targets must be linear layers. A target is the
    name of a module, or the end of its name after a period. Raises `OptionError` if no module has
    such a name.
    """
    named = {name: each for name, each in module.named_modules() if name}
    for target in lora.targets:
        if not any(name == target or name.endswith(f".{target}") for name in named):
            linear = {name.rpartition(".")[2] for name, each in named.items() if _is_linear(each)}
            raise OptionError(
                f"--lora: no module has the name {quoted(target)}; {or_all(target, sorted(linear))}"
            )
    try:
        import peft
    except ImportError:
        return _add_linear_lora(module, lora)
    target_modules = list(lora.targets) or "all-linear"
    try:
        with warnings.catch_warnings(action="ignore"):
            peft.get_peft_model(module, peft.LoraConfig(r=lora.rank, target_modules=target_modules))
    except ValueError as error:
        raise OptionError(f"--lora: peft: {str(error).splitlines()[0]}") from None
    return module


def _add_linear_lora(module: nn.Module, lora: Lora) -> nn.Module:
    """Add adapters as peft does, to linear layers only."""
    output = output_layer(module)
    for name, each in dict(module.named_modules()).items():
        targets = lora.targets or (name,)
        if not any(name == target or name.endswith(f".{target}") for target in targets):
            continue
        if _is_linear(each) and (lora.targets or each is not output):
            module.set_submodule(name, _Adapted(each, lora.rank))
        elif lora.targets:
            raise OptionError(
                f"--lora: {name} is a {type(each).__name__}, and graphc alone adapts linear "
                "layers; choose other targets, or run pip install peft"
            )
    if not any(isinstance(each, _Adapted) for each in module.modules()):
        raise OptionError("--lora has no effect, because no layer is linear")
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(".lora_" in f".{name}")
    return module


class _Adapted(nn.Module):  # type: ignore[misc]
    """A linear layer with an adapter, whose parameters are float32 beside a 16-bit base."""

    def __init__(self, base: nn.Module, rank: int) -> None:
        super().__init__()
        device = cast(torch.Tensor, base.weight).device
        kind = {"bias": False, "device": device, "dtype": torch.float32}
        columns, rows = _features(base)
        self.base_layer = base
        self.lora_A = nn.Linear(columns, rank, **kind)
        self.lora_B = nn.Linear(rank, rows, **kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.base_layer(x)
        added = self.lora_B(self.lora_A(x.to(self.lora_A.weight.dtype)))
        return cast(torch.Tensor, (result + added * 2.0).to(result.dtype))
