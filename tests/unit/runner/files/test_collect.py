"""The archives of a run."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from support.obstacles import without_rights
from trainshed.runner.files import layout
from trainshed.runner.files.collect import collect, settled
from trainshed.runner.files.ending import RunEnd
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job

COMPLETED = RunEnd("Completed", "Completed", 0)
FAILED = RunEnd("Failed", "Failed", 3, "algo-2", "why")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of two hosts."""
    monkeypatch.chdir(tmp_path)
    made = layout.plan(Job(name="x", instances=2), in_containers=False, now=0)
    layout.place(made, interface="lo")
    return made


def write(run: Run, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = Path(run.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def contents(run: Run, name: str) -> dict[str, str]:
    """Name -> text (a link's target) of an archive's members."""
    with tarfile.open(f"{run.artifacts}/{name}") as tar:
        return {
            member.name: member.linkname if member.issym() else tar.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in tar
        }


def test_the_model_is_packed_with_its_links_and_folders(run: Run) -> None:
    write(run, {"model/weights.bin": "w", "model/tokenizer/vocab.txt": "v"})
    os.symlink("weights.bin", f"{run.model}/latest")
    os.symlink("tokenizer", f"{run.model}/tok")
    model, _ = collect(run, COMPLETED)
    assert contents(run, "model.tar.gz") == {
        "weights.bin": "w",
        "tokenizer/vocab.txt": "v",
        "latest": "weights.bin",
        "tok": "tokenizer",
    }
    assert (model.files, model.size, model.problem) == (4, 2, "")


def test_one_name_on_two_hosts_is_kept_twice_unless_it_is_the_same(run: Run) -> None:
    write(run, {f"algo-{n}/output/data/{name}": text for n in (1, 2) for name, text in (("same", "s"), ("own", str(n)))})
    write(run, {"algo-2/output/data/alone": "a", "algo-1/output/success": "", "algo-2/output/success": ""})
    collect(run, COMPLETED)
    assert contents(run, "output.tar.gz") == {
        "data/same": "s",
        "algo-1/data/own": "1",
        "algo-2/data/own": "2",
        "data/alone": "a",
        "success": "",
    }


def test_after_a_failure_the_root_speaks_for_the_job(run: Run) -> None:
    write(run, {"algo-1/output/success": "", "algo-2/output/failure": "the cause", "algo-1/output/failure": "lost its peer"})
    collect(run, FAILED)
    found = contents(run, "output.tar.gz")
    assert found == {"failure": "the cause", "algo-1/failure": "lost its peer", "algo-2/failure": "the cause"}


def test_a_stopped_job_has_neither_success_nor_failure(run: Run) -> None:
    write(run, {"algo-1/output/success": ""})
    collect(run, RunEnd("Stopped", "Stopped", 130))
    assert contents(run, "output.tar.gz") == {}


def test_an_empty_model_is_an_empty_archive(run: Run) -> None:
    model, _ = collect(run, COMPLETED)
    assert model.files == 0
    assert contents(run, "model.tar.gz") == {}


def test_what_is_no_file_is_left_out_and_hard_links_come_back(run: Run, tmp_path: Path) -> None:
    write(run, {"model/a": "one"})
    os.mkfifo(f"{run.model}/pipe")
    os.link(f"{run.model}/a", f"{run.model}/b")
    collect(run, COMPLETED)
    with tarfile.open(f"{run.artifacts}/model.tar.gz") as tar:
        assert sorted(tar.getnames()) == ["a", "b"]
        tar.extractall(tmp_path / "out")
    assert (tmp_path / "out/b").read_text() == "one"


def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_packed(run: Run) -> None:
    write(run, {"model/open": "o", "model/closed": "c"})
    os.chmod(f"{run.model}/closed", 0)
    with without_rights():
        model, _ = collect(run, COMPLETED)
    assert contents(run, "model.tar.gz") == {"open": "o"}
    assert model.problem == "left out of it: closed: Permission denied"


def test_an_archive_that_cannot_be_written_is_a_problem_and_no_half_file(run: Run) -> None:
    os.rmdir(run.artifacts)
    Path(run.artifacts).write_text("in the way")
    model, output = collect(run, COMPLETED)
    assert (model.path, output.path) == ("", "")
    assert "cannot be written" in model.problem


def test_a_job_whose_results_are_not_all_there_has_not_completed(run: Run) -> None:
    write(run, {"model/a": "one", "algo-1/output/success": "", "algo-2/output/success": ""})
    os.rmdir(run.artifacts)
    Path(run.artifacts).write_text("in the way")
    archives = collect(run, COMPLETED)
    verdict = settled(COMPLETED, archives)
    assert (verdict.status, verdict.exit_code) == ("Failed", 1)
    assert "model.tar.gz cannot be written: Not a directory (3 B of files" in verdict.reason
    assert f"hint: nothing is lost: the files are in {run.model}" in verdict.reason
    assert settled(FAILED, archives) == FAILED
    stopped = RunEnd("Stopped", "Stopped", 130)
    assert settled(stopped, archives) == stopped


def test_without_the_model_the_output_does_not_say_success(run: Run) -> None:
    write(run, {"model/a": "one", "algo-1/output/success": "", "algo-1/output/data/x": "x"})
    os.mkdir(f"{run.artifacts}/model.tar.gz")
    model, _ = collect(run, COMPLETED)
    assert model.path == ""
    assert contents(run, "output.tar.gz") == {"data/x": "x"}


def test_a_model_folder_that_a_script_has_made_anew_is_found(run: Run) -> None:
    for host in run.hosts:
        os.unlink(f"{host.folder}/model")
    write(run, {"algo-1/model/weights": "1", "algo-1/model/shard-1": "a", "algo-2/model/weights": "1"})
    write(run, {"algo-2/model/shard-2": "b", "algo-1/model/config": "first", "algo-2/model/config": "second"})
    model, _ = collect(run, COMPLETED)
    assert contents(run, "model.tar.gz") == {
        "weights": "1",
        "shard-1": "a",
        "shard-2": "b",
        "config": "first",
        "algo-2/config": "second",
    }
    assert model.problem == ""
    assert model.notes == ("config differs between hosts: that of algo-2 is algo-2/config",)


def test_a_model_folder_that_was_replaced_by_a_link_elsewhere_is_a_problem(run: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    os.unlink(f"{run.hosts[1].folder}/model")
    os.symlink(tmp_path / "elsewhere", f"{run.hosts[1].folder}/model")
    model, _ = collect(run, COMPLETED)
    assert "algo-2/model: the script replaced the folder by a link to" in model.problem


def test_pipes_sockets_and_links_that_leave_the_model_are_told(run: Run) -> None:
    write(run, {"model/a": "one", "checkpoints/best": "b"})
    os.mkfifo(f"{run.model}/pipe")
    os.symlink(f"{run.checkpoints}/best", f"{run.model}/weights")
    os.symlink("nothing", f"{run.model}/broken")
    model, _ = collect(run, COMPLETED)
    assert model.problem == ""
    assert any("left out of model.tar.gz: pipe, a pipe" in note for note in model.notes)
    (links,) = [note for note in model.notes if note.startswith("link in the model")]
    assert "broken leads nowhere" in links and "weights leads to" in links


def test_something_that_still_writes_is_told(run: Run) -> None:
    write(run, {"model/a": "one"})

    def meddle(_: str) -> None:
        write(run, {"model/a": "another", "model/late": "l"})

    model, _ = collect(run, COMPLETED, meddle)
    assert "a: changed while it was packed" in model.problem and "late: changed while it was packed" in model.problem


def test_the_archive_does_not_tell_who_packed_it(run: Run) -> None:
    write(run, {"model/a": "one"})
    collect(run, COMPLETED)
    with tarfile.open(f"{run.artifacts}/model.tar.gz") as tar:
        member = tar.getmember("a")
    assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
