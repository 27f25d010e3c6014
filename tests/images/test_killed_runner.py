"""`kill -9` of the runner in each phase of a job in containers: `ps`, `stop` and `rm` find the run, and leave nothing of it.

The runner is halted before it is killed, and looked at again, so that the phase is the one that is meant.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import image_build
from support.docker_cli import docker as docker_cli
from support.projects import command, left_behind, run, start

pytestmark = [pytest.mark.docker, pytest.mark.safety]
LIMIT = 600.0  # seconds after which something hangs

DEAF = """\
import os, signal, time
open(os.environ["SM_MODEL_DIR"] + "/begun-" + os.environ["SM_CURRENT_HOST"], "w").close()
open("/scratch/" + os.environ["SM_CURRENT_HOST"], "w").close()
signal.signal(signal.SIGTERM, lambda *_: print("deaf", flush=True))
print("running", flush=True)
while True:
    time.sleep(0.05)
"""
# Of nothing but zeros, so that it is quickly made, and packing it takes a while.
LARGE = """\
import os
with open(os.environ["SM_MODEL_DIR"] + "/zeros", "wb") as file:
    file.truncate(1 << 30)
"""


@pytest.fixture(scope="module")
def image(docker: str, cpu_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image, with a volume that containers make for themselves, writable for all."""
    name = f"trainshed-test-volume-{docker[:12]}"
    context = tmp_path_factory.mktemp("image")
    (context / "Dockerfile").write_text(f"FROM {cpu_image}\nRUN mkdir -m 777 /scratch\nVOLUME /scratch\n")
    image_build.build(context, name, arguments={}, labels={})
    yield name
    docker_cli("image", "rm", "--force", name, check=False)


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with scripts that have to be killed; index of runs and temporary files are its own."""
    for name in ("state", "tmp"):
        (project / name).mkdir()
        (project / name).chmod(0o777)
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "state"))
    monkeypatch.setenv("TMPDIR", str(project / "tmp"))
    (project / "src/deaf.py").write_text(DEAF)
    (project / "src/large.py").write_text(LARGE)
    return project


def wait_until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"{what}: not in {LIMIT:g} s"
        time.sleep(0.02)


def phase(folder: Path) -> str:
    try:
        return str(json.loads((folder / "status.json").read_text())["SecondaryStatus"])
    except FileNotFoundError:
        return ""


def runs(project: Path) -> set[Path]:
    return set(project.glob("runs/*"))


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LIMIT)


def caught(project: Path, holds: Callable[[Path], object], *arguments: str) -> Path:
    """Starts a run and kills its runner while something holds of its folder; the folder. One that was too quick is left."""
    for _ in range(20):
        known = runs(project)
        process = start(project, "run", *arguments)

        def now(known: set[Path] = known) -> bool:
            made = runs(project) - known
            return bool(made) and bool(holds(made.pop()))

        wait_until(lambda process=process, now=now: now() or process.poll() is not None, "the runner gets there")
        process.send_signal(signal.SIGSTOP)
        halted = process.poll() is None and now()
        kill(process)
        (folder,) = runs(project) - known
        if halted:
            return folder
        run(project, "rm", "--force", folder.name)
    raise AssertionError("no run could be caught")


def containers(folder: Path) -> list[str]:
    """Ids of a run's containers."""
    return docker_cli("ps", "--all", "--quiet", "--filter", f"label=org.trainshed.folder={folder}").stdout.split()


def volumes(folder: Path) -> list[str]:
    """Names of the volumes that a run's containers have made."""
    found = []
    for one in containers(folder):
        for mount in json.loads(docker_cli("inspect", one).stdout)[0]["Mounts"]:
            found += [mount["Name"]] if mount["Type"] == "volume" else []
    return found


