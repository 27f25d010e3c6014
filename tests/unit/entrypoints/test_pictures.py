"""Pictures that programs draw for the run's report: what they show, and that they never fail a training."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.programs import Module


@pytest.fixture
def pictures(module: Module) -> ModuleType:
    needs("numpy")
    return module("_pictures")


def words(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_classifier_has_confusion_classes_and_calibration(pictures: ModuleType, tmp_path: Path) -> None:
    import numpy

    truth = numpy.array([0, 0, 1, 1])
    likely = numpy.array([[0.9, 0.1], [0.2, 0.8], [0.1, 0.9], [0.4, 0.6]])
    pictures.of_classes(Namespace(output_data_dir=str(tmp_path)), "test", ["oak", "<elm>\x00"], truth, likely)
    told = {path.stem: json.loads(path.read_text()) for path in tmp_path.rglob("*.json")}
    assert told["classes"]["rows"] == [
        ["oak", "1.000", "0.500", "0.667", "2", "1"],
        ["<elm>\x00", "0.667", "1.000", "0.800", "2", "3"],
    ]
    shown = words((tmp_path / "pictures" / told["confusion"]["file"]).read_text())
    assert [word for word in shown if word.isdecimal()] == ["1", "1", "2"] and "<elm>�" in shown
    assert told["calibration"]["note"] == "expected calibration error 0.350"
    assert pictures.mistakes(truth, likely) == [1]


def test_of_many_classes_those_with_most_mistakes_are_shown(pictures: ModuleType) -> None:
    import numpy

    pairs = numpy.eye(30, dtype=int) * 7
    pairs[29, 28] = 5
    shown = words(pictures.confusion([f"class {at}" for at in range(30)], pairs))
    assert {"class 28", "class 29", "10 classes with fewer mistakes are not shown"} <= {*shown}


def test_boxes_and_masks_are_drawn_in_a_sheet(pictures: ModuleType, tmp_path: Path) -> None:
    needs("PIL")
    import numpy
    from PIL import Image

    image = pictures.image_of(numpy.zeros((1, 8, 8), numpy.float32))
    boxed = pictures.with_boxes(image, [(0, 0.9, (0.5, 0.5, 2.0, -1.0)), (1, -1.0, (0, 0, 0.2, 0.2))])
    masked = pictures.with_mask(image, numpy.eye(8))
    pictures.sheet(Namespace(output_data_dir=str(tmp_path)), "samples", "Samples", [(boxed, "日本 1.0"), (masked, "")])
    with Image.open(tmp_path / "pictures/samples.png") as made:
        assert made.size == (2 * (pictures.SIDE + 6), pictures.SIDE + 18)
        assert len(made.convert("RGB").getcolors(1 << 16)) > 3


def test_what_goes_wrong_is_a_note(pictures: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Any:
        raise MemoryError("none left")

    pictures.guarded(fails)
    assert "note: pictures for the report are missing: MemoryError: none left" in capsys.readouterr().err
