"""semantic_segmentation.py: what is wrong with masks is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.programs import Train

needs("numpy", "torch", "PIL")
pytestmark = pytest.mark.torch
numpy: Any = Lazy("numpy")

PROGRAM = "semantic_segmentation.py"
CHANNELS = ("--train", "train", "--train_annotation", "train_annotation")

SMALL = (*CHANNELS, "--width", "4", "--epochs", "2", "--device", "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "train_annotation" / "0003.png").unlink(), r"0003\.png is missing: the mask of "),
        (lambda root: write(root / "train_annotation" / "0003.png", (32, 32, 3)), "is no mask: it has the mode RGB"),
        (lambda root: write(root / "train_annotation" / "0003.png", (31, 32)), "is 32 x 31, and its picture 32 x 32"),
        (lambda root: write(root / "train_annotation" / "0003.png", (32, 32), 9), "has the class 9; there are 3, 0 to 2"),
        (lambda root: write(root / "train" / "0003.png", (32, 30, 3)), "is 32 x 32, and its picture 30 x 32"),
    ],
)
def test_what_is_wrong_with_masks_is_said(
    program: ModuleType, started_here: Train, shapes: Path, change: Callable[[Path], None], message: str
) -> None:
    change(shapes)
    with pytest.raises(program.Problem, match=message):
        started_here(PROGRAM, *SMALL, "--num_classes", "3")
    assert not (shapes / "model").exists()


def write(path: Path, shape: tuple[int, ...], value: int = 0) -> None:
    from PIL import Image

    Image.fromarray(numpy.full(shape, value, numpy.uint8)).save(path)
