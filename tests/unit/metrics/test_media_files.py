"""`metrics.log` of pictures and the like in a script: what is kept, what goes, and what it never does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainshed.metrics import Image, Text, media_files
from trainshed.metrics.media_reading import Medium, media_of
from trainshed.metrics.writing import FOLDER_VARIABLE, MetricsWriter

PNG = b"\x89PNG"


class Broken:
    """A figure that cannot be drawn."""

    def savefig(self, *_given: Any, **_options: Any) -> None:
        """As where a font is missing."""
        raise TypeError("no font")


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "metrics/sagemaker"))
    monkeypatch.setenv("RANK", "0")
    return tmp_path


def steps(output: Path, name: str) -> list[int | None]:
    return [one.step for one in media_of([str(output)])[name]]


def files(output: Path) -> list[Path]:
    return [path for path in (output / "metrics/media").rglob("*") if path.is_file() and path.suffix != ".jsonl"]


def test_numbers_and_pictures_of_one_call_are_both_kept(output: Path) -> None:
    MetricsWriter().log({"val/sample": Image(PNG, caption="a cat")}, loss=0.5, text="good", step=3, epoch=0.5)

    found = media_of([str(output)])
    (sample,), (text,) = found["val/sample"], found["text"]
    assert (sample.kind, sample.step, sample.epoch, sample.rank, sample.caption) == ("image", 3, 0.5, 0, "a cat")
    assert sample.read() == PNG and text.read() == b"good"
    assert '"loss"' in next((output / "metrics/sagemaker").iterdir()).read_text()


def test_a_number_below_such_a_name_is_a_metric(output: Path) -> None:
    MetricsWriter().log(text=0.5)

    assert media_of([str(output)]) == {} and (output / "metrics/sagemaker").exists()


def test_too_many_steps_are_thinned_and_the_latest_is_there(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = MetricsWriter().log
    for step in range(1000):
        log(image=[PNG, PNG], step=step)

    kept = steps(output, "image")
    assert kept == [step for step in range(0, 1000, 16) for _ in range(2)] + [999, 999]
    assert len(files(output)) == len(kept) and media_of([str(output)])["image"][-1].call == 1000
    assert capsys.readouterr().err.count("\n") == 1, "it is said once"


def test_the_size_of_all_is_bounded(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_files, "MOST_BYTES", 1000)
    log = MetricsWriter().log
    for step in range(64):
        log(text="a" * 90, histogram_words=Text("b"), step=step)

    assert sum(path.stat().st_size for path in files(output)) <= 1000
    assert steps(output, "text")[-1] == 63 and len(steps(output, "histogram_words")) > len(steps(output, "text"))


def test_the_index_does_not_grow_without_end(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_files, "_SPARE_LINES", 10)
    log = MetricsWriter().log
    for step in range(500):
        log(text="a", step=step)

    (index,) = (output / "metrics/media").glob("*.jsonl")
    assert len(index.read_text().splitlines()) < 250 and steps(output, "text")[-1] == 499


def test_names_are_bounded_and_never_paths(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = MetricsWriter().log
    for number in range(media_files.MOST_NAMES + 1):
        log({f"../../{number}": Text("a")})

    assert len(media_of([str(output)])) == media_files.MOST_NAMES
    assert all(path.parent.parent == output / "metrics/media" for path in files(output))
    assert capsys.readouterr().err == "trainshed: metrics.log: '../../100' is not kept: there are 100 names already\n"


def test_a_wrong_kind_is_refused_and_nothing_of_the_call_is_written(output: Path) -> None:
    with pytest.raises(TypeError, match="'image': int cannot be kept as image"):
        MetricsWriter().log(loss=1.0, image=[3])
    with pytest.raises(TypeError, match=r"the metric 'loss' is not a number: str; other things: metrics\.Image"):
        MetricsWriter().log(loss="low")

    assert not (output / "metrics").exists()


def test_what_others_cannot_draw_or_a_disk_does_not_take_costs_one_line(
    output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = MetricsWriter().log
    for _ in range(2):
        log(figure=Broken(), image=output / "missing.png")
    assert not (output / "metrics").exists()
    (output / "metrics").mkdir()
    (output / "metrics/media").write_text("")
    for _ in range(2):
        log(image=PNG)

    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and "'figure' is not kept: TypeError: no font" in said[0]
    assert "'image' is not kept: FileNotFoundError" in said[1] and said[2].endswith("Not a directory")


def test_outside_of_a_job_nothing_is_kept_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    log = MetricsWriter().log
    log(text="a", loss=1.0)
    log(text="a")

    said = capsys.readouterr()
    assert said.out == "metric loss=1\n" and said.err.count("\n") == 1 and "outside of a job" in said.err


def lay(output: Path, process: str, *lines: dict[str, Any]) -> Path:
    folder = output / "metrics/media" / process
    folder.mkdir(parents=True)
    text = "".join(json.dumps({"Kind": "text", "MetricName": "a", "File": "1.txt", **line}) + "\n" for line in lines)
    folder.with_name(f"{process}.jsonl").write_text(text)
    (folder / "1.txt").write_text(process)
    return folder


def told(*outputs: Path) -> list[tuple[Any, str]]:
    return [(one.step, Path(one.path).parent.name) for one in media_of(map(str, outputs)).get("a", ())]


def test_the_lowest_rank_counts_and_steps_that_were_made_again_replace_earlier_ones(tmp_path: Path) -> None:
    lay(tmp_path / "one", "1-1", {"Step": 1, "Rank": 1, "Timestamp": 1})
    lay(tmp_path / "two", "1-1", *({"Step": step, "Rank": 0, "Timestamp": step} for step in (1, 2, 3)))
    lay(tmp_path / "two", "2-2", *({"Step": step, "Rank": 0, "Timestamp": 10 + step} for step in (2, 3)))

    assert told(tmp_path / "one", tmp_path / "two") == [(1, "1-1"), (2, "2-2"), (3, "2-2")]


@pytest.mark.safety
def test_what_a_job_has_forged_leads_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password")
    bad = ["../secret", "/etc/passwd", "1.svg", "1.html", "1.png", ["1.txt"], None, "2.txt"]
    folder = lay(tmp_path, "1-1", *({"File": file} for file in bad), {"Kind": "script"}, {"MetricName": 3}, {"Kind": []})
    (folder / "2.txt").symlink_to(secret)
    (folder.parent / "1-1.jsonl").open("a").write("[1]\nno JSON\n")

    ((found,),) = media_of([str(tmp_path)]).values()
    assert Path(found.path).name == "2.txt"
    with pytest.raises(OSError, match="link"):
        found.read()
    (tmp_path / "other/metrics").mkdir(parents=True)
    (tmp_path / "other/metrics/media").symlink_to(folder.parent)
    assert media_of([str(tmp_path / "other")]) == {}


def test_a_medium_that_has_just_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not there any more"):
        Medium("a", "text", str(tmp_path / "1.txt"), str(tmp_path), 1, 0.0).read()
