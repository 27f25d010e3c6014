"""A script logs pictures, tables and the like: where a person finds them, and what other tools get."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from support.extras import needs
from support.runner_project import Project
from trainshed.runner import find

SCRIPT = """\
import numpy
from trainshed import metrics
for step in range(3):
    picture = numpy.full((6, 8), 80 * step, "uint8")
    metrics.log(image=metrics.Image(picture, caption=f"at {step}"), loss=1.0 / (step + 1), step=step)
metrics.log({"val/pairs": [metrics.Image(picture), metrics.Image(255 - picture)]}, step=2)
metrics.log(table=[{"word": "cat", "right": 3}], histogram=numpy.arange(10.0), text="good morning", step=2)
metrics.log(audio=metrics.Audio(numpy.zeros(800), sample_rate=8000), figure={"data": [{"y": [1, 2]}]}, step=2)
"""


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the run `one`."""
    needs("numpy")
    project = Project(tmp_path_factory.mktemp("media") / "project")
    project.folder.mkdir()
    project.write({"train.py": SCRIPT})
    done = project.trainshed("run", "train.py", "--output", "one")
    assert done.status == 0, done.output
    return project


def event_file(folder: Path) -> list[tuple[str, int, str]]:
    """(tag, step, kind) of the summaries that are not scalars in a folder's event file."""
    from tensorboardX.proto.event_pb2 import Event

    data, found = next(folder.iterdir()).read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        found += [(one.tag, event.step, str(one.WhichOneof("value"))) for one in event.summary.value]
        data = data[16 + length :]
    return [one for one in found if one[2] != "simple_value"]


@pytest.mark.spine
def test_what_was_logged_is_in_python_the_terminal_and_the_report(logged: Project) -> None:
    needs("trainshed.studio")
    run = find(f"{logged.folder}/one")
    shown = logged.command("metrics", "show", "./one").output
    done = logged.command("report", "./one", "-o", "page.html")

    found = run.media()
    assert {name: found[name][0].kind for name in found} == {
        **{kind: kind for kind in ("audio", "figure", "histogram", "image", "table", "text")}, "val/pairs": "image",
    }  # fmt: skip
    assert [(one.step, one.caption) for one in found["image"]] == [(0, "at 0"), (1, "at 1"), (2, "at 2")]
    assert found["text"][0].read() == b"good morning" and set(run.metrics) == {"loss"}
    assert next(line.split()[:5] for line in shown.splitlines() if "image" in line) == ["image", "image", "3", "3", "2"]
    page = (logged.folder / "page.html").read_text()
    assert done.status == 0 and page.count("data:image/png;base64,") == 5 and "good morning" in page and "at 2" in page


def test_tensorboard_gets_summaries(logged: Project) -> None:
    needs("tensorboardX")
    done = logged.command("metrics", "show", "./one", "--tensorboard", "events")

    assert "3 values of 1 metrics and 9 pictures and the like" in done.output
    assert event_file(logged.folder / "events") == [
        ("audio", 2, "audio"), ("histogram", 2, "histo"), ("image", 0, "image"), ("image", 1, "image"),
        ("image", 2, "image"), ("table/text_summary", 2, "tensor"), ("text/text_summary", 2, "tensor"),
        ("val/pairs", 2, "image"), ("val/pairs/1", 2, "image"),
    ]  # fmt: skip
