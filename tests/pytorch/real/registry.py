"""The registry of real classes: each name maps to a function that returns a new case."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pytorch.real import adapters, convolutional, diffusion, language, perception
from pytorch.real.cases import Case

CLASSES: dict[str, Callable[[], Case]] = {
    **language.CLASSES,
    **perception.CLASSES,
    **convolutional.CLASSES,
    **diffusion.CLASSES,
    **adapters.CLASSES,
}


class Refusal(NamedTuple):
    """The place in the error (a regular expression), and the reason in words."""

    place: str
    reason: str


MATCHING = "the loss matches predictions to labels with SciPy, which needs their values"

REFUSED = {
    "torchvision FasterRCNN": Refusal("batched_nms", "the number of boxes depends on data"),
    "HubertForCTC": Refusal("modeling_hubert", "NumPy draws masks in the call"),
    "Wav2Vec2ForCTC": Refusal("loss_ctc", "the loss switches cuDNN off, which is untraceable"),
    "DebertaForSequenceClassification": Refusal("modeling_deberta", "labels select rows"),
    "DebertaV2ForSequenceClassification": Refusal("modeling_deberta_v2", "labels select rows"),
    "DetrForObjectDetection": Refusal("get_annotations", MATCHING),
    "YolosForObjectDetection": Refusal("get_annotations", MATCHING),
    "ConditionalDetrForObjectDetection": Refusal("loss_deformable_detr", MATCHING),
    "DeformableDetrForObjectDetection": Refusal("loss_deformable_detr", MATCHING),
    "Mask2FormerForUniversalSegmentation": Refusal("modeling_mask2former", MATCHING),
    "MaskFormerForInstanceSegmentation": Refusal("modeling_maskformer", MATCHING),
    "LlavaForConditionalGeneration": Refusal("NoneType", "torch.compile fails on a check"),
}
"""Classes that cannot be planned; a test fails if one can."""
