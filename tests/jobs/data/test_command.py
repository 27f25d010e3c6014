"""`trainshed data`: what is in a channel, and how fast this machine reads it."""

from __future__ import annotations

import re

import pytest

from support.runner_project import Project


@pytest.fixture
def rows(project: Project) -> Project:
    rows = "\n".join(f"{number},{number / 2},0.5" for number in range(500))
    return project.write({"data/a.csv": f"n,x,y\n{rows}\n", "data/b.csv": "n,x,y\n", "data/deep/c.csv": "1,2,3\n"})


@pytest.mark.spine
def test_show_says_format_files_samples_and_the_first_of_them(rows: Project) -> None:
    done = rows.trainshed("data", "show", "data")

    assert done.status == 0, done.output
    assert "data: 501 samples in 3 csv files, " in done.stdout
    assert "data/a.csv  500" in done.stdout and "data/b.csv  0" in done.stdout and "data/deep/c.csv  1" in done.stdout
    assert "the first: {n: 0.0, x: 0.0, y: 0.5}" in done.stdout


@pytest.mark.torch
def test_bench_says_what_each_number_of_workers_reads(rows: Project) -> None:
    pytest.importorskip("torch")
    words = ["--workers", "0,1", "--seconds", "0.2", "--batch-size", "16", "--step-seconds", "0.01"]
    done = rows.trainshed("data", "bench", "data", *words)

    assert done.status == 0, done.output
    title, head, *lines = done.stdout.splitlines()
    assert title.startswith("data: 501 csv samples of ") and head.endswith("the training waits")
    assert [line.split()[0] for line in lines] == ["0", "1"]
    assert all(re.fullmatch(r" +\d +[\d,]+ +[\d,.]+ +[\d.]+ s +\d+ % of a step", line) for line in lines), lines


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["show", "nowhere"], "there is no channel 'nowhere'"),
        (["show", "data", "--format", "cvs"], "'cvs' is not a known format"),
        (["bench", "data", "--workers", "two"], "'two' is not a list of numbers of workers, such as 0,2,4"),
        (["bench", "data", "--seconds", "0"], "'0' is not a number of seconds"),
        (["show", "empty"], "there is no data in empty"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(words: list[str], problem: str, rows: Project) -> None:
    (rows.folder / "empty").mkdir()
    done = rows.trainshed("data", *words)

    assert done.status in (1, 2) and problem in done.stderr, done.output
    assert "Traceback" not in done.output
