"""Training steps of torch whose peaks are measured on a GPU and predicted by `graphc fit`.

A case is a model by configuration or name, its sizes, and options of `graphc fit`. Values of
tensors have no effect on bytes, so weights and examples are arbitrary numbers.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from graphc.devices.device import Device, find_device
from graphc.runtime.memory import memory_of
from graphc.torch.budget.trace.without_data import Call
from graphc.torch.fit.answer import request_of, source_of
from graphc.torch.fit.configurations import from_config
from graphc.torch.fit.models import Source
from graphc.torch.fit.options import FitOptions, Lora
from graphc.torch.fit.step import Request, call_of

GPT2 = {"model_type": "gpt2"}
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
}  # fmt: skip
QWEN = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip
T5 = {"model_type": "t5", "decoder_start_token_id": 0, "pad_token_id": 0}
BERT, VIT = {"model_type": "bert"}, {"model_type": "vit"}
WHISPER = {"model_type": "whisper"}
HALF, BF16 = {"autocast": "bfloat16"}, {"dtype": "bfloat16"}


@dataclass(frozen=True)
class FitCase:
    """A training step: model, task of a configuration, sizes, and options of `graphc fit`."""

    model: dict[str, Any] | str
    sizes: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    task: str = "causal-lm"

    def request(self, device: Device) -> Request:
        """Return the request of `graphc fit`."""
        memory = memory_of(device)
        assert memory is not None
        chosen = FitOptions(**{"optimizer": "adamw", **self.options})
        return request_of(self._source(), chosen, device, memory, **self.sizes)

    def _source(self) -> Source:
        if isinstance(self.model, str):
            return source_of(self.model, self.task)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(self.model))
            return from_config(path, self.task)


def _text(model: dict[str, Any], batch: int, seq: int, how: Any, task: str = "causal-lm",
          **options: Any) -> FitCase:  # fmt: skip
    return FitCase(model, {"batch": batch, "seq": seq, **how}, options, task)


def _images(name: str, batch: int, how: Any, **options: Any) -> FitCase:
    return FitCase(name, {"batch": batch, **how}, options)


CASES: dict[str, FitCase] = {
    "gpt2 sgd": _text(GPT2, 4, 512, {}, optimizer="sgd"),
    "gpt2 autocast": _text(GPT2, 8, 1024, HALF),
    "gpt2 eager attention": _text(GPT2, 4, 1024, HALF, attention="eager"),
    "gpt2 blocks": _text(GPT2, 16, 1024, HALF, checkpoint="blocks"),
    "gpt2 accumulate": _text(GPT2, 4, 1024, {}, accumulate=4),
    "llama": _text(LLAMA, 4, 1024, BF16),
    "llama autocast": _text(LLAMA, 2, 1024, HALF, optimizer="adam"),
    "llama blocks": _text(LLAMA, 16, 2048, BF16, checkpoint="blocks"),
    "llama lora": _text(LLAMA, 4, 2048, BF16, lora=Lora(16, ("q_proj", "v_proj"))),
    "llama chunked loss": _text(LLAMA, 8, 1024, BF16, chunked_loss=True),
    "qwen2 0.5B": _text(QWEN, 2, 1024, BF16),
    "qwen2 0.5B sgd": _text(QWEN, 1, 2048, HALF, optimizer="momentum"),
    "bert": _text(BERT, 16, 512, {}, "masked-lm"),
    "bert autocast": _text(BERT, 32, 512, HALF, "sequence-classification"),
    "t5": _text(T5, 8, 512, BF16, "seq2seq-lm"),
    "t5 autocast": _text(T5, 8, 512, HALF, "seq2seq-lm", optimizer="sgd"),
    "vit": FitCase(VIT, {"batch": 64}, {"optimizer": "sgd"}, "image-classification"),
    "vit autocast": FitCase(VIT, {"batch": 64, **HALF}, {}, "image-classification"),
    "whisper": FitCase(WHISPER, {"batch": 8, "seq": 448, **HALF}, {}, "speech-seq2seq"),
    "resnet50": _images("torchvision:resnet50", 64, {}, optimizer="momentum"),
    "resnet50 autocast": _images("torchvision:resnet50", 128, HALF, optimizer="momentum"),
    "resnet50 bf16": _images("torchvision:resnet50", 64, BF16),
    "densenet121": _images("torchvision:densenet121", 32, HALF, optimizer="sgd"),
    "mobilenet_v3_large": _images("torchvision:mobilenet_v3_large", 64, HALF),
    "convnext_tiny": _images("torchvision:convnext_tiny", 64, HALF),
    "efficientnet_b0": _images("torchvision:efficientnet_b0", 64, {}, optimizer="momentum"),
    "swin_t": _images("torchvision:swin_t", 32, HALF),
    "vgg16": _images("torchvision:vgg16", 32, {}, optimizer="sgd"),
    "timm deit": _images("timm:deit_small_patch16_224", 128, HALF),
    "timm regnet": _images("timm:regnety_032", 32, {}, optimizer="adam"),
    "timm mixer": _images("timm:mixer_b16_224", 64, {}, optimizer="adam"),
}  # fmt: skip

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=1e-4),
    "momentum": partial(torch.optim.SGD, lr=1e-4, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-4),
    "adamw": partial(torch.optim.AdamW, lr=1e-4),
}


def on_gpu(case: FitCase) -> tuple[Call, Request]:
    """Return the call of a case with its tensors on the GPU, and its request."""
    request = case.request(find_device("h200"))
    module, loss_fn, args, kwargs = call_of(request)
    torch.manual_seed(0)
    module = module.to_empty(device="cuda")
    for each in (*module.parameters(), *module.buffers()):
        with torch.no_grad():
            each.normal_(0, 0.02) if each.is_floating_point() else each.zero_()
    if hasattr(module, "tie_weights"):
        module.tie_weights()

    def filled(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.is_floating_point():
            return torch.randn(x.shape, dtype=x.dtype, device="cuda")
        return torch.randint(2, x.shape, dtype=x.dtype, device="cuda")

    args, kwargs = tree_map(filled, (args, kwargs))
    return (module, loss_fn, args, kwargs), request


def optimizer_of(request: Request, module: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a request, with torch's defaults for its implementation."""
    trained = [each for each in module.parameters() if each.requires_grad]
    return OPTIMIZERS[request.options.optimizer](trained)


def loss_of(call: Call, request: Request) -> torch.Tensor:
    """Return the loss of a forward pass under the autocast of a request."""
    module, loss_fn, args, kwargs = call
    half = request.autocast
    with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
        found = module(*(args[:-1] if loss_fn else args), **kwargs)
        found = loss_fn(found, args[-1]) if loss_fn else found
    return found if isinstance(found, torch.Tensor) else found.loss
