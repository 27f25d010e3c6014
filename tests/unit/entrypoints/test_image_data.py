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


def turned(root: Path, ending: str = "jpg") -> Path:
    """A picture that is stored on its side, and shown 8 x 16 with a bright upper half."""
    image = pytest.importorskip("PIL.Image", reason="image files need Pillow")
    pixels = numpy.zeros((16, 8, 3), numpy.uint8)
    pixels[:8] = 200
    exif = image.Exif()
    exif[0x0112] = 6  # "turn by 90 degrees clockwise to show"
    root.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels).rotate(90, expand=True).save(root / f"a.{ending}", exif=exif)
    return root / f"a.{ending}"


def upright(pixels: Any) -> None:
    assert pixels.shape[-3:] == (3, 16, 8)
    assert pixels[..., :6, :].min() > 150 and pixels[..., 10:, :].max() < 50


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tiff"])
def test_pictures_are_read_upright(images: ModuleType, tmp_path: Path, ending: str) -> None:
    for kind in ("cat", "dog"):
        turned(tmp_path / kind, ending)
    data, _ = images.read_channel(tmp_path, "train")
    assert data.shape == (3, 16, 8)
    upright(data.pixels([0]))


def test_pictures_of_shards_and_records_are_read_upright(images: ModuleType, module: Module, tmp_path: Path) -> None:
    sample = {"__key__": "0", "jpg": turned(tmp_path).read_bytes(), "cls": 3}
    shards, listed = module("_shards"), module("_listed")
    with shards.image_of(sample) as image:
        assert image.size == (8, 16)
    upright(shards.Decode({"3": 0}, (3, 16, 8), False)(sample)[0])

    content = listed._HEADER.pack(0, 1.0, 0, 0) + sample["jpg"]
    head = (0xCED7230A).to_bytes(4, "little") + len(content).to_bytes(4, "little")
    records = [head + content.replace(listed._HEADER.pack(0, 1.0, 0, 0), listed._HEADER.pack(0, label, 0, 0))
               + b"\0" * (-len(content) % 4) for label in (0.0, 1.0)]  # fmt: skip
    (tmp_path / "a.rec").write_bytes(b"".join(records))
    data, _ = listed.read_records([tmp_path / "a.rec"], "train", None, None, None, None)
    upright(data.pixels([0, 1]))


def test_damaged_exif_turns_nothing(images: ModuleType, tmp_path: Path) -> None:
    path = turned(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"Exif\0\0", b"Exif\0\0\xff\xff\xff\xff", 1))
    with images.opened(path) as image:
        assert image.size == (16, 8)


def test_boxes_and_masks_are_of_the_picture_as_it_is_shown(module: Module, problem: type[Exception], tmp_path: Path) -> None:
    boxes, masks = module("_boxes"), module("_masks")
    image = pytest.importorskip("PIL.Image", reason="image files need Pillow")
    size = (32, 64)
    exif = image.Exif()
    exif[0x0112] = 6
    (tmp_path / "pictures").mkdir()
    image.new("RGB", size[::-1]).save(tmp_path / "pictures" / "a.jpg", exif=exif)
    (tmp_path / "boxes").mkdir()

    def told(width: int, height: int) -> Any:
        content = {
            "images": [{"id": 1, "file_name": "a.jpg", "width": width, "height": height}],
            "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 32, 32, 32]}],
            "categories": [{"id": 1, "name": "cat"}],
        }
        (tmp_path / "boxes" / "a.json").write_text(module("json").dumps(content))
        return boxes.read_channel(str(tmp_path / "pictures"), str(tmp_path / "boxes"), "train", None, None, None)[0]

    assert told(*size).marks[0].boxes.tolist() == [[0.5, 0.75, 1.0, 0.5]] == told(0, 0).marks[0].boxes.tolist()
    with pytest.raises(problem, match=r"a.jpg is 32 x 64, shown upright, but 64 x 32 in train_annotation"):
        told(*size[::-1])
    (tmp_path / "masks").mkdir()
    image.fromarray(numpy.eye(64, 32, dtype=numpy.uint8)).save(tmp_path / "masks" / "a.png")
    data, count, _ = masks.read_channel(str(tmp_path / "pictures"), str(tmp_path / "masks"), "train", None, None, None)
    assert (data.shape, count) == ((3, 64, 32), 2)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white_and_not_what_is_behind(images: ModuleType, tmp_path: Path, mode: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="image files need Pillow")
    picture = image.new("RGBA", (8, 8), (0, 0, 0, 0))
    picture.paste((100, 100, 100, 255), (0, 0, 8, 4))
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        made = picture.quantize(4) if mode == "P" else picture.convert(mode)
        made.save(tmp_path / kind / "a.png")
    data, _ = images.read_channel(tmp_path, "train")
    pixels = data.pixels([0])[0]
    assert data.shape[0] == (1 if mode == "LA" else 3)
    assert (pixels[:, 4:] == 255).all() and (pixels[:, :4] - 100.0).abs().max() < 3


def test_files_of_a_system_are_no_pictures_and_others_are_named(
    images: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_images(tmp_path / "data")
    for name in ("__MACOSX/cat/._0.png", "cat/.ipynb_checkpoints/0-checkpoint.png", "@eaDir/0.png", "cat/Thumbs.db"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"\0\5\x16\7")
    assert (len(images.read_channel(root, "train")[0]), capsys.readouterr().err) == (6, "")

    for name in ("cat/7.heic", "cat/8.HEIC", "dog/9.avif", "dog/readme"):
        (root / name).write_bytes(b"\0")
    assert len(images.read_channel(root, "the channel train")[0]) == 6
    said = capsys.readouterr().err
    assert (
        f"note: the channel train {root}: files left out, by ending: 1 (none), 1 .avif, 2 .heic; what is read: .png" in said
    )


def test_damaged_pictures_are_left_out_up_to_a_share(
    images: ModuleType, problem: type[Exception], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_images(tmp_path / "train")
    whole = (root / "cat/1.png").read_bytes()
    (root / "cat/1.png").write_bytes(whole[: len(whole) // 2])
    data, classes = images.read_channel(root, "train", 4, skip=0.2)
    assert (len(data), classes, data.labels.tolist()) == (5, ["cat", "dog"], [0, 0, 1, 1, 1])
    assert "note: train: 1 of 6 pictures are damaged and left out: 1.png\n" in capsys.readouterr().err
    with pytest.raises(
        problem, match=r"1 of 6 pictures are damaged, more than skip_damaged \(0.1\) allows: .*1.png cannot be"
    ):
        images.read_channel(root, "train", 4, skip=0.1)


def test_damaged_pictures_with_boxes_or_masks_are_left_out(module: Module, drawn: Path, tmp_path: Path) -> None:
    import shutil

    for kind, reader in (("boxes", "_boxes"), ("shapes", "_masks")):
        root = Path(shutil.copytree(drawn / kind, tmp_path / kind))
        damaged = min((root / "test").iterdir())
        damaged.write_bytes(damaged.read_bytes()[:60])
        beside = str(root / "test_annotation")
        data, _, _ = module(reader).read_channel(str(root / "test"), beside, "the channel test", 16, 3, None, skip=0.5)
        assert len(data) == 9 and damaged not in data.paths
