"""What is shown of a run is the run's own: no file or folder that a job has replaced by a link is read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.offenders import check_each
from trainshed.runner.display.follow import LogTail, follow
from trainshed.runner.files.run import HostTree
from trainshed.runner.state.outputs import attempts_of
from trainshed.runner.state.records import failure_of, record_of
from trainshed.runner.state.stored import load
from trainshed.studio.pages.facts import gather
from trainshed.studio.watch.dashboard import last_lines

pytestmark = pytest.mark.safety
SECRET = "of somebody else"
FILES = {
    "logs/algo-1.log": f"line {SECRET}\n",
    "algo-1/output/failure": SECRET,
    "algo-1/output/data/run/algo-1.json": json.dumps({"host": "algo-1", "state": SECRET, "job": {"name": SECRET}}),
    "algo-1/output/data/logs/algo-1.rank0.log": f"line {SECRET}\n",
}
# What a job can have made a link: each file, and each folder on the way to it; the host's own is mounted there.
LINKS = sorted({str(path) for name in FILES for path in (Path(name), *Path(name).parents)} - {".", "algo-1"})


def a_run(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def shown(folder: Path) -> dict[str, str]:
    """What each way of looking at a run tells of its files."""
    logbook: Any = pytest.importorskip("trainshed.studio.ui.logbook")
    run, host = load(str(folder)), HostTree("algo-1", str(folder / "algo-1"), "/opt/ml")
    logs = logbook.logs_of(str(folder))
    return {
        "page": str([logbook.piece(path, -1, back=True) for path in logs.values()]),
        "page's search": str([logbook.search(path, "somebody", 0) for path in logs.values()]),
        "logs": str(list(follow(run, forever=False))),
        "watch": str(last_lines(run, None)),
        "report": str(gather("x", attempts_of(str(folder)), {}).attempts),
        "record and failure": str(record_of(host)) + failure_of(host),
    }


def test_a_run_without_links_is_shown_by_each_of_them(tmp_path: Path) -> None:
    assert [way for way, text in shown(a_run(tmp_path)).items() if SECRET not in text] == []


def test_nothing_behind_a_link_is_shown(tmp_path: Path) -> None:
    def check(name: str) -> None:
        run = a_run(tmp_path / name.replace("/", "-") / "run")
        os.rename(run / name, away := run.parent / "elsewhere")
        (run / name).symlink_to(away)
        below = [file for file in FILES if file == name or file.startswith(f"{name}/")]
        for file in FILES:
            if file not in below:
                (run / file).write_text("own\n")
        assert [way for way, text in shown(run).items() if SECRET in text] == []

    check_each(LINKS, check)


def test_a_log_that_becomes_a_link_is_read_no_further(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    tail = LogTail(str(run / "logs/algo-1.log"))
    assert tail.lines() == [b"line of somebody else\n"]
    (run / "logs/algo-1.log").unlink()
    (run / "other").write_text("x" * 100 + "\n")
    (run / "logs/algo-1.log").symlink_to(run / "other")
    assert tail.lines(rest=True) == []
