"""The failure and success files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainshed.contract.outcome import (
    REASON_BYTES,
    Failure,
    clear_outcome,
    clip,
    read_own_failure,
    write_failure,
    write_success,
)
from trainshed.contract.outcome import writable as is_writable
from trainshed.contract.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of(str(tmp_path))


def files_of(paths: Paths) -> list[str]:
    return sorted(os.listdir(paths.output)) if os.path.isdir(paths.output) else []


def text_of(path: str) -> str:
    return Path(path).read_text()


FAILURE = Failure(
    kind="UserError",
    summary="rank 3 on algo-2 exited with status 1: ValueError: no such column",
    exit_code=1,
    place="train.py:41 in main",
    hint="look at the column's name",
    tail="last line",
    details="Traceback (most recent call last):\n  ...",
)


def test_the_failure_says_what_where_and_what_to_do_in_this_order() -> None:
    assert FAILURE.text() == (
        "UserError: rank 3 on algo-2 exited with status 1: ValueError: no such column\n"
        "  at train.py:41 in main\n"
        "hint: look at the column's name\n\n"
        "Traceback (most recent call last):\n  ...\n\n"
        "last output:\nlast line\n"
    )


@pytest.mark.parametrize("letter", ["x", "ü", "日", "\ud800"])
def test_what_matters_is_within_the_first_1024_bytes_however_long_the_message(letter: str) -> None:
    failure = FAILURE.replace(summary=letter * 5000, details="d" * 5000, tail="t" * 5000)

    first = failure.text().encode("utf-8", "replace")[:REASON_BYTES].decode()

    assert first.startswith("UserError: ")
    assert " ...\n  at train.py:41 in main\nhint: look at the column's name\n" in first


def test_parts_that_are_not_known_leave_no_trace() -> None:
    assert Failure(kind="JobError", summary="wrong", exit_code=2).text() == "JobError: wrong\n"


def test_text_that_is_no_unicode_does_not_stop_the_report(paths: Paths) -> None:
    failure = FAILURE.replace(hint="chmod +x \udcff", place="\udcff.py:1")

    write_failure(paths, failure.text())

    assert "chmod +x ?" in text_of(paths.failure)


@pytest.mark.parametrize(("text", "limit"), [("a" * 10, 10), ("ü" * 10, 20), ("", 5)])
def test_text_that_fits_is_not_clipped(text: str, limit: int) -> None:
    assert clip(text, limit) == text


@pytest.mark.parametrize("limit", range(10, 30))
def test_clipping_never_splits_a_character(limit: int) -> None:
    clipped = clip("aü日🚂" * 10, limit)

    assert len(clipped.encode()) <= limit
    assert clipped.endswith(" ...") and "\ufffd" not in clipped


def test_a_failure_takes_a_success_away_and_the_other_way_round(paths: Paths) -> None:
    write_success(paths)
    assert files_of(paths) == ["success"] and text_of(paths.success) == ""

    write_failure(paths, "why\n")
    assert files_of(paths) == ["failure"] and text_of(paths.failure) == "why\n"

    write_success(paths)
    assert files_of(paths) == ["success"]


def test_what_the_script_wrote_as_its_reason_stays_first(paths: Paths) -> None:
    os.makedirs(paths.output)
    Path(paths.failure).write_text("\nmy own reason\n\n")

    write_failure(paths, FAILURE.text())

    assert text_of(paths.failure).startswith("my own reason\n\nUserError: ")


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\0\0"])
def test_a_reason_without_words_is_none(content: bytes, paths: Paths) -> None:
    os.makedirs(paths.output)
    Path(paths.failure).write_bytes(content)

    write_failure(paths, "why\n")

    assert text_of(paths.failure) == "why\n"


def test_a_very_long_reason_of_the_script_is_kept_in_part(paths: Paths) -> None:
    os.makedirs(paths.output)
    Path(paths.failure).write_text("my own reason\n" + "x" * (2 << 20))

    write_failure(paths, "why\n")

    text = text_of(paths.failure)
    assert text.startswith("my own reason\n") and text.endswith("\n\nwhy\n")


def test_a_reason_in_another_encoding_is_read(paths: Paths) -> None:
    os.makedirs(paths.output)
    Path(paths.failure).write_bytes(b"gr\xfc\xdfe")

    assert read_own_failure(paths) == "gr\ufffd\ufffde"


def test_an_earlier_outcome_is_cleared(paths: Paths) -> None:
    write_failure(paths, "old")
    Path(paths.success).touch()

    clear_outcome(paths)
    clear_outcome(paths)

    assert files_of(paths) == []


def test_a_folder_in_the_place_of_the_failure_file_is_an_error_for_the_caller(paths: Paths) -> None:
    os.makedirs(paths.failure)

    with pytest.raises(OSError):
        write_failure(paths, "why")

    assert files_of(paths) == ["failure"]


def test_a_folder_is_writable_if_it_is_or_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert is_writable(str(tmp_path / "new" / "folder"))
    assert not is_writable(str(tmp_path / "file"))
    assert not is_writable(str(tmp_path / "file" / "below"))
