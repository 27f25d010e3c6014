"""Without RUN, a command is about this folder's newest run; a name that may mean two things is refused."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import parser_of
from support.offenders import check_each
from trainshed.base.errors import TrainshedError
from trainshed.cli import main
from trainshed.cli.commands import all_commands
from trainshed.runner import api
from trainshed.runner.files import layout
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job
from trainshed.runner.state import identity, index
from trainshed.runner.state.job_json import described
from trainshed.runner.state.status import StatusFile

ACTS = ["profile", "rerun", "resume", "stop"]
LOOKS = ["attach", "clone", "lineage", "logs", "metrics show", "report", "show", "status", "watch"]


class Folders:
    """Two folders and the runs in them.

    of_a, of_b: a run of each folder; that of b is the newer one.
    """

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top, self._monkeypatch, self._now = top, monkeypatch, 1_795_261_200
        monkeypatch.setenv("XDG_STATE_HOME", os.fspath(top / "state"))
        self.of_a, self.of_b = self.run("a", "mine"), self.run("b", "other")

    def enter(self, folder: str) -> None:
        (self.top / folder).mkdir(exist_ok=True)
        self._monkeypatch.chdir(self.top / folder)

    def run(self, folder: str, name: str, output: str = "") -> Run:
        """A completed run that was started from a folder."""
        self.enter(folder)
        self._now += 60
        job = Job(name=name, full_name=name, program="train.py", output=output and os.path.abspath(output))
        made = layout.claim(layout.plan(job, in_containers=False, now=self._now))
        StatusFile(made)
        Path(made.folder, "job.json").write_text(json.dumps(described(made)))
        path = Path(made.folder, "status.json")
        told = {**json.loads(path.read_text()), "TrainingJobStatus": "Completed", "SecondaryStatus": "Completed"}
        told["Trainshed"]["Runner"]["Started"] = 1  # its runner is gone
        path.write_text(json.dumps(told))
        index.note(made, os.environ)
        return made


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    return Folders(tmp_path, monkeypatch)


def defaults() -> Iterator[tuple[str, bool]]:
    """(command, whether it acts) of all that take a run or none."""

    def walk(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, bool]]:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, inner in action.choices.items():
                    yield from walk(f"{words} {word}", inner)
            elif action.dest == "run" and action.nargs == "?":
                yield words, parser.get_default("acts")

    for command in all_commands():
        if command != "train":
            yield from walk(command, parser_of(command))


@pytest.mark.safety
def test_every_command_with_a_default_run_says_whether_it_acts() -> None:
    found = dict(defaults())
    assert sorted(name for name, acts in found.items() if acts is True) == ACTS
    assert sorted(name for name, acts in found.items() if acts is False) == LOOKS
    assert sorted(found) == sorted(ACTS + LOOKS)


@pytest.mark.safety
def test_what_acts_takes_no_run_of_another_folder_and_lists_what_there_is(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    folders.enter("empty")

    def check(command: str) -> None:
        assert main(command.split()) == 2
        said = capsys.readouterr().err
        assert "this folder has no run of its own" in said and "name the run" in said
        assert f"other in {folders.of_b.folder}, mine in {folders.of_a.folder}" in said

    check_each(ACTS, check)
    with pytest.raises(TrainshedError, match="this folder has no run of its own"):
        api.find()


def test_what_looks_says_which_run_of_elsewhere_it_shows(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    def check(command: str) -> None:
        folders.enter("empty")
        main(command.split())
        assert f"this folder has no runs: this is other in {folders.of_b.folder}\n" in capsys.readouterr().err
        folders.enter("a")
        main(command.split())
        captured = capsys.readouterr()
        assert "this folder" not in captured.err and "other" not in captured.out + captured.err

    check_each(LOOKS, check)


@pytest.mark.safety
def test_the_newest_run_of_this_folder_is_meant(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    def meant(folder: str) -> str:
        folders.enter(folder)
        assert main(["stop"]) == 0
        return capsys.readouterr().err.split()[1]

    (folders.top / "link").symlink_to("a")
    places = {"a": "mine", "b": "other", "link": "mine", "a/runs": "mine", "a/runs/mine": "mine"}
    assert {place: meant(place) for place in places} == places
    folders.run("a", "away", output=os.fspath(folders.top / "elsewhere"))
    assert meant("a") == "away"
    index.note(folders.of_a, os.environ)  # resumed from another folder: still of its own
    assert meant("a") == "away"
    (folders.top / "a").rename(folders.top / "c")
    assert meant("c") == "mine"


@pytest.mark.safety
def test_a_link_to_a_run_of_another_folder_is_no_run_of_this_one(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    (folders.top / "a/runs/zz").symlink_to(folders.of_b.folder)
    folders.enter("a")
    assert main(["stop"]) == 0 and "mine" in capsys.readouterr().err
    folders.enter("c")
    Path("runs").symlink_to(Path(folders.of_b.folder).parent)
    assert main(["stop"]) == 2 and "this folder has no run of its own" in capsys.readouterr().err


def test_files_of_the_user_named_as_those_of_a_tuner_hide_no_run(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    folders.enter("a")
    for name in ("pipeline.json", "tune.json"):
        Path(name).write_text("{}")
    assert main(["stop"]) == 0 and "mine" in capsys.readouterr().err


def test_a_working_directory_that_was_removed_is_no_defect(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    folders.enter("gone")
    (folders.top / "gone").rmdir()
    for command in ("status", "init"):
        assert main([command]) in (0, 1) and "itself failed" not in capsys.readouterr().err


def goes_on(run: Run) -> None:
    """Gives a run a runner: this process."""
    path = Path(run.folder, "status.json")
    told = {**json.loads(path.read_text()), "TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}
    told["Trainshed"]["Runner"] = identity.mine()
    path.write_text(json.dumps(told))


@pytest.mark.safety
def test_a_bare_stop_after_the_newest_runs_end_stops_the_one_that_goes_on(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = folders.run("a", "newer")
    stopped = []
    monkeypatch.setattr("trainshed.runner.control.operations.stop", lambda run, *_, **__: stopped.append(run) or run)
    goes_on(folders.of_b)
    assert main(["stop"]) == 0 and "no run of this folder goes on" in capsys.readouterr().err
    goes_on(folders.of_a)
    assert main(["stop"]) == 0
    said = capsys.readouterr().err
    assert f"newer, the newest run of this folder, has ended: stopping mine in {folders.of_a.folder}" in said
    assert main(["stop", "newer"]) == 0 and "stopping" not in capsys.readouterr().err
    assert [run.folder for run in stopped] == [newer.folder, folders.of_a.folder, newer.folder]


def test_runs_that_begin_alike_are_listed_with_their_folders(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = folders.run("a", "like-1"), folders.run("b", "like-2")
    assert main(["status", "like"]) == 2
    assert f"like-2 in {second.folder}, like-1 in {first.folder}" in capsys.readouterr().err


@pytest.mark.safety
def test_stop_in_the_folder_of_a_trial_names_the_command_for_its_tuning_job(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    folders.run("a", "first", output="tunes/t/trials/0001")
    whole = folders.top / "a/tunes/t"
    for file in ("tune.json", "tuner.lock"):
        (whole / file).write_text("{}")
    for place in ("a/tunes/t/trials/0001", "a/tunes/t/trials", "a/tunes/t"):
        folders.enter(place)
        assert main(["stop"]) == 2
        said = capsys.readouterr().err
        assert f"trials of a tuning job: {whole}" in said and f"trainshed tune stop {whole}" in said


@pytest.mark.safety
def test_a_trial_and_a_step_are_not_taken_for_the_run_that_was_meant(
    folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    for whole, part, files in (
        ("tunes/t", "trials/0001", ("tune.json", "tuner.lock")),
        ("pipelines/p", "runs/train-1", ("pipeline.json", "conductor.lock")),
    ):
        folders.run("a", f"part-{files[0][0]}", output=f"{whole}/{part}")
        for file in files:
            Path(whole, file).write_text("{}")
    assert main(["stop"]) == 0 and "mine has ended" in capsys.readouterr().err
    assert main(["status"]) == 0 and "part-p" in capsys.readouterr().out, "looking at it does no harm"
    assert main(["stop", "part-t"]) == 0 and "part-t has ended" in capsys.readouterr().err


@pytest.mark.safety
def test_an_empty_name_means_no_run(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    """`trainshed rm "$RUN"` with a variable that is not set."""
    folders.enter("a")

    def check(command: str) -> None:
        words = {"tag": ["", "+x"], "note": ["", "text"], "export": ["csv", ""], "tune": ["stop", ""], "steps": ["stop", ""]}
        with pytest.raises(SystemExit) as caught:
            main([*command.split(), *words.get(command, [""])])
        assert caught.value.code == 2 and "is empty: is a variable not set?" in capsys.readouterr().err

    check_each([*ACTS, *LOOKS, "rm", "tag", "note", "export", "tune", "steps"], check)
    assert os.path.isdir(folders.of_a.folder) and os.path.isdir(folders.of_b.folder)
    with pytest.raises(TrainshedError, match="is empty"):
        api.find("")
    Path("train.py").write_text("")
    assert main(["run", "train.py", "--from-run", ""]) == 2
    assert "--from-run: is empty: is a variable not set?" in capsys.readouterr().err


NAMED = [
    ["status"], ["logs"], ["clone"], ["lineage"], ["report"], ["show"], ["metrics", "show"], ["tag"], ["note"],
    ["export", "csv"], ["stop"],
]  # fmt: skip


def test_every_command_takes_a_name_its_beginning_and_a_folder(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    results = folders.run("a", "train-2", output="results")

    def check(words: list[str]) -> None:
        for text in ("train-2", "trai", "results", "./results", results.folder, results.id[:8]):
            assert main([*words, text]) == 0, (text, capsys.readouterr().err)
        assert main([*words, "tarin-2"]) == 2
        assert "did you mean 'train-2'?" in capsys.readouterr().err

    check_each(NAMED, check, name=" ".join)


def test_a_word_that_may_mean_two_runs_is_refused_with_both(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    folders.run("a", "result-1")
    folders.run("a", "train-2", output="result")
    again = folders.run("b", "mine")
    folders.enter("a")
    Path("digits/output/data").mkdir(parents=True)
    digits = folders.run("a", "digits")

    def refused(*words: str) -> str:
        assert main(list(words)) == 2
        return capsys.readouterr().err

    for words in NAMED:
        assert "'result' is a folder here, and may also mean result-1 in " in refused(*words, "result")
        several = refused(*words, "mine")
        assert "several runs are named 'mine'" in several and again.folder in several and folders.of_a.folder in several
    for words in (["report"], ["models", "add", "model"]):
        assert f"'digits' is a folder here, and may also mean digits in {digits.folder}" in refused(*words, "digits")


def test_compare_takes_runs_by_name_and_records_by_path(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    results = folders.run("a", "train-2", output="results")
    for run in (results, folders.of_a):
        record = Path(run.folder, "algo-1/output/data/run/algo-1.json")
        record.parent.mkdir(parents=True)
        record.write_text('{"phases": [], "state": "Completed"}')
    for texts in (("mine", "train-2"), ("mi", "results"), (str(folders.of_a.folder), f"{results.folder}/algo-1")):
        assert main(["compare", *texts]) == 0, capsys.readouterr().err
    assert main(["compare", "mine", "results/algo-1/output/data/run/algo-1.json"]) == 0
    assert main(["compare", "mine", "nobody"]) == 2 and "there is no run 'nobody'" in capsys.readouterr().err
    (folders.top / "a/mi").mkdir()
    (folders.top / "a/mi/run").mkdir()
    (folders.top / "a/mi/run/algo-1.json").write_text('{"phases": []}')
    assert main(["compare", "mi", "results"]) == 2 and "'mi' is a folder here" in capsys.readouterr().err
