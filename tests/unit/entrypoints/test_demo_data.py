"""The demo data: real, disjoint, and laid out as channels."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import programs
from support.programs import Module, Train

pytestmark = pytest.mark.torch  # scikit-learn and numpy come with torch's extras


def test_the_digits_are_split_once_and_for_all(module: Module) -> None:
    data = module("demo_data").digits()
    (train, train_labels), (test, test_labels) = data["train"], data["test"]
    assert (train.shape, test.shape) == ((1438, 8, 8), (359, 8, 8))
    assert train.dtype.name == "uint8" and train.max() == 240
    assert set(train_labels) == set(test_labels) == set(range(10))
    assert not {image.tobytes() for image in train} & {image.tobytes() for image in test}


def test_the_digits_are_written_as_images_of_each_class(started_here: Train, tmp_path: Path) -> None:
    output = started_here("demo_data", "digits", str(tmp_path / "data"), "--format", "png")
    assert output == f"digits: {tmp_path}/data/test, {tmp_path}/data/train\n"
    assert sorted(path.name for path in (tmp_path / "data" / "test").iterdir()) == [str(digit) for digit in range(10)]
    assert len(list((tmp_path / "data" / "train").glob("*/*.png"))) == 1438


def test_the_texts_of_the_two_channels_are_different_topics(module: Module, tmp_path: Path) -> None:
    programs.run("demo_data.py", "text", "text", cwd=tmp_path)
    text = module("demo_data").text()
    assert not set(text["train"]) & set(text["validation"])
    for channel, topics in text.items():
        files = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "text" / channel).iterdir()}
        assert files == topics
        assert sum(map(len, files.values())) > 20_000