def processes_that_name(text: str) -> list[str]:
    """Command lines on this machine that have a text in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found


def assert_cleared(project: Path, folder: Path, wanted: str, *how: str) -> dict[str, object]:
    """`ps`, `stop` and `rm` know the run, and then nothing is left of it; its status after `stop`."""
    made = volumes(folder)
    listed = command(project, "ps")
    assert f"{folder.name}  Lost    runner killed while {wanted}" in listed, listed
    status, _, stderr = run(project, "stop", *how, folder.name)
    assert status == 0, stderr
    assert containers(folder) == []
    after = json.loads(command(project, "status", folder.name, "--json"))
    assert after["TrainingJobStatus"] in ("Failed", "Completed", "Stopped")
    status, _, stderr = run(project, "rm", folder.name)
    assert status == 0, stderr
    assert not folder.exists()
    assert left_behind(project) == []
    assert [name for name in made if docker_cli("volume", "inspect", name, check=False).returncode == 0] == []
    wait_until(lambda: not processes_that_name(folder.name), "clients of the engine end with their containers")
    assert os.listdir(project / "tmp") == []
    assert folder.name not in command(project, "ps", "--all")
    return after


def test_killed_while_containers_are_being_made(here: Path, image: str) -> None:
    folder = caught(
        here,
        lambda folder: phase(folder) == "Starting" and 0 < len(containers(folder)) < 4,
        *("src/deaf.py", "--image", image, "--instances", "4"),
    )
    after = assert_cleared(here, folder, "Starting")
    assert after["TrainingJobStatus"] == "Failed"


def test_killed_before_there_is_any_container(here: Path, image: str) -> None:
    for number in range(200):  # copying them for each host takes a while
        (here / f"src/part{number}.py").touch()
    folder = caught(
        here,
        lambda folder: phase(folder) == "Starting" and not containers(folder),
        *("src/deaf.py", "--image", image, "--instances", "20"),
    )
    assert_cleared(here, folder, "Starting")


@pytest.mark.parametrize("how", [(), ("--kill",)])
def test_killed_while_training(here: Path, image: str, how: tuple[str, ...]) -> None:
    def both_run(folder: Path) -> bool:
        return phase(folder) == "Training" and len(list(folder.glob("model/begun-*"))) == 2

    folder = caught(here, both_run, "src/deaf.py", "--image", image, "--instances", "2", "--grace", "0.5")
    assert len(volumes(folder)) == 2
    (listed,) = [line for line in command(here, "ps").splitlines() if line.startswith(folder.name)]
    assert "algo-1, algo-2 still run" in listed
    status, _, stderr = run(here, "stop", *how, folder.name)  # once more below: it is over by then
    assert status == 0, stderr
    assert (folder / "output/model.tar.gz").is_file(), "what they made was collected"
    assert containers(folder) == [] and left_behind(here) == []
    status, _, stderr = run(here, "rm", folder.name)
    assert status == 0, stderr
    assert not folder.exists() and os.listdir(here / "tmp") == []
    wait_until(lambda: not processes_that_name(folder.name), "clients of the engine end with their containers")


@pytest.mark.parametrize(("wanted", "number"), [("Stopping", signal.SIGTERM), ("Interrupted", signal.SIGUSR2)])
def test_killed_while_deaf_scripts_have_their_grace(here: Path, image: str, wanted: str, number: signal.Signals) -> None:
    flags = ["--image", image, "--instances", "2", "--grace", "600", "--spot-interrupt-after", "1h"]
    process = start(here, "run", "src/deaf.py", *flags)
    wait_until(lambda: len(list(here.glob("runs/*/model/begun-*"))) == 2 or process.poll() is not None, "both run")
    (folder,) = runs(here)
    wait_until(lambda: phase(folder) == "Training" or process.poll() is not None, "the runner has seen that")
    assert process.poll() is None, process.communicate()
    process.send_signal(number)
    wait_until(lambda: phase(folder) == wanted or process.poll() is not None, wanted)
    kill(process)
    after = assert_cleared(here, folder, wanted, "--kill")
    assert after["TrainingJobStatus"] == "Stopped"


def test_killed_while_results_are_collected(here: Path, image: str) -> None:
    folder = caught(here, lambda folder: phase(folder) == "Uploading", "src/large.py", "--image", image)
    after = assert_cleared(here, folder, "Uploading")
    assert after["TrainingJobStatus"] == "Completed", "the host had; only its results were not collected"


@pytest.mark.spine
def test_removed_at_once_without_being_stopped_first(here: Path, image: str) -> None:
    folder = caught(
        here,
        lambda folder: phase(folder) == "Training" and len(list(folder.glob("model/begun-*"))) == 2,
        *("src/deaf.py", "--image", image, "--instances", "2"),
    )
    made = volumes(folder)
    status, _, stderr = run(here, "rm", folder.name)
    assert status == 0, stderr
    assert not folder.exists() and left_behind(here) == []
    assert [name for name in made if docker_cli("volume", "inspect", name, check=False).returncode == 0] == []
    wait_until(lambda: not processes_that_name(folder.name), "clients of the engine end with their containers")
    assert os.listdir(here / "tmp") == []


def test_what_a_clients_command_makes_after_its_runner_died_goes_too(here: Path, image: str) -> None:
    """The client of the engine outlives the runner, and asks for a container only when `rm` is looking already."""
    slow = here / "slow"
    slow.write_text('#!/bin/sh\nif [ "$1" = create ]; then sleep 3; fi\nexec docker "$@"\n')
    slow.chmod(0o755)
    os.environ["DOCKER"] = str(slow)
    try:
        folder = caught(
            here,
            lambda folder: any(f"{slow} create" in command for command in processes_that_name(folder.name)),
            *("src/deaf.py", "--image", image),
        )
        assert containers(folder) == []
        status, _, stderr = run(here, "rm", folder.name)
    finally:
        del os.environ["DOCKER"]
    assert status == 0, stderr
    wait_until(lambda: not processes_that_name(folder.name), "the client ends")
    assert containers(folder) == [] and left_behind(here) == []
