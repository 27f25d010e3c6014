"""Image models of torchvision and timm, where they are installed; of the former also detection and segmentation."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
import torch.nn.functional as F

from hostile.table import ABSENT, BATCH, Spec, generator, images, put, train

TORCHVISION = """
    alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3
    mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18
    resnet50 resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vgg11_bn vit_b_32
    wide_resnet50_2
    """
DETECTION = """
    fasterrcnn_mobilenet_v3_large_320_fpn retinanet_resnet50_fpn fcos_resnet50_fpn
    ssdlite320_mobilenet_v3_large maskrcnn_resnet50_fpn keypointrcnn_resnet50_fpn
    """
SEGMENTATION = "lraspp_mobilenet_v3_large deeplabv3_mobilenet_v3_large fcn_resnet50"
# Those that take any size of image, and those whose size can be chosen.
TIMM = """
    convmixer_768_32 convnext_atto edgenext_xx_small fastvit_t8 ghostnet_050 hrnet_w18_small
    lcnet_050 mobilevitv2_050 nf_regnet_b0 poolformer_s12 pvt_v2_b0 regnetx_002 repvgg_a0 res2net50_14w_8s
    resnest14d rexnet_100 tinynet_e xception41
    """
TIMM_SIZED = """
    beit_base_patch16_224 cait_xxs24_224 deit_tiny_patch16_224 eva02_tiny_patch14_224 mixer_s32_224
    resmlp_12_224 swin_tiny_patch4_window7_224 vit_tiny_patch16_224 xcit_nano_12_p16_224
    """
SIZES = {"inception_v3": 80, "vit_b_32": 224, "convmixer_768_32": 28, "eva02_tiny_patch14_224": 56}


def of_torchvision(name: str, kit: Any) -> None:
    import torchvision

    options = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    module = torchvision.models.get_model(name, weights=None, num_classes=5, **options)
    train(kit, Spec(module, images(size=SIZES.get(name, 64)), evaluate=None, rate=0.01, steps=2))


def of_timm(name: str, kit: Any, **options: Any) -> None:
    import timm

    module = timm.create_model(name, pretrained=False, num_classes=5, **options)
    train(kit, Spec(module, images(size=SIZES.get(name, 64)), evaluate=None, rate=0.01, steps=2))


def of_timm_with_a_size(name: str, kit: Any) -> None:
    of_timm(name, kit, img_size=SIZES.get(name, 64))


class Pictures(list):  # type: ignore[type-arg]
    """Images of several sizes, or what is to be found in each: a list that microbatches divide."""

    def smp_slice(self, parts: int, number: int, _axis: int) -> Pictures:
        """The images of a microbatch."""
        count = len(self) // parts
        return Pictures(self[number * count : (number + 1) * count])


def objects_in_pictures(number: int) -> tuple[Pictures, Pictures]:
    """Images with one or two boxes each, with labels, masks and keypoints."""
    source = generator(number)
    pictures, targets = Pictures(), Pictures()
    for place in range(BATCH):
        height, width = 64 + 8 * (place % 2), 64
        pictures.append(torch.rand(3, height, width, generator=source))
        corners = torch.rand(1 + place % 2, 2, generator=source) * 24
        boxes = torch.cat([corners, corners + 8 + torch.rand(corners.shape, generator=source) * 24], 1)
        found = len(boxes)
        targets.append(
            {
                "boxes": boxes,
                "labels": torch.randint(1, 3, (found,), generator=source),
                "masks": torch.randint(0, 2, (found, height, width), generator=source, dtype=torch.uint8),
                "keypoints": torch.cat([boxes.view(found, 2, 2), torch.ones(found, 2, 1)], 2),
            }
        )
    return pictures, targets


def detected(model: Any, pictures: Any, targets: Any) -> dict[str, torch.Tensor]:
    losses: dict[str, torch.Tensor] = model(pictures, targets)
    model.backward(sum(losses.values()))
    return losses


def of_detection(name: str, kit: Any) -> None:
    import torchvision

    options: dict[str, Any] = {"num_keypoints": 2} if name.startswith("keypoint") else {}
    if "rcnn" in name:  # fewer regions than usual: what follows them is slow
        options |= {"rpn_pre_nms_top_n_train": 40, "rpn_post_nms_top_n_train": 20}
    if "320" not in name:
        options |= {"min_size": 64, "max_size": 96}
    module = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=3, **options)
    train(kit, Spec(module, objects_in_pictures, detected, evaluate=None, rate=0.001, steps=2))


def segmented(model: Any, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(pixels)["out"].mean((2, 3)), labels)
    model.backward(loss)
    return loss


def of_segmentation(name: str, kit: Any) -> None:
    import torchvision

    module = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=5)
    train(kit, Spec(module, images(size=64), segmented, evaluate=None, rate=0.01, steps=2))


for library, cases in (
    (
        "torchvision",
        ((TORCHVISION, of_torchvision), (DETECTION, of_detection), (SEGMENTATION, of_segmentation)),
    ),
    ("timm", ((TIMM, of_timm), (TIMM_SIZED, of_timm_with_a_size))),
):
    if importlib.util.find_spec(library) is None:
        ABSENT.append(library)
        continue
    for names, run in cases:
        for name_ in names.split():
            put(f"architectures/{library}/{name_}", functools.partial(run, name_))
