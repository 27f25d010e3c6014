"""Images are read as they are written, and data that cannot be trained on are named in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.extras import needs
from support.lazy import Lazy
from support.programs import Module

pytestmark = pytest.mark.torch
needs("numpy", "torch")
numpy: Any = Lazy("numpy")
torch: Any = Lazy("torch")


@pytest.fixture(scope="module")
def images(module: Module) -> ModuleType:
    return module("_images")


@pytest.fixture(scope="module")
def problem(module: Module) -> type[Exception]:
    return module("_common").Problem


def write_images(root: Path, count: int = 3, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> Path:
    """`count` images of random pixels for each of the classes cat and dog."""
    image = pytest.importorskip("PIL.Image", reason="image files need Pillow")
    draw = numpy.random.default_rng(0)
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for index in range(count):
            pixels = draw.integers(0, 256, (size[1], size[0], len(mode)), dtype=numpy.uint8).squeeze()
            image.fromarray(pixels).save(root / name / f"{index}.png")
    return root


def write_npz(root: Path, **arrays: Any) -> Path:
    root.mkdir(exist_ok=True)
    numpy.savez(root / "data.npz", **arrays)
    return root


def test_image_files_and_arrays_of_the_same_images_are_the_same_data(
    images: ModuleType, module: Module, tmp_path: Path
) -> None:
    demo_data = module("demo_data")
    pixels, labels = demo_data.digits()["test"]
    demo_data.write_digits(tmp_path / "png", "png")
    demo_data.write_digits(tmp_path / "npz", "npz")
    files, file_classes = images.read_channel(tmp_path / "png" / "test", "test")
    arrays, array_classes = images.read_channel(tmp_path / "npz" / "test", "test")
    assert file_classes == array_classes == [str(digit) for digit in range(10)]
    assert files.shape == arrays.shape == (1, 8, 8)
    where = {path.stem: index for index, path in enumerate(files.paths)}
    order = [where[f"{index:04d}"] for index in range(len(labels))]
    assert torch.equal(files.pixels(order), arrays.pixels(list(range(len(labels)))))
    assert torch.equal(files.pixels(order).squeeze(1), torch.from_numpy(pixels))
    assert files.labels[order].tolist() == arrays.labels.tolist() == labels.tolist()


def test_images_are_resized_and_turned_grey_when_asked_to(images: ModuleType, tmp_path: Path) -> None:
    root = write_images(tmp_path / "data")
    assert images.read_channel(root, "train")[0].shape == (3, 6, 8)
    assert images.read_channel(root, "train", image_size=16)[0].shape == (3, 16, 16)
    data, classes = images.read_channel(root, "train", image_size=5, channels=1)
    assert (data.shape, classes) == ((1, 5, 5), ["cat", "dog"])
    batch, labels = data[[0, 5, 1]]
    assert batch.shape == (3, 1, 5, 5) and batch.dtype == torch.uint8 and labels.tolist() == [0, 1, 0]


def test_several_npz_files_with_names_for_labels_are_one_data_set(images: ModuleType, tmp_path: Path) -> None:
    for index, name in enumerate(("dog", "cat", "emu")):
        numpy.savez(tmp_path / f"{index}.npz", images=numpy.full((2, 4, 4, 3), index / 2), labels=[name, name])
    data, classes = images.read_channel(tmp_path, "train")
    assert classes == ["cat", "dog", "emu"]
    assert data.labels.tolist() == [1, 1, 0, 0, 2, 2]
    assert data.pixels([1, 2, 5]).mean(dim=(1, 2, 3)).tolist() == [0.0, 0.5, 1.0]


def test_numbered_classes_keep_the_order_of_numbers(images: ModuleType, tmp_path: Path) -> None:
    data, classes = images.read_channel(write_npz(tmp_path, x=numpy.zeros((3, 4, 4)), y=[10.0, 9.0, 2.0]), "train")
    assert (classes, data.labels.tolist()) == (["2", "9", "10"], [2, 1, 0])


def test_another_channel_keeps_to_the_classes_and_the_shape_of_the_training_data(
    images: ModuleType, problem: type[Exception], tmp_path: Path
) -> None:
    like = (["cat", "dog", "emu"], (3, 6, 8))
    root = write_images(tmp_path / "data")
    assert images.read_channel(root, "test", like=like)[1] == ["cat", "dog", "emu"]
    with pytest.raises(problem, match=r"^test has images of 8 x 6 with 3 channels, the training data have 8 x 8 with 3"):
        images.read_channel(root, "test", like=(["cat", "dog"], (3, 8, 8)))
    with pytest.raises(problem, match=r"^test has classes that the training data lack: dog$"):
        images.read_channel(root, "test", like=(["cat", "emu"], (3, 6, 8)))


def test_the_validation_part_holds_some_of_every_class_and_never_all(images: ModuleType) -> None:
    labels = torch.tensor([0] * 50 + [1] * 2 + [2] * 1)
    kept, held_out = images.split(labels, 0.1, seed=3)
    assert sorted(kept + held_out) == list(range(53))
    assert labels[held_out].tolist().count(0) == 5
    assert labels[held_out].tolist().count(1) == 1
    assert 52 in kept
    assert images.split(labels, 0.1, seed=3) == (kept, held_out) != images.split(labels, 0.1, seed=4)
    assert images.split(labels, 0.0, seed=3) == (list(range(53)), [])


def test_mean_and_deviation_are_those_of_each_channel(images: ModuleType) -> None:
    pixels = numpy.random.default_rng(0).normal([1, 50, 7], [2, 5, 0], (200, 6, 6, 3)).astype(numpy.float32)
    mean, std = images.statistics(images.some(images.ArrayImages(pixels, torch.zeros(200)), seed=0))
    assert mean == pytest.approx(pixels.mean(axis=(0, 1, 2), dtype=float), rel=1e-5)
    assert std[:2] == pytest.approx(pixels.std(axis=(0, 1, 2), dtype=float)[:2], rel=1e-4)
    assert std[2] == 1.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda: {"y": [1, 1]}, r"has one class only \(1\): a classifier needs two or more"),
        (lambda: {"y": None}, r"lacks y \(or labels\): it needs arrays x and y"),
        (lambda: {"x": None}, r"lacks x \(or images\): it needs arrays x and y"),
        (lambda: {"x": numpy.zeros((2, 16))}, r"has images of shape \(2, 16\); it must be \(N, H, W\)"),
        (lambda: {"x": numpy.zeros((2, 3, 4, 4))}, r"has images of shape \(2, 3, 4, 4\); it must be"),
        (lambda: {"x": numpy.zeros((2, 3, 9))}, r"has images of 9 x 3 with 1 channel; the smallest possible is 4 x 4"),
        (lambda: {"x": numpy.full((2, 4, 4), numpy.nan)}, "has pixels that are not finite numbers"),
        (lambda: {"x": numpy.full((2, 4, 4), "a")}, "has images of type <U1; they must be numbers"),
        (lambda: {"y": [0, 1, 2]}, r"has 2 images and labels of shape \(3,\); that must be \(2,\)"),
        (lambda: {"y": [0.5, 1]}, "has labels of type float64; they must be whole numbers or strings"),
        (lambda: {"y": numpy.array([None, "a"])}, r"is not an npz file of plain arrays \(ValueError\)"),
        (lambda: {"x": numpy.zeros((0, 4, 4)), "y": numpy.zeros(0)}, "holds no images: the arrays in data.npz are empty"),
    ],
)
def test_a_bad_npz_is_one_line(
    images: ModuleType, problem: type[Exception], tmp_path: Path, changed: Callable[[], dict[str, Any]], message: str
) -> None:
    arrays = {"x": numpy.zeros((2, 4, 4)), "y": [0, 1], **changed()}
    given = {name: array for name, array in arrays.items() if array is not None}
    with pytest.raises(problem, match=rf"^[^\n]*{message}[^\n]*$"):
        images.read_channel(write_npz(tmp_path, **given), "the channel train")


@pytest.mark.parametrize("content", [b"", b"no npz at all", b"PK\x03\x04 half of a zip"])
def test_a_file_that_is_no_npz_is_one_line(
    images: ModuleType, problem: type[Exception], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(problem, match=rf"^{tmp_path}/data.npz is not an npz file of plain arrays \(\w+\)$"):
        images.read_channel(tmp_path, "the channel train")


def test_bad_folders_of_images_are_one_line(images: ModuleType, problem: type[Exception], tmp_path: Path) -> None:
    def refused(name: str) -> str:
        with pytest.raises(problem) as raised:
            images.read_channel(tmp_path / name, name)
        return str(raised.value)

    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "0.png").touch()
    assert refused("flat") == f"flat {tmp_path}/flat holds neither folders of images (one a class) nor npz files"
    write_images(tmp_path / "lone" / "x")
    assert refused("lone").startswith("lone has one class only (x)")
    (write_images(tmp_path / "hollow") / "cow").mkdir()
    assert refused("hollow").startswith(f"hollow: the class folder {tmp_path}/hollow/cow holds no images (.png ")
    (write_images(tmp_path / "broken") / "dog" / "1.png").write_bytes(b"no image")
    assert refused("broken").startswith(f"{tmp_path}/broken/dog/1.png cannot be read as an image: ")
    write_images(tmp_path / "mixed" / "tmp", size=(9, 6))
    write_images(tmp_path / "mixed" / "all", size=(8, 6))
    assert refused("mixed") == (
        f"{tmp_path}/mixed/tmp/cat/0.png is 9 x 6, 0.png is 8 x 6: images must have one size, or give image_size to "
        "resize them"
    )
    deep = write_images(tmp_path / "deep")
    pytest.importorskip("PIL.Image").fromarray(numpy.zeros((6, 8), numpy.uint16)).save(deep / "cat" / "0.png")
    assert refused("deep").startswith(f"{deep}/cat/0.png has more than 8 bits a pixel (mode I;16)")


def test_an_image_that_breaks_off_is_named_by_the_process_that_reads_it(
    images: ModuleType, module: Module, problem: type[Exception], tmp_path: Path
) -> None:
    root = write_images(tmp_path / "data", size=(64, 64))
    broken = root / "dog" / "1.png"
    broken.write_bytes(broken.read_bytes()[:2000])
    data, _ = images.read_channel(root, "train")  # its head is whole, and with it the size
    with pytest.raises(problem, match=rf"^{broken} cannot be read as an image: "):
        data[[0, 4]]
    loader = module("image_classification").batches_of(
        data, [[0, 4]], module("argparse").Namespace(num_workers=1), torch.device("cpu")
    )
    with pytest.raises(problem, match=f"\n_common.Problem: {broken} cannot be read as an image: .*$"):
        list(loader)
