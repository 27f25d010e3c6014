"""`keep_alive`: what one run leaves for the next one, and what it must not leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.faulty_s3 import FaultyS3
from support.finished import Finished
from support.obstacles import small_disk
from support.own_s3 import own_s3, put
from support.runner_project import Project, wait_until
from support.wheels import make_venv, make_wheel
from unit.runner.job.test_channels import SHOW, shown

TRAIN = 'import warmth; print("version", warmth.VERSION)\n'
ARGUMENTS = ("run", "job.yaml", "--keep-alive", "10m")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter whose packages are the tests' own; it sees ours as well."""
    folder = tmp_path_factory.mktemp("venv") / "venv"
    (make_venv(folder) / "ours.pth").write_text(sysconfig.get_path("purelib"))
    return f"{folder}/bin/python"


@pytest.fixture
def files(project: Project, python: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A job whose requirements come from a folder of wheels; its pools are released at the end."""
    wheels = project.folder.parent / "wheels"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        make_wheel(wheels, "warmth", version)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    project.python = python
    job = "name: train\nprogram: train.py\nsource_dir: code\n"
    yield project.write({"job.yaml": job, "code/train.py": TRAIN, "code/requirements.txt": "warmth==1.0\n"})
    project.end()
    project.trainshed("release", "all")
    folder = pools(project)
    wait_until(lambda: not keepers(folder), "no keeper is left")


def pools(project: Project) -> Path:
    return project.folder.parent / "state/trainshed/pools"


def keepers(folder: Path) -> list[int]:
    found = psutil.process_iter(["cmdline"])
    return [one.pid for one in found if any(str(folder) in part for part in one.info["cmdline"] or [])]


def names(project: Project) -> list[str]:
    return sorted(path.name for path in pools(project).iterdir())


def is_warm(done: Finished) -> bool:
    return "packages and data of an earlier run" in done.stderr


@pytest.mark.spine
def test_the_next_run_has_the_packages_and_its_own_code(files: Project) -> None:
    first = files.trainshed(*ARGUMENTS)
    assert first.status == 0 and "version 1.0" in first.stdout, first.output
    assert "installing requirements.txt" in first.output and not is_warm(first)
    files.write({"code/train.py": TRAIN + 'print("another code")\n'})
    second = files.trainshed(*ARGUMENTS)
    assert second.status == 0 and "version 1.0" in second.stdout and "another code" in second.stdout, second.output
    assert is_warm(second) and "is installed already" in second.output
    assert "installing" not in second.output
    (name,) = names(files)
    listed = files.command("ps").stdout
    assert name in listed and "free" in listed
    assert files.trainshed("release", name).stdout == f"{name}\n"
    assert names(files) == [] and "WARM" not in files.command("ps").stdout


def test_changed_requirements_are_installed_and_so_is_what_somebody_has_removed(files: Project, python: str) -> None:
    assert "version 1.0" in files.trainshed(*ARGUMENTS).stdout
    files.write({"code/requirements.txt": "warmth==2.0\n"})
    other = files.trainshed(*ARGUMENTS)
    assert is_warm(other) and "installing requirements.txt" in other.output and "version 2.0" in other.stdout
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "warmth"], check=True)
    mended = files.trainshed(*ARGUMENTS)
    assert "installing requirements.txt" in mended.output and "version 2.0" in mended.stdout, mended.output


LEAVING = """\
import os, subprocess, sys, tempfile
def files(folder):
    return sorted(name for _, _, names in os.walk(folder) for name in names)
base = os.environ["SAGEMAKER_BASE_DIR"]
print("found", files(base + "/model"), files(base + "/code"), files(base + "/output"), os.environ.get("EARLIER_TOKEN"))
print("hyperparameters", open(base + "/input/config/hyperparameters.json").read())
if sys.argv[1:] == ["--leave", "1"]:
    for folder in ("model", "output/data", "output", "code"):
        open(f"{base}/{folder}/left", "w").close()
    open(f"{base}/output/failure", "w").write("an old failure")
    sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("sleeper", sleeper.pid)
"""


@pytest.mark.safety
def test_nothing_of_an_earlier_job_reaches_the_next_one(files: Project) -> None:
    files.write({"code/train.py": LEAVING})
    first = files.trainshed(*ARGUMENTS, "--env", "EARLIER_TOKEN=hush-hush", "--hp", "leave=1")
    assert first.status == 0, first.output
    sleeper = int(first.stdout.split("sleeper ")[1].split()[0])
    wait_until(lambda: not psutil.pid_exists(sleeper), "what the job left running is dead")
    second = files.trainshed(*ARGUMENTS)
    assert second.status == 0 and is_warm(second), second.output
    assert "left" not in second.stdout and "failure" not in second.stdout.replace("hyper", "")
    assert "None\n" in second.stdout and "hush" not in second.output and "leave" not in second.stdout
    for path in pools(files).rglob("*"):
        assert path.is_dir() or b"hush" not in path.read_bytes()
    for pid in keepers(pools(files)):
        assert "EARLIER_TOKEN" not in psutil.Process(pid).environ()


WAIT = """\
import os, time
print("begun", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.02)
"""


def await_begin(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert "begun\n" in iter(process.stdout.readline, "")


def test_two_runs_at_once_do_not_share_a_pool_and_one_in_use_is_released_with_its_run(files: Project) -> None:
    files.write({"code/train.py": TRAIN})
    files.trainshed(*ARGUMENTS)
    (name,) = names(files)
    go = files.folder.parent / "go"
    files.write({"code/train.py": WAIT})
    first = files.start(*ARGUMENTS, "--env", f"GO={go}")
    await_begin(first)
    assert "in use" in files.command("ps").stdout
    files.write({"code/train.py": TRAIN})
    second = files.trainshed(*ARGUMENTS)
    assert second.status == 0 and "version 1.0" in second.stdout and not is_warm(second), second.output
    assert f"warm pool {name} does not fit: train-" in second.stderr and " uses it" in second.stderr
    assert len(names(files)) == 2
    released = files.trainshed("release", name)
    assert (released.status, released.stdout) == (0, "") and "goes when that ends" in released.stderr
    go.touch()
    assert first.wait(300) == 0
    assert name not in names(files) and len(names(files)) == 1
    assert files.trainshed("release", "no-such-pool").status == 1


def test_a_killed_runner_leaves_its_pool_for_its_time_and_a_keeper_ends_it(files: Project) -> None:
    files.write({"code/train.py": WAIT})
    arguments = (*ARGUMENTS[:-1], "3s", "--env", f"GO={files.folder}/never")
    process = files.start(*arguments)
    await_begin(process)
    (name,) = names(files)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: names(files) == [], "the pool has ended without its runner")
    wait_until(lambda: not keepers(pools(files)), "and its keeper with it")
    assert name


def test_a_failed_job_leaves_its_packages_and_a_failed_installation_nothing(files: Project) -> None:
    files.write({"code/train.py": "raise SystemExit(3)\n"})
    assert files.trainshed(*ARGUMENTS).status == 3
    files.write({"code/train.py": TRAIN})
    assert "is installed already" in files.trainshed(*ARGUMENTS).output
    files.trainshed("release", "all")
    files.write({"code/requirements.txt": "no-such-package\n"})
    assert files.trainshed(*ARGUMENTS).status == 1
    assert names(files) == []


@pytest.mark.heavy
def test_an_interrupted_job_leaves_its_packages(files: Project) -> None:
    files.write({"code/train.py": WAIT})
    process = files.start(*ARGUMENTS, "--env", f"GO={files.folder}/never")
    await_begin(process)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) != 0
    files.write({"code/train.py": TRAIN})
    assert "is installed already" in files.trainshed(*ARGUMENTS).output


@pytest.mark.heavy
def test_a_disk_that_is_full_or_no_folder_ends_the_pool_and_not_the_job(files: Project) -> None:
    state = files.folder.parent / "state/trainshed"
    state.mkdir(parents=True)
    (state / "pools").write_text("in the way")
    done = files.trainshed(*ARGUMENTS)
    assert done.status == 0 and "nothing is kept for the next run" in done.stderr, done.output
    (state / "pools").unlink()
    (state / "pools").mkdir()
    with small_disk(state / "pools", 1) as disk:
        (disk / ".filling").mkdir()  # all but a few files' worth
        (disk / ".filling/bytes").write_bytes(bytes((1 << 20) - (20 << 10)))
        done = files.trainshed(*ARGUMENTS)
        assert done.status == 0 and "version 1.0" in done.stdout, done.output
        files.trainshed("release", "all")
        wait_until(lambda: not keepers(state / "pools"), "no keeper uses the disk")


@pytest.mark.heavy
def test_hosts_of_a_job_share_the_packages_and_install_them_once(files: Project) -> None:
    for number in (1, 2):
        done = files.trainshed(*ARGUMENTS, "--instances", "2")
        assert done.status == 0 and done.stdout.count("version 1.0") == 2, done.output
        assert done.output.count("installing requirements.txt with") == (1 if number == 1 else 0)


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    with own_s3() as environment:
        put(environment, {"warm/a": b"1", "warm/b": b"2"})
        yield environment


def test_data_that_no_cache_keeps_waits_in_the_pool_and_is_compared(
    files: Project, s3: dict[str, str], faulty: FaultyS3
) -> None:
    files.write({"show.py": SHOW})
    arguments = ("run", "show.py", "--keep-alive", "10m", "--channel", "train=s3://bucket/warm/")
    environment = {**faulty.environment, "TRAINSHED_CHANNEL_CACHE": "off"}
    for _ in range(2):
        assert shown(files.trainshed(*arguments, **environment)) == {"algo-1": {"a": "1", "b": "2"}}
        assert faulty.gets == {"/bucket/warm/a": 1, "/bucket/warm/b": 1}
    put(s3, {"warm/b": b"3"})
    assert shown(files.trainshed(*arguments, **environment)) == {"algo-1": {"a": "1", "b": "3"}}
    assert faulty.gets == {"/bucket/warm/a": 1, "/bucket/warm/b": 2}
