"""The image classifier on networks that others have made, and on the platform's own lists and records."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import programs
from support.extras import needs
from support.lazy import Lazy
from support.pictures import dark_and_bright, state, stop_at, trained_here
from support.programs import Module, Options

pytestmark = pytest.mark.torch
needs("numpy", "torch", "transformers", "PIL")
numpy: Any = Lazy("numpy")
torch: Any = Lazy("torch")

PROGRAM = "image_classification.py"
SMALL = {"epochs": 2, "batch_size": 12, "image_size": 32}


@pytest.fixture
def options(options: Options, tmp_path: Path) -> Options:
    """Hyperparameters for a job on 48 pictures below tmp_path, dark and bright ones."""
    (tmp_path / "train").mkdir()
    numpy.savez(tmp_path / "train" / "data.npz", x=dark_and_bright(48), y=numpy.arange(48) % 2)
    return options


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_a_trained_network_learns_other_classes_and_loads_in_its_own_library(
    program: ModuleType, options: Options, transformer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    job = trained_here(program, options(previous_model=transformer, learning_rate=0.01, epochs=6))

    assert job.results["validation_accuracy"] == 1
    assert f"the network: vit of transformers, with the weights in {transformer}" in capsys.readouterr().out
    said = json.loads((tmp_path / "model" / "model.json").read_text())
    assert said["classes"] == ["0", "1"] and said["trained"]["finished"] and said["metrics"]["validation_accuracy"] == 1
    plain = AutoModelForImageClassification.from_pretrained(tmp_path / "model")
    assert plain.config.id2label == {0: "0", 1: "1"}
    seen = AutoImageProcessor.from_pretrained(tmp_path / "model")(list(dark_and_bright(8)), return_tensors="pt")
    assert plain(**seen).logits.argmax(1).tolist() == [0, 1] * 4
    network, _ = program.load(tmp_path / "model")
    assert network(torch.from_numpy(dark_and_bright(8)).permute(0, 3, 1, 2)).argmax(1).tolist() == [0, 1] * 4


@pytest.mark.exact
def test_a_stopped_job_ends_with_the_weights_of_one_that_never_was_dropout_and_all(
    program: ModuleType, options: Options, transformer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_here(program, options(previous_model=transformer, model_dir=tmp_path / "through"))
    hp = options(previous_model=transformer, checkpoint_dir=tmp_path / "checkpoints")
    with monkeypatch.context() as patch:
        stop_at(3, program, patch)
        assert trained_here(program, hp).at.step == 3
    assert trained_here(program, hp).at.step == 8
    through, resumed = weights(tmp_path / "through"), weights(tmp_path / "model")
    assert all(torch.equal(through[name], resumed[name]) for name in through)


def test_it_goes_on_from_its_own_model_of_a_library_and_predicts(
    program: ModuleType, options: Options, transformer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = trained_here(program, options(previous_model=transformer, learning_rate=0.01, model_dir=tmp_path / "first"))
    still = trained_here(program, options(previous_model=tmp_path / "first", learning_rate=1e-12, epochs=1))
    assert still.results["validation_loss"] == pytest.approx(first.results["validation_loss"], abs=1e-5)
    capsys.readouterr()
    program.predict(options(predict=tmp_path / "train" / "data.npz"))
    assert {"input", "class", "probability"} == set(json.loads(capsys.readouterr().out.splitlines()[0]))


def test_the_last_layer_alone_is_learnt(program: ModuleType, options: Options, transformer: Path, tmp_path: Path) -> None:
    trained_here(program, options(previous_model=transformer, train_only_top_layer="true"))
    before, after = weights(transformer), weights(tmp_path / "model")
    changed = {
        name for name in after if before[name].shape != after[name].shape or not torch.equal(before[name], after[name])
    }
    assert changed == {"classifier.weight", "classifier.bias"}


def test_a_request_of_the_platform_trains_its_residual_network(
    program: ModuleType, options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hp = options(
        batch_size="", image_size="", image_shape="3,32,32", num_layers=18, num_training_samples=43, num_classes=2, top_k=2,
        mini_batch_size=43, epochs=2, learning_rate=0.01, use_pretrained_model=0, lr_scheduler_step="1",
        augmentation_type="crop", precision_dtype="float32", checkpoint_frequency=1,
    )  # fmt: skip
    assert (hp.optimizer, hp.lr_schedule, hp.weight_decay, hp.augment) == ("sgd", "steps", 0.0001, "flip")
    job = trained_here(program, hp)
    assert job.results["validation_top_k_accuracy"] == 1
    assert "the network: resnet18 of transformers, from scratch\n" in capsys.readouterr().out
    assert job.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    assert job.network.body.config.depths == [2, 2, 2, 2] and "running_mean" in " ".join(weights(tmp_path / "model"))


def test_two_ranks_train_a_borrowed_network(options: Options, transformer: Path, tmp_path: Path) -> None:
    arguments = (
        "--train",
        "train",
        "--previous_model",
        "trained",
        "--image_size",
        "32",
        "--epochs",
        "1",
        "--batch_size",
        "12",
    )
    output = programs.run(PROGRAM, *arguments, cwd=tmp_path, ranks=2)
    assert programs.metrics(output, "validation_accuracy") and (tmp_path / "model" / "model.safetensors").exists()


# --- torchvision and timm ---------------------------------------------------------------------------------------------


def test_the_weights_of_torchvision_are_known_by_the_name_of_their_file(
    program: ModuleType, options: Options, tmp_path: Path, module: Module
) -> None:
    try:
        from torchvision import models
    except (ImportError, RuntimeError):
        pytest.skip("needs a torchvision that is made for this torch")
    (tmp_path / "trained").mkdir()
    torch.save(models.resnet18(num_classes=5).state_dict(), tmp_path / "trained" / "resnet18-f37072fd.pth")
    trained_here(program, options(previous_model=tmp_path / "trained"))
    plain = models.get_model("resnet18", num_classes=2)
    plain.load_state_dict(state(tmp_path / "model"))
    program.load(tmp_path / "model")
    old = torch.load(tmp_path / "trained" / "resnet18-f37072fd.pth", weights_only=True)
    assert torch.equal(old["bn1.running_mean"], plain.state_dict()["bn1.running_mean"]), "statistics are not learnt again"
    (tmp_path / "trained" / "resnet18-f37072fd.pth").rename(tmp_path / "trained" / "resnet34.pth")
    with pytest.raises(program.Problem, match="lacks weights of resnet34"):
        trained_here(program, options(previous_model=tmp_path / "trained"))
    (tmp_path / "trained" / "resnet34.pth").rename(tmp_path / "trained" / "weights.pth")
    with pytest.raises(program.Problem, match="give architecture, as resnet18"):
        trained_here(program, options(previous_model=tmp_path / "trained"))
    trained_here(program, options(previous_model=tmp_path / "trained", architecture="resnet18", epochs=1))


def test_a_folder_of_timm_is_read_and_written(program: ModuleType, options: Options, tmp_path: Path) -> None:
    try:
        import timm
    except (ImportError, RuntimeError):
        pytest.skip("needs timm")
    from safetensors.torch import save_file

    (tmp_path / "trained").mkdir()
    save_file(timm.create_model("resnet10t", num_classes=7).state_dict(), tmp_path / "trained" / "model.safetensors")
    config = {
        "architecture": "resnet10t",
        "pretrained_cfg": {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3},
    }
    (tmp_path / "trained" / "config.json").write_text(json.dumps(config))
    trained_here(program, options(previous_model=tmp_path / "trained", image_size=""))
    plain = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    network, made = program.load(tmp_path / "model")
    assert made.mean == [127.5] * 3 and made.size == 32
    pixels = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(plain(pixels), network.body(pixels))


# --- the platform's formats -------------------------------------------------------------------------------------------


def png(picture: Any) -> bytes:
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray(picture).save(held, "PNG")
    return held.getvalue()


def record(label: float, image: bytes, labels: tuple[float, ...] = ()) -> bytes:
    """A frame of RecordIO with an image in it."""
    body = struct.pack("<IfQQ", len(labels), label, 7, 0) + struct.pack(f"<{len(labels)}f", *labels) + image
    return struct.pack("<II", 0xCED7230A, len(body)) + body + bytes(-len(body) % 4)


def test_lists_say_which_images_count(program: ModuleType, options: Options, tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    (root / "a").mkdir(parents=True)
    (tmp_path / "lists").mkdir()
    for number, picture in enumerate(dark_and_bright(20)):
        (root / "a" / f"{number}.png").write_bytes(png(picture))
    (root / "a" / "left_out.png").write_bytes(b"damaged")
    lines = [f"{number}\t{number % 2}.000000\ta/{number}.png" for number in range(20)]
    (tmp_path / "lists" / "train.lst").write_text("\n".join(lines) + "\n")
    changed = {"train": root, "train_lst": tmp_path / "lists", "num_classes": 2, "batch_size": 4, "image_size": ""}
    job = trained_here(program, options(**changed))
    assert job.data.classes == ["0", "1"] and job.count == 18
    for line, message in (
        ("0\t0", r"train\.lst:1 has 2 columns"),
        ("0\t0.5\ta/1.png", "'0.5': a class is a whole number"),
        ("0\t2\ta/1.png", "has the class 2, but num_classes is 2"),
        ("0\t1\ta/none.png", "there is no image"),
        ("0\t1\t../x.png", "leads out of the channel"),
        ("", "names no images"),
    ):
        (tmp_path / "lists" / "train.lst").write_text(line)
        with pytest.raises(program.Problem, match=message):
            trained_here(program, options(**changed))


def test_recordio_of_images_is_read_where_it_lies(program: ModuleType, options: Options, tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    frames = [record(number % 2, png(picture)) for number, picture in enumerate(dark_and_bright(19))]
    frames.append(record(0, png(dark_and_bright(2)[1]), (1.0,)))
    (tmp_path / "records" / "train.rec").write_bytes(b"".join(frames))
    changed = {"train": tmp_path / "records", "batch_size": 4, "image_size": "", "learning_rate": 0.02, "epochs": 4}
    job = trained_here(program, options(**changed))
    assert job.results["validation_accuracy"] == 1 and job.data.labels and job.data.shape == (3, 8, 8)
    for content, message in (
        (b"".join(frames)[:-9], "cut short"),
        (frames[0] + record(1, b"no picture"), r"\(byte \d+\) cannot be read as an image"),
        (record(0, b"", (1.0, 2.0)), "has 2 labels"),
        (record(float("nan"), b""), "'nan': a class is a whole number"),
        (b"", "hold|empty"),
    ):
        (tmp_path / "records" / "train.rec").write_bytes(content)
        with pytest.raises(program.Problem, match=message):
            trained_here(program, options(**changed))
