"""The folders are the truth: what moves, goes, comes twice, or is half there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from support.obstacles import without_rights
from support.run_folders import lay_run
from trainshed.runner.state import index
from trainshed.runner.state.stored import load
from trainshed.studio.catalogue import refresh as looking

from .conftest import Told


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written a moment ago counts as written for good: every change must be noticed by itself."""
    monkeypatch.setattr(looking, "SETTLED", -1.0)


def noted(folder: Path) -> Path:
    """As `trainshed run` leaves it: in the user's index, too."""
    run = load(str(folder))
    index.move(run.id, run.name, run.folder, os.environ)
    return folder


def test_every_change_of_a_run_is_noticed(place: Path, trainshed: Told) -> None:
    run = lay_run(place / "runs/a", metrics={"loss": [1.0]})
    assert trainshed("ls", "--json").rows[0]["state"] == "Completed"

    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, "TrainingJobStatus": "Stopped"}))  # in place, by hand
    assert trainshed("ls", "--json").rows[0]["state"] == "Stopped"
    trainshed("tag", "a", "+one")
    assert trainshed("ls", "--json").rows[0]["tags"] == {"one": ""}
    text = (run / "labels.json").read_text()
    (run / "labels.json").write_text(text.replace("one", "two"))
    assert trainshed("ls", "--json").rows[0]["tags"] == {"two": ""}
    (run / "labels.json").unlink()
    assert trainshed("ls", "--json").rows[0]["tags"] == {}


def test_what_was_written_a_moment_ago_is_read_again(place: Path, trainshed: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "SETTLED", 3600.0)
    run = lay_run(place / "runs/a")
    assert trainshed("ls", "--json").rows[0]["metrics"] == {}

    before = run.stat().st_mtime_ns
    lay_run(place / "other/a", metrics={"loss": [0.5]})
    shutil.copytree(place / "other/a/algo-1", run / "algo-1")
    os.utime(run, ns=(before, before))  # as tools that copy do at the end

    assert trainshed("ls", "--json").rows[0]["metrics"]["loss"]["last"] == 0.5


def test_a_running_run_grows(place: Path, trainshed: Told) -> None:
    from trainshed.runner.state import identity

    ours = {"RunId": "a" * 32, "Runner": identity.mine()}
    run = lay_run(place / "runs/a", state="InProgress", metrics={"loss": [1.0]}, Trainshed=ours)
    first = trainshed("ls", "--json").rows[0]
    with (run / "algo-1/output/metrics/trainshed/log.json").open("a") as file:
        file.write('{"MetricName": "loss", "Value": 0.25, "Timestamp": 1790000009.0, "Step": 1}\n')
    second = trainshed("ls", "--json").rows[0]

    assert (first["state"], first["metrics"]["loss"]["last"]) == ("InProgress", 1.0)
    assert (second["metrics"]["loss"]["last"], second["metrics"]["loss"]["max"]) == (0.25, 1.0)


def test_a_run_that_is_gone_is_said_once_and_one_that_was_removed_is_not(place: Path, trainshed: Told) -> None:
    for name in "abc":
        noted(lay_run(place / f"elsewhere/{name}"))
    assert sorted(trainshed("ls", "--json").names) == ["a", "b", "c"]

    shutil.rmtree(place / "elsewhere/a")
    assert trainshed("rm", str(place / "elsewhere/b")).status == 0
    first, second = trainshed("ls", "--json"), trainshed("ls", "--json")

    assert first.names == second.names == ["c"] and second.err == ""
    assert "1 run is not where it was: a; where" in first.err and "--runs FOLDER finds" in first.err


def test_a_moved_run_keeps_its_tags_and_is_found_again(place: Path, trainshed: Told) -> None:
    noted(lay_run(place / "old/a"))
    trainshed("tag", "a", "+best")
    assert trainshed("ls", "--json").names == ["a"]
    (place / "new").mkdir()
    (place / "old/a").rename(place / "new/renamed")

    gone = trainshed("ls", "--json")
    found = trainshed("ls", "--json", "--runs", "new")
    later = trainshed("ls", "--json")

    assert gone.names == [] and "not where" in gone.err
    assert found.names == ["a"] and found.rows[0]["tags"] == {"best": ""}
    assert f"a has moved to {place}/new/renamed" in found.err
    assert later.names == ["a"] and later.err == "", "the index knows its new place"
    assert trainshed("status", "a").status == 0, "and so do the other commands"


def test_a_run_that_is_renamed_beside_others_is_one_run(place: Path, trainshed: Told) -> None:
    noted(lay_run(place / "runs/a"))
    trainshed("ls")
    (place / "runs/a").rename(place / "runs/z")

    told = trainshed("ls", "--json")

    assert told.names == ["a"] and told.rows[0]["folder"] == f"{place}/runs/z"


