"""What `trainshed check-image` makes of an image's configuration and of what a look around inside finds."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.runner_project import Project
from trainshed.base.check import Check
from trainshed.places.check_image.check import check_entrypoint, examine
from trainshed.places.check_image.image_config import check_config
from trainshed.places.check_image.image_probe import PROBE, check_probe, parse

GOOD: dict[str, Any] = {"Config": {"Cmd": ["train"], "Env": ["PYTHONUNBUFFERED=1"], "StopSignal": "SIGTERM"}, "Size": 10**9}
FACTS = {
    "train": "/usr/bin/train",
    "bash": "/bin/bash",
    "python": "/usr/bin/python3",
    "python3": "/usr/bin/python3",
    "python_alias": "/usr/bin/python",
    "version": "3.12.1",
    "pip": "pip 25.0",
    "trainshed": "0.2.0",
    "uid": "1000",
    "shm": "2097152",
}


def config(**changes: object) -> dict[str, Check]:
    known = {**GOOD, "Config": {**GOOD["Config"], **changes}}
    return {check.name: check for check in check_config(known)}


def probe(**changes: str) -> dict[str, Check]:
    return {check.name: check for check in check_probe({**FACTS, **changes}, GOOD)}


def test_a_good_image_is_good() -> None:
    assert {check.level for check in [*config().values(), *probe().values()]} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "name", "part"),
    [
        ({"Entrypoint": ["/bin/sh", "-c", "run.sh"]}, "ENTRYPOINT", "shell form"),
        ({"Entrypoint": ["/usr/bin/tini"]}, "ENTRYPOINT", "may interpret the command's options"),
        ({"Cmd": ["bash"]}, "CMD", "bash: SDK v3's local mode passes no command"),
        ({"Cmd": None}, "CMD", "none"),
        ({"Cmd": ["/bin/sh", "-c", "train"]}, "CMD", "shell form (train): the shell is process 1"),
        ({"Cmd": ["/bin/bash", "-c", "cd /app && train"]}, "CMD", "does not forward stop signals"),
        ({"Cmd": ["/bin/sh", "-c", "python serve.py"]}, "CMD", "python serve.py: SDK v3's local mode passes no command"),
        ({"StopSignal": "SIGKILL"}, "STOPSIGNAL", "does not get a signal"),
        ({"Volumes": {"/opt/ml/model": {}}}, "VOLUME", "/opt/ml/model"),
        ({"Env": ["PATH=/bin"]}, "PYTHONUNBUFFERED", "not set"),
        ({"Env": ["CUDA_VERSION=12.8", "PYTHONUNBUFFERED=1"]}, "NVIDIA", "NVIDIA_VISIBLE_DEVICES"),
        (
            {"Env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility", "PYTHONUNBUFFERED=1"]},
            "NVIDIA",
            "no CUDA",
        ),
    ],
)
def test_a_configuration_that_gets_in_the_way_is_warned_of(changes: dict[str, object], name: str, part: str) -> None:
    check = config(**changes)[name]
    assert check.level == "warn"
    assert part in check.message
    assert check.fix


@pytest.mark.parametrize(
    "changes",
    [
        {"Entrypoint": ["tini", "--"]},
        {"Entrypoint": ["train"], "Cmd": None},
        {"Cmd": ["/bin/sh", "-c", "exec train"]},
        {"StopSignal": "15"},
        {"StopSignal": ""},
        {"Env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility", "PYTHONUNBUFFERED=1"]},
    ],
)
def test_a_configuration_that_is_unusual_and_good_is_not(changes: dict[str, object]) -> None:
    assert {check.level for check in config(**changes).values()} == {"ok"}


def test_a_very_large_image_is_warned_of() -> None:
    assert [check.level for check in check_config({**GOOD, "Size": 20 * 10**9}) if check.name == "size"] == ["warn"]


@pytest.mark.parametrize(
    ("changes", "name", "level"),
    [
        ({"train": ""}, "train", "fail"),
        ({"train_is_foreign": "yes"}, "train", "warn"),
        ({"python": ""}, "python", "fail"),
        ({"version": "3.9.2"}, "python", "fail"),
        ({"python_alias": ""}, "python", "warn"),
        ({"pip": ""}, "pip", "warn"),
        ({"bash": ""}, "bash", "warn"),
        ({"trainshed": ""}, "trainshed", "warn"),
        ({"trainshed": "", "train": ""}, "trainshed", "fail"),
        ({"baked": "/opt/ml/model/x.bin"}, "/opt/ml", "warn"),
        ({"shm": "65536"}, "shm", "warn"),
        ({"shm": ""}, "shm", "warn"),
    ],
)
def test_what_is_missing_inside_is_said_with_its_fix(changes: dict[str, str], name: str, level: str) -> None:
    check = probe(**changes)[name]
    assert check.level == level
    assert check.fix


def test_the_probe_runs_in_any_shell_and_prints_facts() -> None:
    done = subprocess.run(["/bin/sh", "-c", PROBE], capture_output=True, text=True, timeout=60, check=True)
    facts = parse(done.stdout)
    assert facts["done"] == "yes"
    assert facts["bash"]
    assert facts["uid"].isdigit()


@pytest.mark.parametrize("first", ["foreign", "own"])
def test_the_probe_tells_a_foreign_train_from_trainsheds(first: str, tmp_path: Path) -> None:
    scripts = {
        "foreign": "#!/bin/sh\necho theirs\n",
        "own": "#!/usr/bin/python3\nfrom trainshed.container.main import command\n",
    }
    for folder, script in scripts.items():
        path = tmp_path / folder / "train"
        path.parent.mkdir()
        path.write_text(script)
        path.chmod(0o755)
    second = "own" if first == "foreign" else "foreign"
    path = f"{tmp_path}/{first}:{tmp_path}/{second}:/usr/bin:/bin"

    done = subprocess.run(
        ["/bin/sh", "-c", PROBE], env={"PATH": path}, capture_output=True, text=True, timeout=60, check=True
    )
    facts = parse(done.stdout)
    check = probe(**{name: facts.get(name, "") for name in ("train", "train_is_foreign", "own_train")})["train"]

    assert facts["train"] == f"{tmp_path}/{first}/train" and facts["own_train"] == f"{tmp_path}/own/train"
    if first == "own":
        assert check.level == "ok"
    else:
        assert check.level == "warn" and f"is not trainshed's; trainshed's is {tmp_path}/own/train" in check.message


@pytest.mark.parametrize("own", [False, True])
def test_an_entrypoint_that_is_another_program_named_train_is_told(own: bool, tmp_path: Path) -> None:
    entry = tmp_path / "program/train"
    entry.parent.mkdir()
    entry.write_text("#!/usr/bin/env python3\nfrom trainshed.container.main import command\n" if own else "theirs\n")
    entry.chmod(0o755)

    done = subprocess.run(["/bin/sh", "-c", PROBE, "sh", str(entry)], capture_output=True, text=True, check=True)
    facts = parse(done.stdout)
    found = facts.get("foreign_entrypoint", "")
    check = probe(foreign_entrypoint=found)["train"]

    if own:
        assert not found and check.level == "ok"
    else:
        assert check.level == "fail" and f"{entry}, which ENTRYPOINT starts, is not trainshed's" in check.message
        assert probe(foreign_entrypoint=found, own_train="/usr/bin/train")["train"].fix == 'ENTRYPOINT ["/usr/bin/train"]'


class WithoutShell:
    """An engine that cannot start /bin/sh in the image, as it is in an image that has none."""

    kind = "docker"

    def __init__(self, entrypoint: list[str]) -> None:
        self.known = {**GOOD, "Config": {**GOOD["Config"], "Entrypoint": entrypoint}}

    def inspect_image(self, _image: str) -> dict[str, Any]:
        return self.known

    def run(self, *arguments: str, **_options: Any) -> Any:
        inside = "doctor" in arguments
        return SimpleNamespace(returncode=0 if inside else 127, stdout='{"checks": []}' if inside else "", stderr="no sh")


def test_an_image_without_a_shell_is_told_how_it_starts_nevertheless() -> None:
    said: list[str] = []
    for entrypoint, level in (([], "fail"), (["python3", "-I", "-m", "trainshed"], "ok"), (["/usr/bin/train"], "fail")):
        engine: Any = WithoutShell(entrypoint)
        (check,) = [one for one in examine("mine", engine, said.append) if one.name == "shell"]
        assert check.level == level and (level == "ok" or '"-I", "-m", "trainshed"' in check.fix)
    assert "asking mine to run a command" in said and "looking around inside" in said


def test_an_image_whose_entrypoint_is_train_is_told_that_nothing_else_runs(engine_that_fails: Any) -> None:
    check = check_entrypoint("mine", engine_that_fails, {"Config": {"Entrypoint": ["/usr/local/bin/train"]}})

    assert check.level == "warn" and "ENTRYPOINT is `train`" in check.message


@pytest.fixture
def engine_that_fails() -> Any:
    """An engine that must not be asked."""
    return SimpleNamespace(kind="docker")


def test_one_image_has_to_be_named(project: Project) -> None:
    for arguments in ([], ["a", "b"], ["a", "--jsn"]):
        done = project.command("check-image", *arguments)
        assert done.status == 2
        assert len(done.stderr.splitlines()) == 1
