"""What rclone's messages come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.runner.files.fetching.rclone import only, why_not_shown
from trainshed.runner.files.mounts import last_error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026/11/23 01:09:21 NOTICE: Config file not found\n", ""),
        ("1 ERROR : a: first\n2 ERROR : IO error: SlowDown: not now\n\tstatus code: 503\n", "IO error: SlowDown: not now"),
        (
            "1 mount helper error: fusermount: mount failed: Operation not permitted\n"
            "1 Fatal error: failed to mount FUSE fs: fusermount: exit status 1\n",
            "mount failed: Operation not permitted",
        ),
    ],
)
def test_the_last_error_is_the_one_that_says_why(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "log").write_text(text)
    assert last_error(str(tmp_path / "log")) == said


def test_patterns_of_rclone_are_escaped() -> None:
    assert only("all", "a*b{c}") == ["--filter", "+ /all/a\\*b\\{c\\}**", "--filter", "- *"]
    assert only("all", "") == []


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a", "b/c"], ""),
        (["a//b"], "cannot be the path of a file"),
        (["a/../b"], "cannot be the path of a file"),
        (["x" * 256], "is too long"),
        (["a", "a/b"], "is an object and a folder"),
        (["a\nb"], "under another name"),
    ],
)
def test_names_that_no_file_system_shows(names: list[str], why: str) -> None:
    assert why in why_not_shown(names) and bool(why) == bool(why_not_shown(names))