def test_a_copy_is_said_and_does_not_pass_for_the_run(place: Path, trainshed: Told) -> None:
    run = noted(lay_run(place / "runs/a", tags={"stage": "final"}))
    shutil.copytree(run, place / "runs/copy")

    told = trainshed("ls", "--json", "--sort", "folder")
    tagged = trainshed("tag", "runs/copy", "+mine")

    assert [(row["id"] is None, row["copy_of"]) for row in told.rows] == [(False, None), (True, str(run))]
    assert trainshed("ls", "--json", "--where", "copy_of is missing").names == ["a"]
    assert tagged.status == 0 and trainshed("ls", "--json", "--where", "'mine' in tags").rows[0]["copy_of"] == str(run)


def test_a_link_to_a_run_is_not_a_second_one(place: Path, trainshed: Told) -> None:
    noted(lay_run(place / "elsewhere/a"))
    (place / "runs").mkdir()
    (place / "runs/link").symlink_to(place / "elsewhere/a")

    assert trainshed("ls", "--json").names == ["a"]


def test_runs_of_another_folder_are_kept_and_not_shown(
    place: Path, trainshed: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_run(place / "one/runs/a", hps={"lr": "1"})
    lay_run(place / "two/runs/b", hps={"lr": "1"})
    seen = []
    for folder in ("one", "two", "one"):
        monkeypatch.chdir(place / folder)
        told = trainshed("ls", "--json", "--where", "lr = 1", "--limit", "5")
        assert told.err == ""
        seen.append(told.names)
    monkeypatch.setattr("trainshed.studio.catalogue.indexed.row_of", None)

    assert seen == [["a"], ["b"], ["a"]] and trainshed("ls", "--json").names == ["a"]


@pytest.mark.parametrize(
    "status", [b"", b"{", b'{"TrainingJobName": "a", "TrainingJobSta', b"[]", b"\xff\xfe", b"[" * 100_000, b"null"], ids=repr
)
def test_a_record_that_is_half_written_is_a_row_and_whole_later(status: bytes, place: Path, trainshed: Told) -> None:
    run = lay_run(place / "runs/a", metrics={"loss": [0.5]})
    whole = (run / "status.json").read_bytes()
    (run / "status.json").write_bytes(status)

    half = trainshed("ls", "--json")
    (run / "status.json").write_bytes(whole)

    assert half.names == ["a"] and half.rows[0]["state"] == "Lost" and half.rows[0]["metrics"]["loss"]["last"] == 0.5
    assert trainshed("ls", "--json").rows[0]["state"] == "Completed"


@pytest.mark.safety
def test_values_of_every_kind(place: Path, trainshed: Told) -> None:
    deep: object = 1
    for _ in range(50):
        deep = {"x": deep}
    hps = {
        "long": json.dumps("y" * (1 << 20)), "list": "[1, 2, {}]", "none": "null", "big": "1" * 400, "huge": "1e999",
        "nan": "NaN",
        "deep": json.dumps(deep), "quo'te\"`d; --": "1", "empty": '""', "": "7",
        "zero\\u0000": "0", "text": '"1"', "half": '"\\ud800"',
    }  # fmt: skip
    names = {
        "it's": [1.0],
        'say "x"': [2.0],
        "`": [3.0],
        "a\x00b": [4.0],
        "é" * 100: [float("nan")],
        "i": [float("-inf"), 2.0],
    }
    lay_run(place / "runs/a", hps=hps, metrics=names, tags={"t": "'; DROP TABLE runs; --"})
    row = trainshed("ls", "--json").rows[0]

    assert len(row["hyperparameters"]["long"]) == 1000 and row["hyperparameters"]["long"].endswith("...")
    assert row["hyperparameters"]["deep.x.x.x"].startswith('{"x"') and row["hyperparameters"]["none"] == "null"
    assert row["metrics"]["it's"]["last"] == 1.0 and row["metrics"]["é" * 100] == {
        "count": 1, "first": "NaN", "last": "NaN", "min": "NaN", "max": "NaN",
    }  # fmt: skip
    assert row["metrics"]["i"] == {"count": 2, "first": "-Infinity", "last": 2.0, "min": "-Infinity", "max": 2.0}
    for where in (
        "`it's` = 1",
        '`say "x"` = 2',
        "```` = 3",
        "hp.`quo'te\"``d; --` = 1",
        "first(i) = -inf",
        'tag.t like "%DROP%"',
    ):
        assert trainshed("ls", "--json", "--where", where).names == ["a"], where
    assert trainshed("ls").status == trainshed("ls", "--csv").status == 0
    for column in ("long", "list", "`it's`"):
        assert trainshed("ls", "--columns", f"name,{column}", "--sort", f"-{column}").status == 0


def test_a_folder_whose_name_is_not_text_and_one_that_cannot_be_read(place: Path, trainshed: Told) -> None:
    lay_run(place / os.fsdecode(b"runs/\xff\xfe"), metrics={"loss": [0.5]})
    closed = lay_run(place / "runs/closed")
    (place / "runs/file").write_text("x")
    (place / "runs/nothing").mkdir()
    closed.chmod(0)
    with without_rights():
        first, second = trainshed("ls", "--json"), trainshed("ls", "--csv")
    closed.chmod(0o700)

    assert len(first.rows) == 1 and first.rows[0]["folder"].endswith("\\xff\\xfe") and second.status == 0
    assert len(trainshed("ls", "--json").rows) == 2


def test_the_look_of_the_table(place: Path, trainshed: Told) -> None:
    lay_run(place / "runs/a", metrics={"loss": [0.5], "acc": [1]}, tags={"x": "\x1b[31mred"})
    lay_run(place / "runs/b", metrics={"loss": [float("nan")]}, state="Failed", seconds=3700)
    told = trainshed("ls", "--sort=-loss", "--columns", "name,state,duration,loss,min(acc),tags")
    few = trainshed("ls", "--limit", "1", "--sort", "name")

    assert told.out.splitlines() == [
        "NAME  STATE        DURATION  loss  min(acc)  TAGS",
        "a     Completed  1 min 00 s   0.5         1  x=\\x1b[31mred",
        "b     Failed     1 h 01 min   nan         -  -",
    ]
    assert "1 of 2 runs" in few.err and "a " in few.out


@pytest.mark.parametrize("words", [
    ("--json", "--csv"), ("--limit", "x"), ("--limit", "0"), ("--sort", "loss,,"), ("--columns", "-loss"),
    ("--runs", "nowhere"),
    ("--sort", "tags"),
    ("-x",), ("--sort", "nope"),
], ids=repr)  # fmt: skip
def test_words_that_do_not_go_together(words: tuple[str, ...], place: Path, trainshed: Told) -> None:
    lay_run(place / "runs/a", metrics={"loss": [0.5]})
    told = trainshed("ls", *words)

    assert told.status == 2 and "itself failed" not in told.err and told.err


def test_a_state_without_quotes_is_a_text_and_not_looked_for_among_metrics(place: Path, trainshed: Told) -> None:
    lay_run(place / "runs/a", metrics={"loss": [0.5]})
    for word, state in (("failed", "Failed"), ("Completed", "Completed"), ("inprogress", "InProgress")):
        assert f'a text stands in quotes: "{state}"' in trainshed("ls", "--where", f"state = {word}").err
    assert "there are loss; a text stands in quotes" in trainshed("ls", "--where", "state = xyzzy").err


def test_nothing_there_is_said(place: Path, trainshed: Told) -> None:
    assert "there are no runs" in trainshed("ls").err and trainshed("ls", "--json").rows == []
    lay_run(place / "runs/a")
    assert "no run fits" in trainshed("ls", "--where", "name = 'b'").err


ODD = (
    None,
    True,
    -1,
    1e308,
    float("nan"),
    1 << 80,
    "",
    "\ud800",
    "9999-12-31T23:59:59-12:00",
    [],
    [None],
    [[1]],
    {},
    {"a": [1]},
    "x" * 5000,
)


def test_no_field_of_any_form_keeps_other_runs_from_being_listed(place: Path, trainshed: Told) -> None:
    """A folder that somebody sent must cost its own row at most."""
    good = lay_run(place / "runs/good", metrics={"loss": [0.5]}, tags={"a": "b"}, Trainshed={"Attempts": [], "Runner": {}})
    files = {name: json.loads((good / name).read_text()) for name in ("status.json", "job.json")}
    keys = [(name, key) for name, held in files.items() for key in held] + [("status.json", "FailureReason")]
    keys += [("status.json", key) for key in ("FinalMetricDataList", "AlgorithmSpecification")]
    for number, (name, key) in enumerate(keys):
        for which, odd in enumerate(ODD):
            folder = place / f"runs/{number}-{which}"
            folder.mkdir()
            for other, held in files.items():
                told = {**held, "Folder": "", "FolderId": "", **({key: odd} if other == name else {})}
                (folder / other).write_text(json.dumps(told))

    told = trainshed("ls", "--json")

    assert len(told.rows) == 1 + len(keys) * len(ODD)
    assert trainshed("ls").status == trainshed("ls", "--csv", "--sort", "-started").status == 0


def test_a_folder_of_work_that_is_gone(place: Path, trainshed: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    noted(lay_run(place / "elsewhere/a"))
    (place / "work").mkdir()
    monkeypatch.chdir(place / "work")
    (place / "work").rmdir()

    assert trainshed("ls", "--json").names == ["a"]
