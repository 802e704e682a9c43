"""Image models of timm and torchvision, with the losses of their usual training."""

from __future__ import annotations

from typing import Any

import torch
from pytorch.real.cases import Case, Entry, images
from torch.nn import functional as F  # noqa: N812 - torch's own habit

CLASSES_OF_IMAGES = 10


def classification(module: torch.nn.Module, x: torch.Tensor) -> Case:
    """Return the case of a module that returns logits (batch, classes)."""
    labels = torch.randint(CLASSES_OF_IMAGES, x.shape[:1])
    return Case(module.train(), (x, labels), loss_fn=F.cross_entropy)


def timm(name: str, size: int = 64, **sizes: Any) -> Entry:
    def make() -> Case:
        from timm import create_model

        return classification(
            create_model(name, num_classes=CLASSES_OF_IMAGES, **sizes), images(4, size)
        )

    return f"timm {name}", make


def torchvision(name: str, *given: Any, **sizes: Any) -> Entry:
    """Return a class of torchvision.models."""

    def make() -> Case:
        from torchvision import models

        module = getattr(models, name)(*given, num_classes=CLASSES_OF_IMAGES, **sizes)
        return classification(module, images(4, 64))

    return f"torchvision {name}", make


def resnet() -> Case:
    from torchvision.models.resnet import Bottleneck, ResNet

    module = ResNet(Bottleneck, [1, 1, 1, 1], num_classes=CLASSES_OF_IMAGES, width_per_group=16)
    return classification(module, images(4, 64))


def swin() -> Case:
    from torchvision.models import SwinTransformer

    module = SwinTransformer(
        [4, 4], 24, [1, 1, 1, 1], [1, 2, 2, 4], [4, 4], num_classes=CLASSES_OF_IMAGES
    )
    return classification(module, images(4, 64))


def vit() -> Case:
    from torchvision.models import VisionTransformer

    module = VisionTransformer(64, 8, 2, 4, 128, 256, num_classes=CLASSES_OF_IMAGES)
    return classification(module, images(4, 64))


def maxvit() -> Case:
    from torchvision.models import MaxVit

    module = MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 16, 0.2, num_classes=CLASSES_OF_IMAGES)
    return classification(module, images(4, 64))


def vgg() -> Case:
    from torch import nn
    from torchvision.models import VGG
    from torchvision.models.vgg import make_layers

    module = VGG(make_layers([16, "M", 32, "M", 64, "M"], batch_norm=True), num_classes=10)
    module.classifier = nn.Sequential(
        nn.Linear(64 * 7 * 7, 128), nn.ReLU(True), nn.Dropout(), nn.Linear(128, 10)
    )
    return classification(module, images(4, 64))


def video() -> Case:
    from torchvision.models.video.resnet import BasicBlock, BasicStem, Conv3DSimple, VideoResNet

    module = VideoResNet(BasicBlock, [Conv3DSimple] * 4, [1, 1, 1, 1], BasicStem, num_classes=10)
    return classification(module, torch.randn(2, 3, 4, 32, 32))


def segmentation_loss(output: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output["out"], labels)


def segmentation(name: str) -> Entry:
    def make() -> Case:
        from torchvision.models import segmentation

        made = getattr(segmentation, name)
        module = made(weights=None, weights_backbone=None, num_classes=5).train()
        return Case(
            module, (images(2, 64), torch.randint(5, (2, 64, 64))), loss_fn=segmentation_loss
        )

    return f"torchvision {name}", make


def sum_of_losses(output: dict[str, torch.Tensor], _: None) -> torch.Tensor:
    return sum(output.values(), torch.zeros(()))


def fasterrcnn() -> Case:
    from torchvision.models import detection

    module = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=5
    ).train()
    target = {"boxes": torch.tensor([[4.0, 4.0, 40.0, 40.0]]), "labels": torch.tensor([1])}
    return Case(module, ([torch.rand(3, 64, 64)], [target], None), loss_fn=sum_of_losses)


CLASSES = dict(
    [
        timm("resnet18", layers=[1, 1, 1, 1], channels=(16, 32, 48, 64)),
        timm("efficientnet_b0"),
        timm("mobilenetv3_small_050"),
        timm("convnext_atto", depths=[1, 1, 1, 1], dims=[16, 32, 48, 64]),
        timm("regnetx_002"),
        timm("maxvit_rmlp_pico_rw_256", img_size=64, depths=(1, 1), embed_dim=(32, 64)),
        timm("vit_tiny_patch16_224", img_size=64, patch_size=4, depth=2),
        timm("swin_tiny_patch4_window7_224", 56, img_size=56, embed_dim=24, depths=(1, 1, 2, 1)),
        timm("eva02_tiny_patch14_224", 112, img_size=112, depth=2),
        ("torchvision ResNet", resnet),
        ("torchvision SwinTransformer", swin),
        ("torchvision VisionTransformer", vit),
        ("torchvision MaxVit", maxvit),
        ("torchvision VGG", vgg),
        ("torchvision VideoResNet", video),
        torchvision("DenseNet", 8, (2, 2, 2, 2), 16),
        torchvision("mobilenet_v2", width_mult=0.5),
        torchvision("shufflenet_v2_x0_5"),
        torchvision("squeezenet1_1"),
        segmentation("lraspp_mobilenet_v3_large"),
        segmentation("deeplabv3_mobilenet_v3_large"),
        ("torchvision FasterRCNN", fasterrcnn),
    ]
)
