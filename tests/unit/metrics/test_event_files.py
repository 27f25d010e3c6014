"""TensorBoard's event files: read as tensorboardX writes them, written as TensorBoard reads them."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from support.extras import needs
from trainshed.metrics.points import Point, line_of
from trainshed.metrics.reading import curves_of, read
from trainshed.metrics.tensorboard import write

needs("tensorboardX")


def written(folder: Path, *events: Any, **values: list[float]) -> bytes:
    """An event file with these curves, and these events; its bytes."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        writer.add_text("notes", "no number")
        for name, numbers in values.items():
            for step, number in enumerate(numbers):
                writer.add_scalar(name, number, step, walltime=100.0 + step)
        for event in events:
            writer.file_writer.event_writer.add_event(event)
    (path,) = folder.iterdir()
    return path.read_bytes()


def tensor_event(tag: str, **tensor: Any) -> Any:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.proto.tensor_pb2 import TensorProto

    return Event(wall_time=7.0, step=3, summary=Summary(value=[Summary.Value(tag=tag, tensor=TensorProto(**tensor))]))


def scalars(folder: Path) -> list[tuple[str, float, float, int | None]]:
    """Of a run whose event files these are."""
    output = folder.parent / f"{folder.name}-run"
    output.mkdir(exist_ok=True)
    if not (output / "tensorboard").exists():
        (output / "tensorboard").symlink_to(folder)
    curves = read([str(output)]).values()
    return [(one.name, one.value, one.time, one.step) for curve in curves for one in curve.points()]


def test_scalars_come_with_step_and_time(tmp_path: Path) -> None:
    written(tmp_path, loss=[0.5, 0.25, float("inf")], accuracy=[1.0])

    assert scalars(tmp_path) == [
        ("loss", 0.5, 100.0, 0), ("loss", 0.25, 101.0, 1), ("loss", float("inf"), 102.0, 2), ("accuracy", 1.0, 100.0, 0),
    ]  # fmt: skip


def test_scalars_of_tensorflow_2_are_tensors(tmp_path: Path) -> None:
    events = [
        tensor_event("packed", dtype=1, tensor_content=struct.pack("<f", 0.5)),
        tensor_event("listed", dtype=1, float_val=[0.25]),
        tensor_event("double", dtype=2, double_val=[0.125]),
        tensor_event("int", dtype=3, int_val=[-3]),
        tensor_event("long", dtype=9, tensor_content=struct.pack("<q", -4)),
        tensor_event("two", dtype=1, float_val=[1.0, 2.0]),
        tensor_event("text", dtype=7, string_val=[b"1.0"]),
    ]
    written(tmp_path, *events)

    assert scalars(tmp_path) == [
        ("packed", 0.5, 7.0, 3), ("listed", 0.25, 7.0, 3), ("double", 0.125, 7.0, 3), ("int", -3.0, 7.0, 3),
        ("long", -4.0, 7.0, 3),
    ]  # fmt: skip


def test_equal_tags_in_several_folders_are_told_apart(tmp_path: Path) -> None:
    written(tmp_path / "train", loss=[1.0], only=[3.0])
    written(tmp_path / "validation", loss=[2.0])

    assert {name for name, *_ in scalars(tmp_path)} == {"train/loss", "validation/loss", "only"}


def test_a_file_that_is_cut_anywhere_gives_what_was_whole(tmp_path: Path) -> None:
    data = written(tmp_path / "whole", loss=[0.5, 0.25])
    whole = scalars(tmp_path / "whole")
    (tmp_path / "cut").mkdir()
    for length in range(len(data)):
        (tmp_path / "cut/a.tfevents.b").write_bytes(data[:length])
        found = scalars(tmp_path / "cut")
        assert found == whole[: len(found)] and len(found) < 2


def test_damaged_files_are_no_error(tmp_path: Path) -> None:
    data = written(tmp_path / "whole", loss=[0.5, 0.25], accuracy=[1.0])
    (tmp_path / "bad").mkdir()
    chance = random.Random(3)
    for _ in range(500):
        place = chance.randrange(len(data))
        (tmp_path / "bad/a.tfevents.b").write_bytes(data[:place] + chance.randbytes(3) + data[place + 3 :])
        assert len(scalars(tmp_path / "bad")) <= 3


def test_a_run_has_the_scalars_of_its_event_files_and_its_own_metrics_win(tmp_path: Path) -> None:
    written(tmp_path / "tensorboard", loss=[9.0], accuracy=[0.5])
    (tmp_path / "metrics/sagemaker").mkdir(parents=True)
    (tmp_path / "metrics/sagemaker/1.json").write_text(line_of(Point("loss", 1.0, 1.0, 0)))
    found = read([str(tmp_path)])

    assert {name: list(curve.track.values) for name, curve in found.items()} == {
        "loss": [1.0], "accuracy": [0.5],
    }  # fmt: skip


def test_tensorboard_reads_what_is_written_for_it(tmp_path: Path) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    points = [Point("val/loss", value, 50.0 + step, step) for step, value in enumerate([0.5, 0.25, -1e30])]
    assert write(str(tmp_path / "logs"), curves_of(points).values(), {}) == (3, 0)
    reader = EventAccumulator(str(tmp_path / "logs"))
    reader.Reload()

    assert [(one.step, one.wall_time, one.value) for one in reader.Scalars("val/loss")] == [
        (step, 50.0 + step, pytest.approx(value, rel=1e-6)) for step, value in enumerate([0.5, 0.25, -1e30])
    ]
    assert [step for *_, step in scalars(tmp_path / "logs")] == [0, 1, 2]
