"""A project folder whose jobs run in containers, and `trainshed` as its owner, who is not root, would start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.command_line import answer
from support.docker_cli import docker as docker_cli
from support.paths import TOOLKIT as TOOLKIT_FOLDER

TOOLKIT = str(TOOLKIT_FOLDER)
LIMIT = 600.0  # seconds; a hang must not hang the tests
OWNER = 12345  # stands for a person who is not root where the tests themselves run as root
TRAIN = """\
import os
print("metric loss=0.5 step=1")
print(os.getuid(), sorted(os.listdir(os.environ["SM_CHANNEL_TRAIN"])), os.environ["SM_CURRENT_HOST"])
for name in ("SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR", "SM_CHECKPOINT_DIR"):
    open(os.environ[name] + "/" + os.environ["SM_CURRENT_HOST"], "w").close()
try:
    open(os.environ["SM_CHANNEL_TRAIN"] + "/new", "w")
except OSError as error:
    print("data:", error.strerror)
print("shm", os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize)
"""
TALK = """\
import os, socket
if os.environ["SM_CURRENT_HOST"] == "algo-1":
    server = socket.create_server(("", 7000))
    peer, _ = server.accept()
    print("heard", peer.recv(99).decode())
else:
    while True:  # until the other one listens
        try:
            peer = socket.create_connection(("algo-1", 7000))
            break
        except OSError:
            import time; time.sleep(0.1)
    peer.sendall(socket.gethostname().encode())
"""
NAP = """\
import os, signal, sys, time
def stop(*_):
    open(os.environ["SM_MODEL_DIR"] + "/saved-" + os.environ["SM_CURRENT_HOST"], "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("napping", flush=True)
while True:
    time.sleep(0.1)
"""


def write_project(folder: Path) -> None:
    """Code and data."""
    for name, text in {"src/train.py": TRAIN, "src/talk.py": TALK, "src/nap.py": NAP, "data/a.csv": "1\n"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def environ(**environment: str) -> dict[str, str]:
    """The variables of a command of the owner's."""
    sudo = {"SUDO_UID": str(OWNER), "SUDO_GID": str(OWNER)} if os.getuid() == 0 else {}
    return {**os.environ, "PYTHONPATH": TOOLKIT, **sudo, **environment}


def start(project: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trainshed.cli", *arguments],
        cwd=project,
        env=environ(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(project: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr)."""
    process = start(project, *arguments, **environment)
    stdout, stderr = process.communicate(timeout=LIMIT)
    return process.returncode, stdout, stderr


def command(project: Path, *arguments: str) -> str:
    """What a command prints that only reads, called in this process; it succeeds."""
    done = answer(arguments, project, environ())
    assert done.status == 0, done.output
    return done.stdout


def only_run(project: Path) -> Path:
    (found,) = (project / "runs").iterdir()
    return found


def left_behind(project: Path) -> list[str]:
    """Containers and networks of this project's runs."""
    return _labelled(project, ["ps", "--all"], "{{.ID}}") + _labelled(project, ["network", "ls"], "{{.ID}}")


def _labelled(project: Path, listing: list[str], form: str) -> list[str]:
    columns = f'{{{{.Label "org.trainshed.folder"}}}} {form}'
    lines = docker_cli(*listing, "--filter", "label=org.trainshed.run", "--format", columns).stdout.splitlines()
    return [line.split()[1] for line in lines if line.startswith(f"{project}/")]


def remove_left(project: Path) -> None:
    """Removes containers and networks that a failed test has left."""
    for listing, remove in ((["ps", "--all"], ["rm", "--force", "--volumes"]), (["network", "ls"], ["network", "rm"])):
        if left := _labelled(project, listing, "{{.ID}}"):
            docker_cli(*remove, *left, check=False)
