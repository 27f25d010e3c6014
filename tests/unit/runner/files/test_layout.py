"""The folders of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainshed.base.errors import ProgramError, TrainshedError
from trainshed.runner.files import code, layout
from trainshed.runner.job.job import ChannelSpec, Job


def made(job: Job, *, in_containers: bool, now: float) -> layout.Run:
    """The run that a start at this moment would be, with its folder made and filled."""
    run = layout.claim(layout.plan(job, in_containers=in_containers, now=now))
    layout.place(run, interface="eth0" if in_containers else "lo")
    return run


NOON = 1_795_261_200.123  # 2026-11-21 11:40:00 UTC


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "src"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "pkg/mod.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.csv").write_text("1\n")
    return folder


def job(source: Path, **fields: object) -> Job:
    channels = (ChannelSpec("one", str(source.parent / "data/a.csv")), ChannelSpec("train", str(source.parent / "data")))
    given = {"name": "digits", "program": "train.py", "source_dir": str(source), "channels": channels, **fields}
    return Job(**given)  # type: ignore[arg-type]


def tree(folder: str) -> list[str]:
    """Every path below the folder, links with their targets."""
    found = []
    for root, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = f"{root}/{name}"
            shown = os.path.relpath(path, folder)
            found.append(f"{shown} -> {os.readlink(path)}" if os.path.islink(path) else shown)
    return sorted(found)


def test_hosts_as_processes_get_a_whole_opt_ml_each(source: Path) -> None:
    run = made(job(source, instances=2), in_containers=False, now=NOON)
    assert run.name == "digits-2026-11-21-11-40-00-123"
    assert run.folder == f"{source.parent}/runs/{run.name}"
    data = f"{source.parent}/data"
    host = [
        "checkpoints -> ../checkpoints",
        "code",
        "code/pkg",
        "code/pkg/mod.py",
        "code/train.py",
        "input",
        "input/config",
        "input/config/hyperparameters.json",
        "input/config/inputdataconfig.json",
        "input/config/resourceconfig.json",
        "input/data",
        "input/data/one",
        f"input/data/one/a.csv -> {data}/a.csv",
        f"input/data/train -> {data}",
        "model -> ../model",
        "output",
        "output/data",
    ]
    assert tree(f"{run.folder}/algo-1") == tree(f"{run.folder}/algo-2") == host
    shared = {"checkpoints", "logs", "model", "output", "code.json", "provenance.json"}
    assert set(os.listdir(run.folder)) == {"algo-1", "algo-2", *shared}
    config = json.loads(Path(run.folder, "algo-2/input/config/resourceconfig.json").read_text())
    assert (config["current_host"], config["hosts"]) == ("algo-2", ["algo-1", "algo-2"])
    assert config["network_interface_name"] == "lo"


def test_hosts_as_containers_get_mount_points_for_what_is_mounted(source: Path) -> None:
    run = made(job(source, image="i"), in_containers=True, now=NOON)
    below = tree(f"{run.folder}/algo-1")
    assert {"input/data/one/a.csv", "input/data/train", "code/train.py"} <= set(below)
    assert not [path for path in below if "->" in path]
    assert run.hosts[0].base == "/opt/ml"


def test_checkpoints_of_the_jobs_own_outlive_the_run(source: Path) -> None:
    folder = source.parent / "kept"
    run = made(job(source, checkpoints=str(folder)), in_containers=False, now=NOON)
    assert os.readlink(f"{run.folder}/algo-1/checkpoints") == str(folder)
    config = json.loads(Path(run.folder, "algo-1/input/config/checkpointconfig.json").read_text())
    assert config == {"LocalPath": f"{run.folder}/algo-1/checkpoints"}
    assert not os.path.exists(f"{run.folder}/checkpoints")


def test_two_runs_of_one_moment_have_two_folders(source: Path) -> None:
    first = made(job(source), in_containers=False, now=NOON)
    second = made(job(source), in_containers=False, now=NOON)
    assert first.folder != second.folder


def test_of_two_that_claim_one_folder_the_second_takes_the_next_name(source: Path) -> None:
    runs = [layout.plan(job(source), in_containers=False, now=NOON) for _ in range(3)]
    assert len({run.folder for run in runs}) == 1
    folders = [layout.claim(run).folder for run in runs]
    assert [folder[-3:] for folder in folders] == ["123", "124", "125"]


def test_a_request_keeps_its_exact_name_the_first_time(source: Path) -> None:
    asked = job(source, full_name="digits-of-mine")
    first, second = (made(asked, in_containers=False, now=NOON) for _ in range(2))
    assert first.name == "digits-of-mine"
    assert second.name == "digits-2026-11-21-11-40-00-123"


def test_an_attempt_is_put_aside_but_for_checkpoints_and_logs(source: Path) -> None:
    run = made(job(source), in_containers=False, now=NOON)
    Path(run.checkpoints, "step").write_text("1")
    Path(run.model, "half").write_text("1")
    layout.put_aside(run, 1)
    layout.place(run, interface="lo")
    assert layout.attempts(run.folder) == 1
    assert os.listdir(run.model) == []
    assert os.listdir(f"{run.folder}/attempts/1/model") == ["half"]
    assert os.listdir(run.checkpoints) == ["step"]
    assert os.path.isfile(f"{run.folder}/algo-1/code/train.py")


@pytest.mark.safety
def test_a_folder_with_an_earlier_run_is_left_alone(source: Path) -> None:
    (source.parent / "out").mkdir()
    (source.parent / "out/status.json").write_text("{}")
    run = layout.plan(job(source, output=str(source.parent / "out")), in_containers=False, now=NOON)
    with pytest.raises(TrainshedError, match="holds an earlier run") as caught:
        layout.claim(run)
    assert "--output" in caught.value.hint
    assert os.listdir(source.parent / "out") == ["status.json"]


def test_code_that_cannot_be_copied_is_an_error_of_its_own(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device", "there")

    monkeypatch.setattr(code, "_copy_file", broken)
    with pytest.raises(ProgramError, match="No space left"):
        made(job(source), in_containers=False, now=NOON)


def test_what_is_no_code_is_not_copied(source: Path) -> None:
    for name in (".git/config", "__pycache__/a.pyc", "pkg/__pycache__/b.pyc", ".venv/x", "env/pyvenv.cfg", "env/lib.py",
                 "runs/old/x.py", "pkg/runs/kept.py", "data/big.bin"):  # fmt: skip
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    found = code.survey(str(source), [str(source / "data")])
    assert sorted(name for _, name in found.files) == ["pkg/mod.py", "pkg/runs/kept.py", "train.py"]


def test_links_are_followed_except_in_circles_and_into_nothing(source: Path) -> None:
    (source / "shared").symlink_to(source.parent / "data")
    (source / "loop").symlink_to(source)
    (source / "gone").symlink_to(source / "nothing")
    found = code.survey(str(source))
    assert "shared/a.csv" in [name for _, name in found.files]
    assert not [name for _, name in found.files if name.startswith("loop")]
    assert [note for note in found.notes if "gone" in note and "does not exist" in note]


def test_a_script_keeps_its_execute_bit(source: Path, tmp_path: Path) -> None:
    (source / "run.sh").write_text("")
    (source / "run.sh").chmod(0o755)
    code.copy(code.survey(str(source)), str(tmp_path / "copy"))
    assert (tmp_path / "copy/run.sh").stat().st_mode & 0o777 == 0o755


def test_a_large_folder_is_named_and_a_huge_one_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "WARN_BYTES", 4)
    assert [note for note in code.survey(str(source)).notes if "give data as channels" in note]
    monkeypatch.setattr(code, "MOST_BYTES", 4)
    with pytest.raises(ProgramError, match="too much for code"):
        code.survey(str(source))


@pytest.mark.safety
def test_a_file_that_goes_away_while_code_is_copied_is_named_and_the_run_starts(source: Path) -> None:
    """Editors and other jobs write and remove files all the time."""
    for number in range(5):
        (source / f"lock{number}").write_text("")
    (source / "becomes").write_text("1")
    (source / "pipe").write_text("1")
    found = code.survey(str(source))
    for number in range(5):
        (source / f"lock{number}").unlink()
    for name, make in (("becomes", os.mkdir), ("pipe", os.mkfifo)):
        (source / name).unlink()
        make(source / name)
    gone = code.copy(found, str(source.parent / "copy"))
    assert set(gone) == {"becomes", "pipe", *(f"lock{number}" for number in range(5))}
    assert code.vanished("SRC", gone) == "becomes, lock0, lock1 and 4 more went away from SRC while the code was copied"
    assert (source.parent / "copy/train.py").read_text() == "print(1)\n"


def test_a_file_that_grows_while_it_is_copied_is_copied_as_far_as_it_was(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "BLOCK", 4)
    growing = source / "log"
    growing.write_text("12345678")
    found = code.survey(str(source))
    read = os.read

    def grow(fd: int, count: int) -> bytes:
        with open(growing, "a") as file:
            file.write("more")
        return read(fd, count)

    monkeypatch.setattr(code.os, "read", grow)
    code.copy(found, str(source.parent / "copy"))
    assert (source.parent / "copy/log").read_text() == "12345678"


def test_the_largest_folders_are_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("data", 4000), ("weights", 9000), ("notes", 10)):
        (source / name).mkdir()
        (source / name / "file").write_bytes(bytes(size))
    monkeypatch.setattr(code, "WARN_BYTES", 4)
    (note,) = code.survey(str(source)).notes
    assert "mostly weights (9.0 kB), data (4.0 kB), notes (10 B); give data as channels" in note
    monkeypatch.setattr(code, "MOST_BYTES", 13_000)
    with pytest.raises(ProgramError, match=r"too much for code: mostly weights"):
        code.survey(str(source))


def test_neither_state_nor_runs_nor_keys_of_the_home_folder_are_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for name in (".ssh/id", ".cache/x", ".env", ".local/state/trainshed/runs/a.json", "train.py", "exp/runs/r/x.py",
                 "exp/kept.py", "conda/conda-meta/history", "conda/lib.py", "far/r2/job.json", "far/r2/status.json",
                 "far/r2/y.py", "pkg/runs/__init__.py"):  # fmt: skip
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    monkeypatch.chdir(home / "exp")
    run = layout.claim(layout.plan(Job(name="n", program="train.py", source_dir=str(home)), in_containers=False, now=NOON))
    said: list[str] = []
    environ = {"HOME": str(home), "XDG_STATE_HOME": ""}
    layout.place(run, interface="lo", say=said.append, environ=environ)
    copied = [path for path in tree(f"{run.folder}/algo-1/code") if "." in path.rpartition("/")[2]]
    assert copied == ["exp/kept.py", "pkg/runs/__init__.py", "train.py"]
    assert len(said) == 1 and "is your home folder" in said[0]


def test_the_state_folder_is_not_code_wherever_it_is(source: Path) -> None:
    (source / "state/trainshed/runs").mkdir(parents=True)
    (source / "state/trainshed/runs/a.json").write_text("")
    run = layout.claim(layout.plan(job(source), in_containers=False, now=NOON))
    layout.place(run, interface="lo", environ={"XDG_STATE_HOME": str(source / "state")})
    assert not [path for path in tree(f"{run.folder}/algo-1/code") if path.endswith(".json")]
