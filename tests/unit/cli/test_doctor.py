"""`trainshed doctor` on good and on broken trees."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from support.runner_project import Project
from trainshed.base.check import Check, as_json, as_lines, fail, ok, warn
from trainshed.container.doctor import machine_checks
from trainshed.container.doctor.job_checks import checks
from trainshed.container.doctor.machine_checks import judge
from trainshed.contract.cluster import Hardware

CUDA = {"version": "2.13.0", "cuda": "12.8", "available": True, "count": 2, "names": ["H200", "H200"]}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A good /opt/ml."""
    for folder in ("code", "input/config", "input/data/train", "output/data", "model"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "code/train.py").write_text("")
    (tmp_path / "input/data/train/a.csv").write_text("1\n")
    configure(tmp_path, hyperparameters={"sagemaker_program": '"train.py"', "lr": "1.10"})
    configure(tmp_path, inputdataconfig={"train": {"TrainingInputMode": "File"}})
    configure(tmp_path, resourceconfig={"current_host": "algo-1", "hosts": ["algo-1"]})
    return tmp_path


def configure(tree: Path, **files: object) -> None:
    for name, value in files.items():
        (tree / f"input/config/{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))


def examine(tree: Path, **environ: str) -> dict[str, Check]:
    """The checks of a tree by name; of several of one name the worst."""
    order = {"ok": 0, "warn": 1, "fail": 2}
    found = checks({"SAGEMAKER_BASE_DIR": str(tree), "PATH": os.environ["PATH"], **environ})
    return {check.name: check for check in sorted(found, key=lambda check: order[check.level])}


def test_a_good_tree_has_nothing_to_be_warned_of(tree: Path) -> None:
    found = examine(tree)
    assert {check.level for check in found.values()} == {"ok"}, found
    assert found["job"].message == "without a name: 1 hyperparameter(s), 1 host(s)"
    assert found["program"].message == f"train.py (python) in {tree}/code"


def test_nothing_is_changed_by_looking(tree: Path) -> None:
    (tree / "model").rmdir()
    before = sorted(tree.rglob("*"))
    assert examine(tree)["model"].message == f"{tree}/model can be created"
    assert sorted(tree.rglob("*")) == before


def test_no_job_is_no_failure(tmp_path: Path) -> None:
    (check,) = checks({"SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert check.level == "ok"
    assert "none here" in check.message


def test_every_problem_of_the_configuration_is_a_line_with_its_fix(tree: Path) -> None:
    configure(tree, hyperparameters={"trainshed_argvv": "x"}, resourceconfig={"current_host": "algo-3", "hosts": ["algo-1"]})
    found = checks({"SAGEMAKER_BASE_DIR": str(tree)})
    assert [check.level for check in found] == ["fail", "fail"]
    assert found[0].fix == "did you mean 'trainshed_argv'?"
    assert "current_host = algo-3: is not among the hosts" in found[1].message


def break_json(tree: Path) -> None:
    configure(tree, hyperparameters='{"lr": ')


def remove_channel(tree: Path) -> None:
    (tree / "input/data/train/a.csv").unlink()
    (tree / "input/data/train").rmdir()


def remove_program(tree: Path) -> None:
    (tree / "code/train.py").rename(tree / "code/trian.py")


def ask_for_xla(tree: Path) -> None:
    configure(tree, hyperparameters={"sagemaker_program": '"train.py"', "trainshed_distribution": "xla"})


def block_output(tree: Path) -> None:
    (tree / "output/data").rmdir()
    (tree / "output").rmdir()
    (tree / "output").write_text("a file in the way")


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        (break_json, "job", "is not JSON"),
        (remove_channel, "channel train", "input/data/train does not exist"),
        (remove_program, "program", "there is no program 'train.py'"),
        (ask_for_xla, "launcher", "asks for torch_xla, which is not installed"),
        (block_output, "output", "cannot be written"),
    ],
)
def test_what_a_job_would_fail_of_is_a_failure_with_a_fix(
    tree: Path, damage: Callable[[Path], None], name: str, message: str
) -> None:
    damage(tree)
    check = examine(tree)[name]
    assert check.level == "fail"
    assert message in check.message
    assert check.fix


def test_an_empty_channel_is_a_warning(tree: Path) -> None:
    (tree / "input/data/train/a.csv").unlink()
    assert examine(tree)["channel train"].level == "warn"


def test_a_file_that_this_user_may_not_read_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = str(tree / "input/data/train/a.csv")
    # By mode bits alone root could still read it.
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != closed)
    check = examine(tree)["channel train"]
    assert check.level == "fail"
    assert closed in check.message
    assert "chmod -R a+rX" in check.fix


def test_a_pipe_channel_needs_nothing_yet(tree: Path) -> None:
    configure(tree, inputdataconfig={"train": {"TrainingInputMode": "Pipe"}})
    assert examine(tree)["channel train"].level == "ok"


