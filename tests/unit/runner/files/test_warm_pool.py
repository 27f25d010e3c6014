"""Warm pools on disk: who may use one, and when it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trainshed.runner.files import warm_pool as pool
from trainshed.runner.files.layout import plan
from trainshed.runner.files.run import Run
from trainshed.runner.files.warm_pool import Pool, Standing, WarmPoolKey
from trainshed.runner.job.job import Job

SHAPE = WarmPoolKey("unix:///docker.sock", "sha256:1", "")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return plan(Job("digits", output=str(tmp_path / "run")), in_containers=True, now=time.time())


def left(environ: dict[str, str], seconds: float = 60.0, until: float | None = None) -> Standing:
    """A pool that a run has left for the next one, with a set of packages in it."""
    made = pool.make(environ, "digits")
    os.makedirs(f"{made.packages}/set")
    made.note("digits", SHAPE, seconds, None, time.time() + seconds if until is None else until)
    made.let_go()
    (one,) = pool.every(environ)
    return one


def test_a_pool_that_was_left_is_found_with_its_shape_and_taken_once(environ: dict[str, str]) -> None:
    one = left(environ)
    assert (one.job, one.shape, one.in_use, one.name[:7]) == ("digits", SHAPE, False, "digits-")
    first = pool.take(one)
    assert isinstance(first, Pool) and first.folder == one.folder
    assert pool.take(one) is None
    (now,) = pool.every(environ)
    assert now.in_use
    first.let_go()
    assert pool.take(one) is not None


def test_a_pool_that_goes_between_the_look_and_its_use_is_not_taken(environ: dict[str, str]) -> None:
    one = left(environ)
    assert pool.ask_for_end(one)
    assert pool.take(one) is None
    again = left(environ)
    os.rename(again.folder, one.folder)  # another pool came to its place: it is taken as what it is
    assert pool.take(one) is not None


def test_a_pool_whose_time_is_over_is_not_taken_and_goes_with_the_next_sweep(environ: dict[str, str]) -> None:
    one = left(environ, until=time.time() - 1)
    assert one.expired and pool.take(one) is None
    pool.sweep(environ)
    assert os.listdir(pool.pools_folder(environ)) == []


def test_a_pool_in_use_ends_when_its_user_does_and_not_before(environ: dict[str, str]) -> None:
    one = left(environ)
    held = pool.take(one)
    assert held is not None
    assert not pool.ask_for_end(one)
    pool.sweep(environ)
    assert os.path.isdir(one.folder) and held.released
    held.let_go()
    assert pool.take(one) is None  # it was released: nobody gets it any more
    pool.end_in_time(one.folder)  # as its keeper does, before its time
    assert not os.path.exists(one.folder)


@pytest.mark.safety
def test_a_pool_of_a_killed_runner_waits_its_time_from_then_on(environ: dict[str, str], run: Run) -> None:
    made = pool.make(environ, "digits")
    made.note("digits", SHAPE, 60.0, run)
    made.let_go()  # as the kernel does
    pool.end_in_time(made.folder)
    (one,) = pool.every(environ)
    assert time.time() + 50 < one.until <= time.time() + 60
    assert one.run["Id"] == run.id  # whose hosts may still live


@pytest.mark.safety
def test_what_a_killed_removal_has_left_goes_with_the_next_sweep(environ: dict[str, str]) -> None:
    one = left(environ)
    os.rename(one.folder, f"{pool.pools_folder(environ)}/{pool.GONE}1")
    assert pool.every(environ) == []
    pool.sweep(environ)
    assert os.listdir(pool.pools_folder(environ)) == []


@pytest.mark.parametrize("about", ["", "[]", "{", '{"Job": 1}', '{"Shape": {}, "Run": []}', "x" * 100_000])
def test_a_damaged_pool_is_none_and_is_removed_once_it_is_old(environ: dict[str, str], about: str) -> None:
    one = left(environ)
    Path(one.folder, pool.ABOUT).write_text(about)
    assert pool.every(environ) == []
    pool.sweep(environ)
    assert os.path.isdir(one.folder)  # it may be in the making
    os.utime(one.folder, (0, 0))
    pool.sweep(environ)
    assert not os.path.exists(one.folder)


def test_packages_that_three_newer_sets_have_followed_and_unused_files_go(environ: dict[str, str]) -> None:
    held = pool.make(environ, "digits")
    for number in range(5):
        os.makedirs(f"{held.packages}/{number}")
        os.utime(f"{held.packages}/{number}", (number, number))
    entry = Path(held.channels.folder, "0" * 40)
    entry.mkdir(parents=True)
    (entry / "whole").write_text("old")
    os.utime(entry, (1, 1))
    assert held.tidy(since=time.time())
    assert sorted(os.listdir(held.packages)) == ["2", "3", "4"]
    assert not entry.exists()


def test_an_empty_pool_is_not_worth_keeping(environ: dict[str, str]) -> None:
    assert not pool.make(environ, "digits").tidy(since=0)
