"""Installing what the user's code needs: with the real pip, into a throw-away environment, without any index."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.program.packages import Environment, Packages, package_files
from support.paths import TOOLKIT

SLEEPY = "import time\ntime.sleep(600)\n"


def add_sleepy_package(tree: Any) -> None:
    """A package of the user's whose build never ends."""
    for path, text in package_files("sleepy", sleepy="").items():
        tree.code(path, SLEEPY + text if path == "backend.py" else text)
    tree.code("train.py", "print('ran')")


# --- programs of every kind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train.py", "run.sh"])
def test_requirements_are_installed_for_scripts_of_every_kind(
    name: str, shared_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    module = f"needed_{name.partition('.')[2]}"
    packages.wheel(module, "1.5")
    job_tree.code("requirements.txt", f"# what it needs\n{module}>=1.2\n")
    job_tree.code("train.py", f"import {module}; print('version', {module}.VERSION)")
    job_tree.code("run.sh", f"exec '{shared_venv.python}' train.py\n")
    job_tree.configure(hyperparameters={"sagemaker_program": name})

    done = job_tree.train(python=shared_venv.python, **packages.environ())

    assert (done.status, done.stdout.splitlines()[-1]) == (0, "version 1.5"), done.output
    assert "trainshed: installing requirements.txt with pip" in done.stderr


def test_a_source_distribution_is_built_and_installed(shared_venv: Environment, packages: Packages, job_tree: Any) -> None:
    packages.sdist("built", "2.0", built="WHO = 'built here'")
    job_tree.code("requirements.txt", "built==2.0\n")
    job_tree.code("train.py", "import built; print(built.WHO)")
    job_tree.configure(hyperparameters={})

    done = job_tree.train(python=shared_venv.python, **packages.environ())

    assert (done.status, done.stdout.splitlines()[-1]) == (0, "built here"), done.output


@pytest.mark.parametrize("program", ["userpkg.train", "-m userpkg.train"])
def test_a_package_is_installed_with_its_requirements_and_run_as_a_module(
    program: str, shared_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    packages.wheel("helper")
    text = "import sys, helper; print('module', __package__, helper.VERSION, sys.argv[1:], 'site-packages' in __file__)"
    for path, content in package_files("userpkg", userpkg____init__="", userpkg__train=text).items():
        job_tree.code(path, content)
    job_tree.code("requirements.txt", "helper\n")
    job_tree.configure(hyperparameters={"sagemaker_program": program, "epochs": "3"})

    done = job_tree.train(python=shared_venv.python, **packages.environ())

    assert done.status == 0, done.output
    assert done.stdout.splitlines()[-1] == "module userpkg 1.0 ['--epochs', '3'] True"
    assert "trainshed: installing requirements.txt and the package with pip" in done.stderr


def test_a_dry_run_installs_nothing(shared_venv: Environment, packages: Packages, job_tree: Any) -> None:
    packages.wheel("never_installed")
    job_tree.code("requirements.txt", "never_installed\n")
    job_tree.code("train.py")

    done = job_tree.train("--dry-run", python=shared_venv.python, **packages.environ())

    assert done.status == 0 and f"{job_tree.base}/code/requirements.txt" in done.stdout
    assert not (shared_venv.site_packages / "never_installed.py").exists()


def test_packages_that_are_there_already_need_no_index(shared_venv: Environment, job_tree: Any) -> None:
    job_tree.code("requirements.txt", "pip\n")
    job_tree.code("train.py", "print('ran')")

    done = job_tree.train(python=shared_venv.python, PIP_CONFIG_FILE="/dev/null", PIP_NO_INDEX="1")

    assert done.status == 0 and done.stdout.splitlines()[-1] == "ran"


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no-such-package-here\n", "satisfies the requirement no-such-package-here"),
        ("pip>=9999\n", "satisfies the requirement pip>=9999"),
        ("???\n", "Invalid requirement"),
        ("-r other.txt\n", "other.txt"),
        ("./nowhere\n", "nowhere"),
    ],
)
def test_the_failure_says_in_pips_words_why(
    text: str, reason: str, shared_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    job_tree.code("requirements.txt", text)
    job_tree.code("train.py", "print('ran')")

    done = job_tree.train(python=shared_venv.python, **packages.environ())

    first = job_tree.failure.splitlines()[0]
    assert done.status == 1 and "ran" not in done.stdout
    assert first.startswith("ProgramError: requirements.txt could not be installed: ") and reason in first, job_tree.failure
    assert job_tree.success is None and "Traceback" not in job_tree.failure


def test_a_package_that_does_not_build_is_told_with_its_own_error(
    shared_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    for path, text in package_files("broken", broken="").items():
        job_tree.code(path, "raise RuntimeError('no compiler here')\n" if path == "backend.py" else text)
    job_tree.code("train.py")

    done = job_tree.train(python=shared_venv.python, **packages.environ())

    assert done.status == 1
    assert job_tree.failure.startswith("ProgramError: the package could not be installed: ")
    assert "RuntimeError: no compiler here" in job_tree.failure


@pytest.mark.safety
def test_a_login_in_the_index_address_is_shown_nowhere(shared_venv: Environment, job_tree: Any) -> None:
    job_tree.code("requirements.txt", "--index-url https://someone:hunter2hunter2@127.0.0.1:9/simple\nnot-there\n")
    job_tree.code("train.py")

    done = job_tree.train(python=shared_venv.python, PIP_CONFIG_FILE="/dev/null", PIP_RETRIES="0")

    assert done.status == 1 and "could not be installed" in job_tree.failure
    assert "hunter2" not in done.output + job_tree.failure
    for record in job_tree.base.rglob("*.json"):
        assert "hunter2" not in record.read_text()


def test_an_environment_without_pip_is_told(job_tree: Any, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    job_tree.code("requirements.txt", "anything\n")
    job_tree.code("train.py")

    done = job_tree.train(python=str(tmp_path / "bare/bin/python"))

    assert done.status == 1 and "No module named pip" in job_tree.failure


def test_an_installation_that_takes_too_long_is_stopped(shared_venv: Environment, packages: Packages, job_tree: Any) -> None:
    add_sleepy_package(job_tree)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py", "trainshed_install_timeout_seconds": "2"})

    done = job_tree.train(python=shared_venv.python, **packages.environ())

    assert done.status == 1 and "ran" not in done.stdout
    assert "the package could not be installed within 2 s" in job_tree.failure
    assert "trainshed_install_timeout_seconds" in job_tree.failure


def test_a_stop_signal_ends_an_installation_at_once(shared_venv: Environment, packages: Packages, job_tree: Any) -> None:
    add_sleepy_package(job_tree)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py"})
    process = subprocess.Popen(
        [shared_venv.python, "-m", "trainshed.container.main"],
        env=job_tree.environ(**packages.environ()),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    printed = ""
    while "Getting requirements" not in printed and "Preparing metadata" not in printed:
        line = process.stdout.readline()
        assert line, f"it ended before pip had started to build:\n{printed}"
        printed += line
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=300)

    assert process.returncode == 128 + signal.SIGTERM, printed + rest
    assert job_tree.failure.startswith("Interrupted: stopped by SIGTERM while the package was being installed")
    assert "ran" not in rest
    assert [path.name for path in job_tree.tmp.iterdir() if path.name.startswith(("pip", "trainshed"))] == []


LOCKER = """\
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locked(shared_venv: Environment) -> Iterator[int]:
    """Another process that holds the environment's lock; its PID."""
    command = [sys.executable, "-c", LOCKER, str(shared_venv.site_packages)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        yield process.pid
        process.communicate()


def test_the_wait_for_another_installation_has_a_limit(
    locked: int, shared_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    packages.wheel("awaited")
    job_tree.code("requirements.txt", "awaited\n")
    job_tree.code("train.py", "print('ran')")
    job_tree.configure(hyperparameters={"trainshed_install_timeout_seconds": 4})

    done = job_tree.train(python=shared_venv.python, **packages.environ())

    assert done.status == 1 and "ran" not in done.stdout, done.output
    assert f"installing requirements.txt waits for process {locked} (python" in done.stderr
    assert "installing requirements.txt could not begin within 4 s: process " in job_tree.failure
    assert "trainshed_install_timeout_seconds" in job_tree.failure


@pytest.mark.parametrize("on_path", [False, True], ids=["in the code folder", "on PYTHONPATH too"])
def test_modules_named_like_pips_do_not_take_their_place(
    on_path: bool, shared_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    packages.wheel("wanted", "3.0")
    job_tree.code("requirements.txt", "wanted\n")
    for name in ("json", "re", "logging", "typing", "urllib", "ssl", "zipfile", "email"):
        job_tree.code(f"{name}.py", "raise SystemExit('taken for Python's own')\n")
    job_tree.code("run.sh", f"cd / && exec '{shared_venv.python}' -I -c 'import wanted; print(wanted.VERSION)'\n")
    job_tree.configure(hyperparameters={"sagemaker_program": "run.sh"})
    path = {"PYTHONPATH": f"{TOOLKIT}:{job_tree.base / 'code'}"} if on_path else {}

    done = job_tree.train(python=shared_venv.python, **packages.environ(), **path)

    assert (done.status, done.stdout.splitlines()[-1]) == (0, "3.0"), done.output


# --- an environment that this user may not write ---------------------------------------------------------------------


def test_packages_go_elsewhere_where_the_environment_cannot_be_written(
    read_only_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    packages.wheel("elsewhere", "3.0", text="def main(): print('from its script')", script="elsewhere-tool")
    job_tree.code("requirements.txt", "elsewhere\n")
    job_tree.code(
        "run.sh", f"set -e\n'{read_only_venv.python}' -c 'import elsewhere; print(elsewhere.VERSION)'\nelsewhere-tool\n"
    )
    job_tree.configure(hyperparameters={"sagemaker_program": "run.sh"})

    done = job_tree.train(python=read_only_venv.python, powerless=True, PYTHONDONTWRITEBYTECODE="1", **packages.environ())

    assert done.status == 0, done.output
    assert done.stdout.splitlines()[-2:] == ["3.0", "from its script"]
    assert not (read_only_venv.site_packages / "elsewhere.py").exists()


@pytest.mark.spine
def test_a_newer_version_goes_beside_one_that_cannot_be_replaced(
    shared_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    for version in ("1.0", "2.0"):
        packages.wheel("replaced", version)
    packages.wheel("dependent", "1.0", requires="replaced>=1")
    install = [shared_venv.python, "-m", "pip", "install", "-q", "replaced==1.0"]
    subprocess.run(install, env={**os.environ, **packages.environ()}, check=True)
    job_tree.code("requirements.txt", "replaced==2.0\ndependent\n")
    job_tree.code("train.py", "import replaced, dependent; print(replaced.VERSION, dependent.VERSION)")
    job_tree.configure(hyperparameters={})
    folders = [shared_venv.site_packages, *(path for path in shared_venv.site_packages.rglob("*") if path.is_dir())]
    modes = {folder: folder.stat().st_mode for folder in folders}
    for folder in folders:
        folder.chmod(0o555)
    try:
        done = job_tree.train(python=shared_venv.python, powerless=True, **packages.environ())
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode)

    assert (done.status, done.stdout.splitlines()[-1]) == (0, "2.0 1.0"), done.output
    assert "cannot replace what the image has" in done.stderr
    assert shared_venv.run("import replaced; print(replaced.VERSION)") == "1.0"


def test_packages_go_to_the_job_where_the_temporary_folder_is_missing(
    read_only_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    """`docker run --read-only` without any /tmp."""
    packages.wheel("placed")
    job_tree.code("requirements.txt", "placed\n")
    job_tree.code("train.py", "import placed; print(placed.__file__)")
    job_tree.configure(hyperparameters={})
    hide = "import os\nreal = os.access\n"
    hide += "os.access = lambda path, mode: path not in ('/tmp', '/var/tmp') and real(path, mode)"
    (job_tree.tmp / "hide").mkdir()
    (job_tree.tmp / "hide/sitecustomize.py").write_text(hide)
    environ = {"TMPDIR": "", "PYTHONPATH": f"{job_tree.tmp}/hide:{TOOLKIT}", **packages.environ()}

    done = job_tree.train(python=read_only_venv.python, powerless=True, **environ)

    assert done.status == 0, done.output
    assert done.stdout.splitlines()[-1].startswith(f"{job_tree.base}/trainshed-")
    assert not list(job_tree.base.glob("trainshed-*"))


def test_a_package_that_trainshed_stands_in_for_is_not_built(
    shared_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    packages.wheel("beside")
    job_tree.code("requirements.txt", "sagemaker-training==5.1.4\nbeside\n")
    job_tree.code(
        "train.py", "import beside; from sagemaker_training import environment; print(environment.Environment().hosts)"
    )
    job_tree.configure(hyperparameters={})

    done = job_tree.train(python=shared_venv.python, **packages.environ())

    assert (done.status, done.stdout.splitlines()[-1]) == (0, "['algo-1']"), done.output
    assert done.stderr.count("not installing sagemaker-training from requirements.txt") == 1


def test_requirements_that_trainshed_stands_in_for_entirely_need_no_installer(job_tree: Any) -> None:
    job_tree.code("requirements.txt", "# for AWS\nsagemaker_containers\n")
    job_tree.code(
        "train.py", "from sagemaker_containers.beta.framework import training_env; print(training_env().current_host)"
    )
    job_tree.configure(hyperparameters={})

    done = job_tree.train()

    assert (done.status, done.stdout.splitlines()[-1]) == (0, "algo-1"), done.output
    assert "installing requirements.txt" not in done.stderr


def test_requirements_that_cannot_be_read_are_the_installers_to_report(shared_venv: Environment, job_tree: Any) -> None:
    job_tree.code("requirements.txt", "anything\n", mode=0o000)
    job_tree.code("train.py")

    done = job_tree.train(python=shared_venv.python, powerless=True)

    assert done.status == 1 and job_tree.failure.startswith("ProgramError: requirements.txt could not be installed: ")
    assert "Permission denied" in job_tree.failure


# --- hosts that share an environment ---------------------------------------------------------------------------------


def test_two_hosts_on_one_machine_install_one_after_the_other(
    shared_venv: Environment, packages: Packages, tmp_path: Path, job_tree: Any
) -> None:
    packages.wheel("shared_by_two")
    job_tree.code("requirements.txt", "shared_by_two\n")
    job_tree.code("train.py", "import shared_by_two; print('ran')")
    job_tree.configure(hyperparameters={})
    hosts = [
        subprocess.Popen(
            [shared_venv.python, "-m", "trainshed.container.main"],
            env=job_tree.environ(SM_OUTPUT_DIR=str(tmp_path / f"output-{number}"), **packages.environ()),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2)
    ]
    answers = [host.communicate(timeout=300) for host in hosts]

    assert [host.returncode for host in hosts] == [0, 0], answers
    assert [out.splitlines()[-1] for out, _ in answers] == ["ran", "ran"]


def test_waiting_for_another_installation_can_be_interrupted(
    locked: int, shared_venv: Environment, packages: Packages, job_tree: Any
) -> None:
    job_tree.code("requirements.txt", "pip\n")
    job_tree.code("train.py", "print('ran')")
    job_tree.configure(hyperparameters={})
    process = subprocess.Popen(
        [shared_venv.python, "-m", "trainshed.container.main"],
        env=job_tree.environ(**packages.environ()),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while f"waits for process {locked}" not in (line := process.stderr.readline()):
        assert line, "it waits for the other one, and says so"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)

    assert process.returncode == 128 + signal.SIGTERM
    assert job_tree.failure.startswith("Interrupted: stopped by SIGTERM")