def test_requirements_are_counted_without_comments(tree: Path) -> None:
    (tree / "code/requirements.txt").write_text("# mine\nnumpy\n\ntorch>=2\n")
    assert examine(tree)["requirements"].message == "2 line(s) in requirements.txt, installed when the job starts"


def test_code_in_an_archive_is_not_unpacked_for_a_look(tree: Path) -> None:
    (tree / "code/train.py").unlink()
    configure(tree, hyperparameters={"sagemaker_program": '"train.py"', "sagemaker_submit_directory": '"s3://b/k.tar.gz"'})
    assert "in s3://b/k.tar.gz, which `train` unpacks at the start" in examine(tree)["program"].message
    assert os.listdir(tree / "code") == []


def test_hosts_whose_names_do_not_resolve_are_named(tree: Path) -> None:
    configure(tree, resourceconfig={"current_host": "a.invalid", "hosts": ["a.invalid", "b.invalid"]})
    check = examine(tree)["hosts"]
    assert check.level == "warn"
    assert "a.invalid, b.invalid" in check.message
    assert examine(tree, MASTER_ADDR="127.0.0.1")["hosts"].level == "ok"


def test_a_taken_port_is_a_failure_where_rank_zero_would_listen(tree: Path) -> None:
    configure(tree, hyperparameters={"trainshed_distribution": "torchrun", "trainshed_processes_per_host": "1"})
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        check = examine(tree, MASTER_PORT=str(taken.getsockname()[1]))["port"]
    assert check.level == "fail"
    assert "trainshed_master_port" in check.fix


def test_the_port_of_the_roster_is_looked_at_where_there_are_several_hosts(tree: Path) -> None:
    configure(tree, resourceconfig={"current_host": "algo-1", "hosts": ["algo-1", "algo-2"]})
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        check = examine(tree, MASTER_ADDR="127.0.0.1", TRAINSHED_ROSTER_PORT=str(taken.getsockname()[1]))["port"]
    assert check.level == "fail"
    assert "trainshed_roster_port" in check.fix


@pytest.mark.parametrize(
    ("gpus", "answer", "level", "part"),
    [
        (0, {**CUDA, "cuda": None, "available": False}, "ok", "CPU only"),
        (2, {**CUDA, "cuda": None, "available": False}, "fail", "CPU only"),
        (2, {**CUDA, "available": False}, "fail", "finds no usable GPU of 2"),
        (4, CUDA, "warn", "sees 2 of 4"),
        (2, CUDA, "ok", "CUDA 12.8"),
    ],
)
def test_torch_and_the_machine_have_to_agree_on_gpus(gpus: int, answer: dict[str, object], level: str, part: str) -> None:
    check = judge(gpus, answer)[-1]
    assert (check.name, check.level) == ("torch", level)
    assert part in check.message


def test_little_shared_memory_little_memory_and_lost_output_are_warned_of() -> None:
    hardware = Hardware(shm_bytes=64 << 20, memory_bytes=512 << 20)
    assert machine_checks.shared_memory(hardware).level == "warn"
    assert "--shm-size" in machine_checks.shared_memory(hardware).fix
    assert machine_checks.memory(hardware).level == "warn"
    assert machine_checks.buffering({"PYTHONUNBUFFERED": ""}).level == "warn"
    assert machine_checks.user({"HOME": "/nowhere"}).level == "warn"
    assert machine_checks.shared_memory(Hardware(shm_bytes=4 << 30)).level == "ok"


def test_an_old_python_and_a_wrong_clock_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "LEAST_PYTHON", (4, 0))
    assert machine_checks.python().level == "fail"
    monkeypatch.setattr("time.time", lambda: 1.0)
    assert machine_checks.clock().level == "fail"


def test_each_check_is_one_line_and_the_last_line_counts() -> None:
    lines = as_lines([ok("a", "fine"), warn("bb", "so\nso", "do this"), fail("c", "bad")]).splitlines()
    assert lines == ["ok    a   fine", "warn  bb  so so; fix: do this", "fail  c   bad", "1 ok, 1 warning(s), 1 failed"]


def test_json_has_the_same_checks() -> None:
    assert json.loads(as_json([ok("a", "fine")])) == {
        "ok": True,
        "checks": [{"name": "a", "level": "ok", "message": "fine", "fix": ""}],
    }
    assert json.loads(as_json([fail("a", "bad", "mend it")]))["ok"] is False


def test_the_command_exits_with_one_where_a_check_fails(project: Project, tree: Path) -> None:
    good = project.command("doctor", str(tree), "--json")
    assert good.status == 0, good.output
    assert json.loads(good.stdout)["ok"] is True
    remove_program(tree)
    bad = project.command("doctor", str(tree))
    assert bad.status == 1
    assert "fail  program" in bad.stdout
    assert "fix: did you mean 'trian.py'?" in bad.stdout


def test_a_wrong_option_is_refused(project: Project) -> None:
    done = project.command("doctor", "--jsn")
    assert (done.status, done.stdout) == (2, "")
    assert "does not take '--jsn'" in done.stderr
