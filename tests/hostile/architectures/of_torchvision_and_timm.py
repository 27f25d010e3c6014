"""Image models of torchvision and timm, where they are installed."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

from hostile.table import ABSENT, Spec, images, put, train

TORCHVISION = """
    alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3
    maxvit_t mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18
    resnet50 resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_1 swin_t swin_v2_t vgg11_bn vit_b_32
    wide_resnet50_2
    """
TIMM = """
    beit_base_patch16_224 cait_xxs24_224 coat_tiny convmixer_768_32 convnext_atto crossvit_tiny_240
    deit_tiny_patch16_224 edgenext_xx_small efficientformer_l1 eva02_tiny_patch14_224 fastvit_t8
    gcvit_xxtiny ghostnet_050 hrnet_w18_small levit_128s lcnet_050 mixer_s32_224 mobilevit_xxs
    mobilevitv2_050 nfnet_f0 nf_regnet_b0 pit_ti_224 poolformer_s12 pvt_v2_b0 regnetx_002 repvgg_a0
    res2net50_14w_8s resmlp_12_224 resnest14d rexnet_100 sequencer2d_s tinynet_e tnt_s_patch16_224
    twins_svt_small vit_tiny_patch16_224 volo_d1_224 xception41 xcit_nano_12_p16_224
    """
SIZES = {"inception_v3": 80, "maxvit_t": 224, "vit_b_32": 224}


def of_torchvision(name: str, kit: Any) -> None:
    import torchvision

    options = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    module = torchvision.models.get_model(name, weights=None, num_classes=5, **options)
    train(kit, Spec(module, images(size=SIZES.get(name, 64)), evaluate=None, rate=0.01, steps=2))


def of_timm(name: str, kit: Any) -> None:
    import timm

    module = timm.create_model(name, pretrained=False, num_classes=5)
    size = module.default_cfg.get("input_size", (3, 224, 224))[-1]
    train(kit, Spec(module, images(size=size), evaluate=None, rate=0.01, steps=2))


for library, names, run in (("torchvision", TORCHVISION, of_torchvision), ("timm", TIMM, of_timm)):
    if importlib.util.find_spec(library) is None:
        ABSENT.append(library)
        continue
    for name_ in names.split():
        put(f"architectures/{library}/{name_}", functools.partial(run, name_))
