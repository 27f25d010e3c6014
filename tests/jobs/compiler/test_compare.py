"""`trainshed compare`: from what two runs left behind to a table and a page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trainshed import cli
from trainshed.base.errors import TrainshedError
from trainshed.metrics.points import line_of
from trainshed.metrics.scraper import Scraper, scan_file
from trainshed.studio.compare.facts import read_run
from trainshed.studio.compare.page import bars
from trainshed.studio.compare.table import rows


def job(folder: Path, losses: list[float], seconds: float, training: float, rate: float, **more: Any) -> Path:
    """A job folder as `train` leaves it."""
    record = {
        "format": 1,
        "state": "Completed",
        "seconds": seconds,
        "phases": [{"name": "preparing", "seconds": 1.0}, {"name": "training", "seconds": training}],
        "cluster": {"hosts": ["algo-1", "algo-2"], "rank": 0},
        **more,
    }
    (folder / "output/data/run").mkdir(parents=True)
    (folder / "output/data/run/algo-1.json").write_text(json.dumps(record))
    lines = [f"metric train_loss={loss} grad_norm=1.0 step={10 * step}" for step, loss in enumerate(losses, 1)]
    measured(
        folder, "\n".join(["start", *lines, f"metric tokens_per_second={rate} epoch=1", "metric nan=nan step=x"]) + "\n"
    )
    return folder


def measured(folder: Path, text: str) -> None:
    """What the job finds in this log."""
    path = folder / "output/metrics/trainshed/log.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(map(line_of, scan_file(Scraper(), [text.encode()], 1.0))))


COMPILED = {
    "compiler": {
        "choice": "inductor: 1 GPU",
        "ranks": {"0": {"graphs": 3, "graph_breaks": 0, "fx_cache": {"hit": 4, "miss": 2}}},
    }
}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return (
        job(tmp_path / "native", [3.0, 2.0, 1.0], 110.0, 100.0, 500.0),
        job(tmp_path / "compiled", [3.0, 2.00001, 1.0], 85.0, 75.0, 750.0, **COMPILED),
    )


def test_the_four_comparisons(pair: tuple[Path, Path]) -> None:
    made = {row.name: (*row.values, *row.gains) for row in rows(*map(read_run, map(str, pair)))}

    assert made["throughput, tokens per second"] == ("500", "750", "1.50x")
    assert made["training time, s"] == ("100", "75", "25.0% less")
    assert made["billable, s"] == ("220", "170", "22.7% less")  # two hosts
    assert made["loss, last"] == ("1", "1", "")
    assert made["loss, difference over 3 steps"][2] == "1e-05 at most, at step 20"
    assert made["compiler"][:2] == ("none", "inductor: 1 GPU") and made["graphs, breaks"][1] == "3, 0"
    assert made["cache hits, misses"] == ("", "4, 2", "")


def test_a_run_is_also_a_record_or_a_folder_of_hosts_and_the_trainers_lines_count(tmp_path: Path) -> None:
    host = job(tmp_path / "run/algo-1", [], 10.0, 8.0, 1.0)
    measured(
        host,
        "{'loss': '2.5', 'grad_norm': '1', 'epoch': '0.1'}\n{'loss': 1.5, 'epoch': 0.2}\n{'not a literal\n"
        "{'train_runtime': '9.5', 'train_samples_per_second': '0.42', 'train_loss': '2.0'}\n",
    )
    run = read_run(str(tmp_path / "run"))

    assert run.losses == ((1.0, 2.5), (2.0, 1.5)) and run.rate == ("train_samples_per_second", 0.42)
    assert run.training == 8.0 and run.name == "run"
    assert read_run(str(host / "output/data/run/algo-1.json")).losses == run.losses


def test_runs_without_losses_or_rates_are_compared_as_far_as_they_go(tmp_path: Path) -> None:
    first = job(tmp_path / "a", [2.0, 1.0], 10.0, 5.0, 1.0)
    second = job(tmp_path / "b", [], 0.0, 0.0, 1.0)
    measured(first, "metric train_loss=2 step=1\nmetric train_loss=1 step=20\n")
    measured(second, "metric accuracy=0.5\n")
    made = {row.name: (*row.values, *row.gains) for row in rows(read_run(str(first)), read_run(str(second)))}

    assert made["throughput, steps per second"] == ("4", "", "")
    assert made["loss"] == ("", "not measured", "") and made["training time, s"] == ("5", "", "")
    assert made["accuracy, last"] == ("", "0.5", "") and made["train_loss, last"] == ("1", "", "")


@pytest.mark.parametrize(
    ("content", "message"), [(None, "holds no run record"), ("{", "cannot be read"), ("{}", "is not a run record")]
)
def test_what_is_no_run_is_told(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "output/data/run").mkdir(parents=True)
        (tmp_path / "output/data/run/algo-1.json").write_text(content)
    with pytest.raises(TrainshedError, match=message):
        read_run(str(tmp_path))


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


@pytest.mark.spine
def test_the_command_prints_a_table_and_writes_a_page_that_loads_nothing(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renamed = pair[1].rename(tmp_path / "<b>&compiled")
    page = tmp_path / "new/page.html"
    assert cli.main(["compare", str(pair[0]), str(renamed), "--html", str(page)]) == 0
    output = capsys.readouterr().out
    assert "throughput, tokens per second" in output and "1.50x" in output
    parser = _Tags()
    text = page.read_text()
    parser.feed(text)

    held = json.loads(text.partition('id="told">')[2].partition("</script>")[0])
    assert [line["name"] for line in held["charts"]["train_loss"][""]["lines"]] == ["native", "<b>&compiled"]
    assert parser.addresses == [] and "https:" not in text and "<link" not in text
    assert "<b>&" not in text and "&lt;b&gt;&amp;compiled" in text
    assert cli.main(["compare", str(pair[0]), str(renamed), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["runs"][1]["compiled"]["graphs"] == 3 and len(told["rows"]) > 6


def test_any_number_of_runs_is_compared_with_the_first(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    third = job(tmp_path / "third", [3.0, 2.5, 2.0], 55.0, 50.0, 1000.0)
    page = tmp_path / "three.html"
    assert cli.main(["compare", *map(str, pair), str(third), "--html", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split("  ")[0]: line for line in lines}

    assert lines[0].split() == ["native", "compiled", "third"]
    assert shown["training time, s"].split("s", 1)[1].split() == ["100", "75", "(25.0%", "less)", "50", "(50.0%", "less)"]
    assert "1 at most, at step 30" in shown["loss, difference over 3 steps"]
    assert page.read_text().count("third") >= 4 and "3 runs" in page.read_text()


def test_bars_of_nothing_are_nothing() -> None:
    assert bars([1.0, None], ["a", "b"]) == ""
