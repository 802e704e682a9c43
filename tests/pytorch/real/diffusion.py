"""Denoisers and autoencoders of diffusers; they learn to predict noise or their own input."""

from __future__ import annotations

from typing import Any

import torch
from pytorch.real.cases import Case, Entry
from torch.nn import functional as F  # noqa: N812 - torch's own habit

BLOCKS = {"block_out_channels": (32, 64), "norm_num_groups": 8, "layers_per_block": 1}
TRANSFORMER = {"num_attention_heads": 4, "attention_head_dim": 16}
LATENTS = {"sample_size": 16, "in_channels": 4, "out_channels": 4}
PROMPT = {"joint_attention_dim": 32, "pooled_projection_dim": 32}


def prediction_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of a prediction."""
    return F.mse_loss(output.sample, target)


def predicting(name: str, *shape: int, given: Any = dict, **sizes: Any) -> Entry:
    """Return a model of an input (batch, *shape); `given` returns the other arguments."""

    def make() -> Case:
        import diffusers

        x = torch.randn(2, *shape)
        module = getattr(diffusers, name)(**sizes).train()
        return Case(module, (x, torch.randn_like(x)), given(), prediction_loss)

    return name, make


def times() -> dict[str, Any]:
    return {"timestep": torch.tensor([3, 15])}


def times_and_classes() -> dict[str, Any]:
    return {**times(), "class_labels": torch.tensor([1, 2])}


def times_and_text() -> dict[str, Any]:
    return {**times(), "encoder_hidden_states": torch.randn(2, 8, 32)}


def times_and_prompt() -> dict[str, Any]:
    return {**times_and_text(), "pooled_projections": torch.randn(2, 32)}


def times_prompt_and_positions() -> dict[str, Any]:
    return {**times_and_prompt(), "img_ids": torch.zeros(64, 3), "txt_ids": torch.zeros(8, 3)}


CLASSES = dict(
    [
        predicting(
            "UNet2DModel", 3, 16, 16, given=times, sample_size=16,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"), **BLOCKS,
        ),
        predicting(
            "UNet2DConditionModel", 4, 16, 16, given=times_and_text, sample_size=16,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=32, attention_head_dim=8, **BLOCKS,
        ),
        predicting(
            "AutoencoderKL", 3, 64, 64, down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2, **BLOCKS,
        ),
        predicting("AutoencoderTiny", 3, 64, 64),
        predicting(
            "VQModel", 3, 64, 64, down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2, **BLOCKS,
        ),
        predicting(
            "DiTTransformer2DModel", 4, 16, 16, given=times_and_classes, num_layers=2,
            num_embeds_ada_norm=20, **TRANSFORMER, **LATENTS,
        ),
        predicting(
            "SD3Transformer2DModel", 4, 16, 16, given=times_and_prompt, num_layers=2,
            caption_projection_dim=64, patch_size=2, pos_embed_max_size=16,
            **TRANSFORMER, **LATENTS, **PROMPT,
        ),
        predicting(
            "FluxTransformer2DModel", 64, 16, given=times_prompt_and_positions, in_channels=16,
            num_layers=1, num_single_layers=1, axes_dims_rope=(4, 4, 8), **TRANSFORMER, **PROMPT,
        ),
    ]
)  # fmt: skip
