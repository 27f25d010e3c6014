"""The image classifier on tar shards: in this process, and from S3 in FastFile mode."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import programs
from support.extras import needs
from support.lazy import Lazy
from support.own_s3 import own_s3, put
from support.pictures import state, stop_at, trained_here
from support.programs import Module, Options
from support.runner_project import Project

pytestmark = pytest.mark.torch
numpy: Any = Lazy("numpy")
torch: Any = Lazy("torch")
needs("numpy", "torch", "PIL")

PROGRAM = "image_classification.py"
SMALL = {"epochs": 3, "batch_size": 8, "width": 8}


def png(pixels: Any) -> bytes:
    from PIL import Image

    Image.fromarray(pixels).save(file := io.BytesIO(), "png")
    return file.getvalue()


def shard(path: Path, samples: list[dict[str, bytes]], first: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, sample in enumerate(samples, first):
            for ending, data in sample.items():
                info = tarfile.TarInfo(f"{number:04d}.{ending}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return path


def easy(count: int, seed: int = 0) -> list[dict[str, bytes]]:
    """Little images of two classes, dark and bright."""
    draw = numpy.random.default_rng(seed)
    return [
        {"png": png(draw.integers(0, 60, (6, 6), numpy.uint8) + 180 * (number % 2)), "cls": b"%d" % (number % 2)}
        for number in range(count)
    ]


@pytest.fixture
def options(options: Options, tmp_path: Path) -> Options:
    """Hyperparameters for a job on three shards of 20 images below tmp_path."""
    for number in range(3):
        shard(tmp_path / "train" / f"{number}.tar", easy(20, number))
    return options


@pytest.mark.parametrize("changed", [{}, {"num_workers": 1, "num_classes": 2, "image_size": 8, "channels": 3}])
def test_it_learns_from_shards_and_validates_on_the_last_one(
    program: ModuleType, options: Options, changed: dict[str, object]
) -> None:
    job = trained_here(program, options(**changed))

    assert job.results["validation_accuracy"] == 1.0
    assert (job.count, job.at.step) == (40, 15)
    assert (job.architecture.classes, job.architecture.shape) == (["0", "1"], [3, 8, 8] if changed else [1, 6, 6])


def test_labels_may_be_names_in_json_and_one_shard_is_not_divided(
    program: ModuleType, options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [
        {"json": json.dumps({"label": ["dark", "bright"][int(sample["cls"])]}).encode(), "png": sample["png"]}
        for sample in easy(20)
    ]
    job = trained_here(program, options(train=shard(tmp_path / "named" / "all.tar", named).parent))

    assert job.architecture.classes == ["bright", "dark"] and "validation_accuracy" not in job.results
    assert "nothing is held out of a single shard" in capsys.readouterr().out


@pytest.mark.exact
def test_a_job_that_was_stopped_ends_with_the_weights_of_one_that_never_was(
    program: ModuleType, options: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def weights() -> dict[str, Any]:
        return state(tmp_path / "model")

    trained_here(program, options())
    through = weights()
    with monkeypatch.context() as patch:
        stop_at(7, program, patch)
        stopped = trained_here(program, options(checkpoint_dir=tmp_path / "checkpoints"))
    assert stopped.at == program.Position(1, 2, 7)
    trained_here(program, options(checkpoint_dir=tmp_path / "checkpoints"))

    assert all(torch.equal(through[name], resumed) for name, resumed in weights().items())


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"png": b"no image"}, "bad.tar: record 3 at byte .* is not usable: 0003.png cannot be read as an image"),
        ({"png": b"", "txt": b"words"}, "bad.tar: record 3 at byte .* is not usable: 0003.png"),
        ({"cls": b"7"}, "bad.tar: record 3 at byte .* has the class '7', which is not one of the 2 classes"),
        ({"cls": b"many"}, "bad.tar: record 3 at byte .* has a file 'cls' that cannot be decoded"),
        ({"png": "too high"}, "record 3 at byte .* has an image of 6 x 7, others have 6 x 6"),
    ],
)
def test_what_is_wrong_with_a_sample_is_told_with_its_place(
    changed: dict[str, bytes], problem: str, program: ModuleType, options: Options, tmp_path: Path
) -> None:
    samples = easy(8)
    samples[3] |= {"png": png(numpy.zeros((7, 6), numpy.uint8))} if "too high" in changed.values() else changed
    hp = options(train=shard(tmp_path / "bad" / "bad.tar", samples).parent, num_classes=2, validation_fraction=0)
    with pytest.raises(Exception, match=problem):
        trained_here(program, hp)


def test_two_ranks_train_on_shards_of_s3_in_fastfile_mode(project: Project, module: Module) -> None:
    module("demo_data").write_digits(project.folder / "data", "tar")
    with own_s3() as environment:
        put(environment, {f"digits/{path.name}": path.read_bytes() for path in (project.folder / "data/train").iterdir()})
        (project.folder / "job.yaml").write_text(
            f"program: {programs.ENTRYPOINTS / PROGRAM}\n"
            "hyperparameters: {epochs: 2, learning_rate: 0.01}\n"
            "distribution: {kind: torchrun, processes_per_host: 2}\n"
            "channels: {train: {path: s3://bucket/digits/, input_mode: FastFile, content_type: application/x-tar}}\n"
        )
        done = project.trainshed("run", "job.yaml", **environment)

    assert done.status == 0, done.output
    measured = json.loads((project.run / "algo-1/output/data/metrics.json").read_text())
    assert measured["finished"] and measured["validation_accuracy"] > 0.5, done.output
    assert "training on 1200 images of 8 x 8 with 1 channel, 10 classes" in done.output
