"""A docker-compose for the SDKs' local modes: this machine's, if it has version 2 or newer, else that of Debian 13.

Version 1, which Debian 12 has, is of no use: it may report 0 for a container that failed (its log printer ends as soon as it
has seen the container die, without the exit status, if no line of output arrives within a tenth of a second).
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from pathlib import Path

from clients.venvs import FOLDER

RELEASE = "trixie"  # Debian 13, whose package 2.26 runs on Debian 12, too
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


class ComposeError(Exception):
    """There is no usable compose here, and none could be had."""


def folder() -> str:
    """What PATH needs in front so that the SDKs find a compose of version 2; "" where they find one anyway.

    Raises:
        ComposeError: there is none.
    """
    if "v2" in _says(["docker", "compose", "version"]) or _new(_says(["docker-compose", "version"])):
        return ""
    place = FOLDER / "compose"
    place.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "compose.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _new(_says([str(place / "docker-compose"), "version"])):
            _fetch(place)
    return str(place)


def _says(command: list[str]) -> str:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _new(text: str) -> bool:
    found = re.search(r"version v?(\d+)\.", text)
    return found is not None and int(found.group(1)) >= 2


def _fetch(place: Path) -> None:
    """Unpacks Debian's package into a private folder; nothing is installed."""
    targets = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)"], place).splitlines()
    archive = next((line.split()[0] for line in targets if "security" not in line and "updates" not in line), "")
    if not archive:
        raise ComposeError("the SDKs' local mode needs docker compose 2 or newer: install it")
    work = place / "apt"
    (work / "lists/partial").mkdir(parents=True, exist_ok=True)
    (work / "sources.list").write_text(f"deb [signed-by={KEYS}] {archive} {RELEASE} main\n")
    apt = ["apt-get", "--quiet=2"]
    for name, value in {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "",
    }.items():
        apt += ["--option", f"{name}={value}"]
    _run([*apt, "update"], work)
    _run([*apt, "download", "docker-compose"], work)
    (package,) = work.glob("docker-compose_*.deb")
    _run(["dpkg-deb", "--extract", str(package), str(work / "unpacked")], work)
    program = next((work / "unpacked").rglob("cli-plugins/docker-compose"))
    program.replace(place / "docker-compose")
    shutil.rmtree(work)


def _run(command: list[str], cwd: Path) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise ComposeError(f"{command[0]}: {error.strerror}; install docker compose 2 or newer") from error
    if done.returncode != 0:
        raise ComposeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
