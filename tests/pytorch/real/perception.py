"""Vision, speech and multimodal models of transformers, with the labels of their training."""

from __future__ import annotations

from typing import Any

import torch
from pytorch.real.cases import Case, Entry, images, token_ids
from pytorch.real.language import BATCH, BERT, LLAMA, VOCABULARY, build

VIT = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "image_size": 64,
    "num_attention_heads": 4, "patch_size": 8,
}  # fmt: skip
SWIN = {
    "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4], "window_size": 4,
    "image_size": 128,
}  # fmt: skip
RESNET = {"embedding_size": 16, "hidden_sizes": [32, 32, 64, 64], "depths": [1, 1, 1, 1]}
DETR = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 8,
    "num_labels": 5,
}  # fmt: skip
MASKS = {
    "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 64, "encoder_layers": 2,
    "decoder_layers": 2, "num_attention_heads": 4, "dim_feedforward": 64, "num_queries": 8,
    "num_labels": 5, "feature_size": 32, "train_num_points": 64,
}  # fmt: skip
SPEECH = {
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
    "intermediate_size": 256, "num_feat_extract_layers": 3, "conv_dim": (32, 32, 32),
    "conv_kernel": (10, 3, 3), "conv_stride": (5, 4, 4), "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "layerdrop": 0.0, "mask_time_length": 2,
    "ctc_loss_reduction": "mean",
}  # fmt: skip
WHISPER = {
    "vocab_size": VOCABULARY, "num_mel_bins": 16, "d_model": 128, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "max_source_positions": 100,
    "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
OBJECTS, SIDE = 2, 96
"""Number of objects on an image to be detected, and pixels of its side."""


def backbone(config: str, **sizes: Any) -> Any:
    """Return the configuration of a network whose last three stages are read."""
    import transformers

    stages = ["stage2", "stage3", "stage4"]
    return getattr(transformers, config)(**sizes, out_features=stages)


def image_classes(name: str, config: str, **sizes: Any) -> Entry:
    def make() -> Case:
        pixels = images(BATCH, sizes.get("image_size", 64))
        given = {"pixel_values": pixels, "labels": torch.randint(2, (BATCH,))}
        return Case(build(name, config, sizes), kwargs=given)

    return name, make


def boxes(name: str, config: str, **sizes: Any) -> Entry:
    """Return a detector whose labels are boxes, matched to its queries."""

    def make() -> Case:
        labels = [
            {
                "class_labels": torch.randint(5, (OBJECTS,)),
                "boxes": torch.rand(OBJECTS, 4) / 2 + 0.1,
            }
            for _ in range(2)
        ]
        given = {"pixel_values": images(2, SIDE), "labels": labels}
        if config == "Yolos":
            return Case(build(name, config, sizes), kwargs=given)
        read = backbone("ResNetConfig", **RESNET)
        return Case(build(name, config, {**sizes, "backbone_config": read}), kwargs=given)

    return name, make


def masks(name: str, config: str, **sizes: Any) -> Entry:
    """Return a segmenter whose labels are masks of objects, matched to its queries."""

    def make() -> Case:
        import transformers

        swin = {**SWIN, "image_size": SIDE}
        read = transformers.SwinConfig(
            **swin, out_features=["stage1", "stage2", "stage3", "stage4"]
        )
        more = {"decoder_config": transformers.DetrConfig(**DETR)} if config == "MaskFormer" else {}
        given = {
            "pixel_values": images(2, SIDE),
            "mask_labels": [(torch.rand(OBJECTS, SIDE, SIDE) > 0.5).float() for _ in range(2)],
            "class_labels": [torch.randint(5, (OBJECTS,)) for _ in range(2)],
        }
        settings = {**sizes, **more, "backbone_config": read}
        return Case(build(name, config, settings), kwargs=given)

    return name, make


def pixels_and_labels(name: str, config: str, *labels: int, **sizes: Any) -> Entry:
    """Return a model of images of 64 pixels, whose labels have the given shape or are none."""

    def make() -> Case:
        given = {"pixel_values": images(BATCH, 64)}
        if labels:
            given["labels"] = torch.randint(2, labels)
        return Case(build(name, config, sizes), kwargs=given)

    return name, make


def ctc(name: str, config: str, **sizes: Any) -> Entry:
    """Return a model that transcribes speech, with the feature encoder frozen as usual."""

    def make() -> Case:
        module = build(name, config, {**SPEECH, **sizes})
        module.freeze_feature_encoder()
        given = {"input_values": torch.randn(2, 8000), "labels": torch.randint(1, 32, (2, 6))}
        return Case(module, kwargs=given)

    return name, make


def whisper() -> Case:
    given = {"input_features": torch.randn(2, 16, 200), "labels": token_ids(VOCABULARY, 2, 32)}
    return Case(build("WhisperForConditionalGeneration", "Whisper", WHISPER), kwargs=given)


def spectrogram() -> Case:
    sizes = {**VIT, "max_length": 128, "num_mel_bins": 64}
    del sizes["image_size"]
    given = {"input_values": torch.randn(2, 128, 64), "labels": torch.randint(2, (2,))}
    return Case(build("ASTForAudioClassification", "AST", sizes), kwargs=given)


def clip() -> Case:
    text = {**BERT, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {"text_config": text, "vision_config": VIT, "projection_dim": 32}
    x = token_ids(VOCABULARY, BATCH, 32)
    given = {"input_ids": x, "pixel_values": images(BATCH, 64), "return_loss": True}
    return Case(build("CLIPModel", "CLIP", sizes), kwargs=given)


def llava() -> Case:
    """Return a model in whose text 64 tokens stand for an image."""
    import transformers

    image_token, patches = 5, 64
    sizes = {
        "vision_config": transformers.CLIPVisionConfig(**VIT),
        "text_config": transformers.LlamaConfig(**LLAMA),
        "image_token_id": image_token,
    }
    x = token_ids(VOCABULARY, 2, patches + 16)
    x[:, :patches] = image_token
    given = {"input_ids": x, "pixel_values": images(2, 64), "labels": x.clone()}
    return Case(build("LlavaForConditionalGeneration", "Llava", sizes), kwargs=given)


CLASSES = dict(
    [
        image_classes("ViTForImageClassification", "ViT", **VIT),
        image_classes("BeitForImageClassification", "Beit", **VIT),
        image_classes("Dinov2ForImageClassification", "Dinov2", **VIT),
        image_classes("SwinForImageClassification", "Swin", **SWIN),
        image_classes("ResNetForImageClassification", "ResNet", **RESNET),
        image_classes(
            "ConvNextForImageClassification", "ConvNext",
            hidden_sizes=[16, 32, 64, 64], depths=[1, 1, 2, 1],
        ),
        pixels_and_labels(
            "ViTMAEForPreTraining", "ViTMAE", decoder_hidden_size=64, decoder_num_hidden_layers=1,
            decoder_num_attention_heads=4, decoder_intermediate_size=128, **VIT,
        ),
        pixels_and_labels(
            "SegformerForSemanticSegmentation", "Segformer", BATCH, 64, 64, depths=[1, 1, 1, 1],
            hidden_sizes=[16, 32, 32, 64], decoder_hidden_size=32,
        ),
        boxes("DetrForObjectDetection", "Detr", **DETR),
        boxes("ConditionalDetrForObjectDetection", "ConditionalDetr", **DETR),
        boxes("DeformableDetrForObjectDetection", "DeformableDetr", num_feature_levels=3, **DETR),
        boxes(
            "YolosForObjectDetection", "Yolos",
            **{**VIT, "image_size": [SIDE, SIDE], "num_detection_tokens": 8, "num_labels": 5},
        ),
        masks("Mask2FormerForUniversalSegmentation", "Mask2Former", **MASKS),
        masks(
            "MaskFormerForInstanceSegmentation", "MaskFormer",
            fpn_feature_size=32, mask_feature_size=32, num_labels=5,
        ),
        ctc("Wav2Vec2ForCTC", "Wav2Vec2", apply_spec_augment=False),
        ctc("HubertForCTC", "Hubert"),
        ("WhisperForConditionalGeneration", whisper),
        ("ASTForAudioClassification", spectrogram),
        ("CLIPModel", clip),
        ("LlavaForConditionalGeneration", llava),
    ]
)  # fmt: skip
