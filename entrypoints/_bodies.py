"""Networks that see whole pictures: their own, fed with normalised pixels, and those of Transformers, loaded and written.

What `semantic_segmentation.py` and `object_detection.py` share.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _networks
import torch
from _common import Problem, whole_file
from torch import Tensor, nn


class Fed(nn.Module):
    """A body and the colours that it expects.

    mean, std: of the raw pixel values, one a channel.   borrowed: whether the body is a library's: it sees three colours,
    and what it has learnt of the statistics of batches stays as it is.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], body: nn.Module, borrowed: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)
        self.body, self.borrowed = body, borrowed

    def normal(self, images: Tensor) -> Tensor:
        """Raw pixel values (N, C, H, W), of any number type, as the body takes them."""
        if self.borrowed and images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        return (images.float() - self.mean) / self.std

    def train(self, mode: bool = True) -> Fed:
        """As of any module, but for the statistics of a borrowed body."""
        super().train(mode)
        for module in self.modules() if self.borrowed else ():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self


def borrowed(root: Path, kind: str, what: str, heads: Sequence[str], **more: Any) -> tuple[Any, list[float], list[float]]:
    """A network of Transformers, with the mean and the deviation of raw pixels that it expects. Raises Problem.

    kind: which of Transformers' classes loads it. what: for messages. heads: parts of the names of weights that may be new.
    """
    _networks.need("transformers")
    import transformers
    from transformers.utils import logging

    logging.set_verbosity_error()  # a new head is what is wanted
    logging.disable_progress_bar()
    try:
        body, facts = getattr(transformers, kind).from_pretrained(
            str(root), local_files_only=True, ignore_mismatched_sizes=True, output_loading_info=True,
            trust_remote_code=False, dtype=torch.float32, **more,
        )  # fmt: skip
        said = json.loads(path.read_text()) if (path := root / "preprocessor_config.json").exists() else {}
        mean, std = (
            [255 * float(value) for value in said.get(f"image_{name}") or usual]
            for name, usual in zip(("mean", "std"), _networks.IMAGENET, strict=True)
        )
    except Exception as error:  # of any library, about files that are not ours
        raise Problem(f"{root} holds no network for {what} that Transformers loads: {line(error)}") from error
    if said.get("do_normalize") is False:
        mean, std = [0.0] * 3, [255.0] * 3
    fresh = {*facts["missing_keys"], *(key[0] if isinstance(key, tuple) else key for key in facts["mismatched_keys"])}
    if odd := sorted(name for name in fresh if not any(head in name for head in heads)):
        raise Problem(f"{root} lacks weights of its {type(body).__name__}: {odd[0]}")
    return body, mean, std


def line(error: Exception) -> str:
    """The first line of what a library says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def save(body: Any, target: Path) -> None:
    """Writes a network as Transformers reads it; each file appears whole, the config last."""
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=target) as temporary:
        body.save_pretrained(temporary)
        for source in sorted(Path(temporary).iterdir(), key=lambda path: path.name == "config.json"):
            with whole_file(target / source.name) as path:
                shutil.copyfile(source, path)


def is_of(root: Path, program: str) -> bool:
    """Whether a folder holds a model that this program has written."""
    try:
        return bool(json.loads((root / "model.json").read_text(encoding="utf-8"))["program"] == program)
    except (OSError, ValueError, KeyError, TypeError):
        return False
