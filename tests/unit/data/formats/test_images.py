"""Folders of images, and images that are decoded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from support.extras import needs
from trainshed.data.formats.errors import DataError, SampleError
from trainshed.data.formats.images import ImageFolder, decode_image
from trainshed.data.formats.table import of

FORM = ImageFolder()


def folder(base: Path, *names: str) -> str:
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(name.encode())
    return str(base)


def read(form: ImageFolder, path: str, first: int = 0) -> list[tuple[str, int]]:
    return [(data.decode(), number) for data, number in map(form.sample, form.read(path, first, form.count(path)))]


def test_folders_are_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    path = folder(
        tmp_path, "dog/2.jpg", "dog/1.PNG", "cat/b/x.jpeg", "cat/a.webp", "cat/notes.txt", ".git/x.jpg", "dog/.x.jpg"
    )
    expected = [("cat/a.webp", 0), ("cat/b/x.jpeg", 0), ("dog/1.PNG", 1), ("dog/2.jpg", 1)]

    assert FORM.classes_of(path) == ("cat", "dog")
    assert FORM.count(path).records == 4
    for first in range(6):
        assert read(FORM, path, first) == expected[first:]
    assert of([path]).name == "images"


def test_classes_are_given_where_hosts_see_different_folders(tmp_path: Path) -> None:
    path = folder(tmp_path, "dog/1.jpg")

    assert read(ImageFolder(classes=("cat", "dog")), path) == [("dog/1.jpg", 1)]
    with pytest.raises(DataError, match="'dog' is not one of the classes") as error:
        read(ImageFolder(classes=("cat", "dogs")), path)
    assert "did you mean 'dogs'?" in error.value.hint


def test_images_that_come_or_go_while_reading_are_told(tmp_path: Path) -> None:
    path = folder(tmp_path, "a/1.jpg", "a/2.jpg")
    counted = FORM.count(path)
    folder(tmp_path, "a/3.jpg")

    with pytest.raises(DataError, match="had 2 records when it was counted, and has 3 now"):
        list(FORM.read(path, 0, counted))


def test_a_folder_with_files_is_not_one_of_images(tmp_path: Path) -> None:
    assert not FORM.recognizes(folder(tmp_path / "x", "a/1.jpg", "train.csv"), b"")
    assert not FORM.recognizes(folder(tmp_path / "y", "a/1.csv"), b"")
    assert not FORM.recognizes(str(tmp_path / "missing"), b"")


def image(**how: Any) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("L", (3, 2), 7).save(stream, "PNG", **how)
    return stream.getvalue()


def test_an_image_is_decoded_to_red_green_and_blue() -> None:
    needs("numpy", "PIL")
    found = decode_image(image())

    assert found.shape == (2, 3, 3) and found.dtype == "uint8" and (found == 7).all()
    found[:] = 0  # it may be written


def test_what_is_not_a_whole_image_is_refused() -> None:
    needs("numpy", "PIL")
    whole = image()
    refused = 0
    for cut in range(len(whole)):
        try:
            assert (decode_image(whole[:cut]) == 7).all()  # of the last bytes no pixel depends
        except SampleError as error:
            assert "is not a whole image" in str(error)
            refused += 1
    assert refused > len(whole) // 2
