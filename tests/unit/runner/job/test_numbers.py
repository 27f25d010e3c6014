"""Numbers that are none, or more than any machine counts to: a line for each, in files, flags, variables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.command_line import job_of
from trainshed.base.errors import JobError, TrainshedError
from trainshed.base.numerals import whole
from trainshed.base.units import duration, size
from trainshed.container.cluster.hosts import natural_order
from trainshed.contract.wire.pipeline import read_settings
from trainshed.machine.hostlist import expand
from trainshed.runner.files.owner import caller
from trainshed.runner.job.fields import every

WRONG = [
    "9" * 400,
    "9" * 5000,
    "-1e400",
    "1e400",
    ".nan",
    ".inf",
    "-.inf",
    "0x10",
    "١٢",
    "²",
    "true",
    "1_000",
    "[1]",
    "1e-400x",
]
NUMBERS = [(name, row) for name, row in every() if row.kind in ("whole", "number", "size", "duration", "durations")]


def written(name: str, value: str) -> str:
    outer, _, inner = name.partition(".")
    return f"{outer}: {{{inner}: {value}}}\n" if inner else f"{outer}: {value}\n"


@pytest.mark.parametrize("name", [name for name, _ in NUMBERS])
def test_a_wrong_number_in_a_job_file_is_a_line_of_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text("")
    for value in WRONG if name != "spot.interrupt_after" else [one for one in WRONG if one != "[1]"]:
        (tmp_path / "job.yaml").write_text("program: train.py\nimage: i\n" + written(name, value))
        with pytest.raises(JobError) as caught:
            job_of([str(tmp_path / "job.yaml")], os.environ)
        assert any("must be" in problem.message for problem in caught.value.problems), (value, caught.value.message)
        assert len(caught.value.message) < 400


@pytest.mark.parametrize("flag", [row.flags[0] for _, row in NUMBERS if row.flags])
def test_a_wrong_number_in_a_flag_is_a_line_of_error(tmp_path: Path, flag: str) -> None:
    (tmp_path / "train.py").write_text("")
    for value in WRONG:
        with pytest.raises(JobError):
            job_of([str(tmp_path / "train.py"), "--image", "i", f"{flag}={value}"], os.environ)


@pytest.mark.parametrize("text", ["", "-1", "+1", "²", "١", "1_0", "0x1", " 1", "1.0", "9" * 19, "9" * 5000])
def test_a_whole_number_is_ascii_digits(text: str) -> None:
    assert whole(text) is None
    assert whole("007") == 7


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), "9" * 5000, "²"])
def test_a_pipeline_setting_that_is_no_number_is_an_error_of_ours(value: Any) -> None:
    with pytest.raises(TrainshedError) as caught:
        settings = read_settings({"microbatches": value, "memory_weight": value}, "here")
        raise AssertionError(settings)
    assert len(caught.value.message) < 400


def test_lists_of_hosts_do_not_grow_without_end() -> None:
    for text in ("n[1-999999999999]", "n[1-1000][1-1000]", "[1-99999],[1-99999]"):
        with pytest.raises(TrainshedError, match="names more than 100,000 hosts"):
            expand(text)
    assert expand("n[²-³]") == ("n²-³",)
    assert natural_order(["a" + "9" * 5000, "a1", "a²"])


def test_users_and_durations() -> None:
    for uid in ("²", "9" * 30, str(1 << 40)):
        assert caller({"SUDO_UID": uid, "SUDO_GID": "0"}) == (os.getuid(), os.getgid())
    for value in (float("inf"), float("nan"), 1e300):
        assert duration(value) and size(value)
