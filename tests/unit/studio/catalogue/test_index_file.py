"""The catalogue's file is never believed blindly, and losing it loses nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.obstacles import small_disk, without_rights
from support.paths import TOOLKIT
from support.run_folders import lay_run
from trainshed.studio.catalogue import index_file, tables
from trainshed.studio.catalogue import refresh as looking

from .conftest import Told


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written a moment ago counts as written for good."""
    monkeypatch.setattr(looking, "SETTLED", -1.0)


@pytest.fixture
def file(place: Path, settled: None, trainshed: Told) -> Path:
    """The file, with two runs in it."""
    lay_run(place / "runs/a", metrics={"loss": [0.125]})
    lay_run(place / "runs/b", metrics={"loss": [0.75]})
    assert sorted(trainshed("ls", "--json").names) == ["a", "b"]
    return place / "state/trainshed/catalog/runs.sqlite"


def losses(told: object) -> dict[str, float]:
    """Last losses by name, from the JSON of `ls`."""
    return {row["name"]: row["metrics"]["loss"]["last"] for row in told.rows}  # type: ignore[attr-defined]


BOTH = {"a": 0.125, "b": 0.75}


def test_a_second_look_reads_no_run_again(file: Path, trainshed: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.stat().st_ino
    monkeypatch.setattr("trainshed.studio.catalogue.indexed.row_of", None)

    assert losses(trainshed("ls", "--json")) == BOTH
    assert file.stat().st_ino == before
    assert sqlite3.connect(file).execute("SELECT count(*) FROM runs").fetchone() == (2,), "any tool of SQLite's reads it"


def damage(data: bytes, how: str) -> bytes:
    """The file's bytes, damaged."""
    if how == "random":
        return random.Random(7).randbytes(len(data))
    if how == "truncated":
        return data[: len(data) // 2]
    if how == "short":
        return data[:50]
    if how == "empty":
        return b""
    return data + b"\0" * 512


@pytest.mark.parametrize("how", ["random", "truncated", "short", "empty", "longer"])
def test_a_damaged_file_is_said_and_made_again(how: str, file: Path, trainshed: Told) -> None:
    file.write_bytes(damage(file.read_bytes(), how))

    told = trainshed("ls", "--json")
    again = trainshed("ls", "--json")

    assert losses(told) == losses(again) == BOTH
    assert "is damaged" in told.err and "made again from the runs' folders" in told.err and again.err == ""


def test_one_changed_byte_anywhere_never_changes_an_answer(file: Path, trainshed: Told) -> None:
    whole = file.read_bytes()
    chance = random.Random(1)
    places = [0, 17, 60, 68, 71, 99, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(20))]
    for at in places:
        changed = bytearray(whole)
        changed[at] ^= 1 << chance.randrange(8)
        file.write_bytes(changed)
        told = trainshed("ls", "--json")
        assert losses(told) == BOTH and "is damaged" in told.err, at


def test_a_file_of_another_version_is_made_again(file: Path, trainshed: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(index_file, "SCHEMA", tables.SCHEMA.replace(f"user_version = {tables.VERSION}", "user_version = 99"))
        patch.setattr(index_file, "VERSION", 99)
        assert losses(trainshed("ls", "--json", "--rebuild")) == BOTH
    told = trainshed("ls", "--json")

    assert losses(told) == BOTH and "was written by another version: it is made again" in told.err


@pytest.mark.parametrize("kind", ["folder", "fifo", "link to itself"])
def test_what_is_not_a_file_stands_in_its_place(kind: str, file: Path, trainshed: Told) -> None:
    file.unlink()
    if kind == "folder":
        (file / "inside").mkdir(parents=True)
    elif kind == "fifo":
        os.mkfifo(file)
    else:
        file.symlink_to(file)

    told = trainshed("ls", "--json")

    assert losses(told) == BOTH and "itself failed" not in told.err and str(file) in told.err
    assert kind != "folder" or (file / "inside").is_dir(), "nothing of others is removed"


def test_a_home_that_cannot_be_written_costs_the_index_alone(place: Path, trainshed: Told) -> None:
    lay_run(place / "runs/a", metrics={"loss": [0.125]})
    (place / "state").mkdir(mode=0o500)

    with without_rights():
        told = trainshed("ls", "--json", "--where", "loss < 1")
        tagged = trainshed("tag", "a", "+best")
        again = trainshed("ls", "--json", "--where", "'best' in tags")

    assert told.names == ["a"] and tagged.status == 0 and again.names == ["a"]
    (place / "state").chmod(0o700)


def test_a_home_that_became_read_only_is_said_and_the_runs_are_answered(file: Path, place: Path, trainshed: Told) -> None:
    lay_run(place / "runs/c", metrics={"loss": [0.5]})
    file.parent.chmod(0o500)

    with without_rights():
        told = trainshed("ls", "--json")

    file.parent.chmod(0o700)
    assert losses(told) == {**BOTH, "c": 0.5}
    assert "the catalogue cannot be kept in" in told.err and "Permission denied" in told.err


@pytest.mark.safety
def test_a_full_disk_costs_the_index_alone_and_leaves_nothing_behind(
    place: Path, settled: None, trainshed: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {f"name{number}": "x" * 900 for number in range(500)}
    for name in "abcd":
        lay_run(place / f"runs/{name}", metrics={"loss": [0.5]}, hps=long)
    with small_disk(place / "disk", 1) as disk:
        monkeypatch.setenv("XDG_STATE_HOME", str(disk))
        told = trainshed("ls", "--json", "--columns", "name,loss")
        left = [path for path in disk.rglob("*") if path.is_file()]

    assert told.names == ["a", "b", "c", "d"] or len(told.names) == 4
    assert "the catalogue cannot be kept in" in told.err and "full" in told.err and left == []


def test_writers_at_once_damage_nothing(place: Path) -> None:
    """Six commands at once, each of which finds runs that the others have not seen."""
    environ = {**os.environ, "XDG_STATE_HOME": str(place / "state"), "PYTHONPATH": str(TOOLKIT)}
    for number in range(3):
        for name in range(5):
            lay_run(place / f"{number}/runs/{number}-{name}", metrics={"loss": [float(number)]})
    told: dict[int, subprocess.CompletedProcess[str]] = {}

    def ask(at: int) -> None:
        command = [sys.executable, "-m", "trainshed", "ls", "--json", "--columns", "name,loss"]
        told[at] = subprocess.run(command, cwd=place / str(at % 3), env=environ, capture_output=True, text=True)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for at, done in told.items():
        rows = json.loads(done.stdout)
        assert done.stderr == "" and sorted(row["name"] for row in rows) == [f"{at % 3}-{name}" for name in range(5)]
        assert {row["loss"] for row in rows} == {float(at % 3)}
    assert [path.name for path in (place / "state/trainshed/catalog").glob(".*")] == []


KILLED = """
import os, signal, sys
from trainshed.studio.catalogue import indexed, refresh
from trainshed.cli import main
refresh.SETTLED, refresh.SAVED = -1.0, 0.0
kept, left = indexed.row_of, [5]
def row_of(*given):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return kept(*given)
indexed.row_of = row_of
main(["ls"])
"""


@pytest.mark.safety
def test_a_kill_while_runs_are_read_loses_neither_runs_nor_what_was_read(
    place: Path, settled: None, trainshed: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        lay_run(place / f"runs/{number}", metrics={"loss": [float(number)]})
    environ = {**os.environ, "XDG_STATE_HOME": str(place / "state"), "PYTHONPATH": str(TOOLKIT)}
    killed = subprocess.run([sys.executable, "-c", KILLED], cwd=place, env=environ)
    assert killed.returncode == -signal.SIGKILL

    from trainshed.studio.catalogue import indexed

    read: list[str] = []
    whole = indexed.row_of
    monkeypatch.setattr(indexed, "row_of", lambda folder, *rest: (read.append(folder), whole(folder, *rest))[1])
    told = trainshed("ls", "--json")

    assert sorted(told.names) == [str(number) for number in range(8)] and told.err == ""
    assert len(read) == 3, "what was read before the kill is not read again"


@pytest.mark.safety
def test_what_killed_writers_left_is_removed(file: Path, place: Path, trainshed: Told) -> None:
    old, new = file.parent / ".runs.sqlite.1.tmp", file.parent / ".runs.sqlite.2.tmp"
    old.write_text("x")
    new.write_text("x")
    os.utime(old, (1, 1))
    lay_run(place / "runs/c")
    trainshed("ls")

    assert not old.exists() and new.exists(), "another command may be writing it"


def test_a_python_without_sqlite_is_said(file: Path, trainshed: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlite3", None)

    told, tagged = trainshed("ls"), trainshed("tag", "a", "+best")

    assert told.status == 69 and "built without sqlite3" in told.err and "trainshed ps --all" in told.err
    assert tagged.status == 0, "what needs one run finds it without the index"


@pytest.mark.safety
def test_secrets_are_not_in_the_file(place: Path, settled: None, trainshed: Told) -> None:
    """Not even those of a folder that was written by hand, and masks nothing."""
    secrets = [
        "tigerpass1",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "ghp_abcdefghijklmnopqrstuvwxyz",
        "sesame99",
        "AKIAABCDEFGHIJKLMNOP",
    ]
    hps = {
        "api_token": '"tigerpass1"',
        "url": f'"https://me:{secrets[3]}@host/x"',
        "deep": json.dumps({"a": {"password": "sesame99"}}),
    }
    lay_run(
        place / "runs/a",
        hps=hps,
        state="Failed",
        tags={"db_password": "tigerpass1"},
        FailureReason=f"cannot log in with {secrets[1]}",
    )
    assert trainshed("note", "a", f"the key is {secrets[4]}").status == 0
    assert trainshed("tag", "a", f"+key={secrets[2]}").status == 0
    told = trainshed("ls", "--json", "--rebuild")
    data = (place / "state/trainshed/catalog/runs.sqlite").read_bytes()

    assert told.names == ["a"] and b"api_token" in data
    assert [secret for secret in secrets if secret.encode() in data or secret in told.out] == []


@pytest.mark.safety
def test_the_file_is_the_users_alone(file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    shutil.rmtree(file.parent)
