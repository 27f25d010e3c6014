"""A new user's first five minutes, played for real: every command and what it printed, as docs/first-five-minutes.md.

    python tests/images/five_minutes.py > docs/first-five-minutes.md

Nothing is typed by hand: the page is what the commands print, with their real times and sizes. `evened` takes out what
differs from run to run; the test compares two pages in that form.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 300.0  # seconds for one command
HEAD = """\
# The first five minutes

Made by `python tests/images/five_minutes.py`, which runs these commands; a test runs them again and compares. Times and
sizes are those of one run on a machine with 2 cores.

Python 3.10 or newer is all that the first half needs; the second half needs Docker.
"""
# What differs from run to run -> one form of it. Times first, the folders that contain them later.
EVENED = (
    (r"\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d-\d{3}", "2026-11-21-10-15-30-123"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", "2026-11-21T10:15:30.123+00:00"),
    (r"\b\d+ min \d\d s\b|\b\d+(\.\d+)? s\b", "1.2 s"),
    (r"\d+(\.\d+)? (B|kB)\b(?=[,)])", "1.0 kB"),
    (r"seconds    training \d+, billable \d+", "seconds    training 12, billable 12"),
    (r"sha256:[0-9a-f]{64}", "sha256:..."),
    (r"sha256 [0-9a-f]{12}", "sha256 0123456789ab"),
)


def evened(text: str) -> str:
    """A page without what differs from run to run."""
    for pattern, form in EVENED:
        text = re.sub(pattern, form, text)
    return text


@dataclass
class Session:
    """A person at a terminal: commands run in one folder, and the page that shows them grows."""

    folder: Path
    environment: dict[str, str]
    page: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Prose of the page."""
        self.page.append(text)

    def run(self, command: str, *, status: int = 0, lines: int | None = None, instead: str = "") -> str:
        """Runs a command to its end and shows it; what it printed.

        Args:
            status: the exit status that it must have.
            lines: only so many of the last lines are shown.
            instead: what is run where the page shows `command`: the same thing, offline.
        Raises:
            AssertionError: another exit status.
        """
        done = subprocess.run(
            ["bash", "-c", instead or command], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT,
        )  # fmt: skip
        text = done.stdout.decode(errors="replace")
        assert done.returncode == status, f"$ {instead or command}\n{text}\nexit status {done.returncode}, not {status}"
        self.show(command, text, lines)
        return text

    def show(self, command: str, text: str, lines: int | None = None) -> None:
        """Puts a command and its output on the page."""
        self.outputs.append(text)
        shown = text.splitlines()
        if lines is not None and len(shown) > lines:
            shown = ["...", *shown[-lines:]]
        block = "\n".join([f"$ {command}", *shown])
        block = block.replace(str(self.folder), "/home/ada/project")
        self.page.append("```\n" + "\n".join(line.rstrip() for line in block.splitlines()) + "\n```")

    def interrupted(self, command: str, when: Callable[[], bool]) -> str:
        """Starts a command, presses Ctrl-C when something is true, shows it; what it printed."""
        process = subprocess.Popen(
            shlex.split(command), cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.running.append(process)
        end = time.monotonic() + LIMIT
        while not when():
            assert process.poll() is None and time.monotonic() < end, f"$ {command}: ended before its time"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT)
        text = output.decode(errors="replace")
        self.show(command, text, 16)
        return text

    def wait_for(self, when: Callable[[], bool]) -> None:
        """Waits for something to be true."""
        end = time.monotonic() + LIMIT
        while not when():
            assert time.monotonic() < end
            time.sleep(0.1)

    def end(self) -> None:
        """Ends what a failed session has left running."""
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()


def play(session: Session, wheel: Path, image: str) -> None:
    """The five minutes. image: one that has trainshed, torch and the ready programs in it."""
    say, run = session.say, session.run

    def epochs(name: str = "*", but: tuple[str, ...] = ()) -> int:
        """How many epochs a run has printed, or all runs but some."""
        logs = [path for path in session.folder.glob(f"runs/{name}/logs/algo-1.log") if path.parts[-3] not in but]
        return sum(path.read_text(errors="replace").count("metric loss=") for path in logs)

    say(
        "## Install, and train something\n\n"
        "`trainshed` is the checkout; `pip install git+ADDRESS` does the same without one."
    )
    # Without --ignore-installed pip would take the trainshed out of the environment that the tests run in.
    pip = f"{sys.executable} -m pip install --quiet --no-deps --no-index --ignore-installed"
    offline = f"{pip} --prefix {session.folder}/.venv {wheel}"
    run("pip install ./trainshed", instead=offline)
    run("trainshed init")
    run("trainshed run job.yaml", lines=12)
    say(
        "Hosts are processes here; nothing else was needed. The job file says what else there is, and `trainshed run "
        "--help` names every flag.\n\n## Stop it, and go on"
    )
    first = tuple(path.name for path in session.folder.glob("runs/*"))
    session.interrupted("trainshed run job.yaml --hp epochs=100000", lambda: epochs(but=first) >= 3)
    run("trainshed status")
    say("What the script had saved is in the run's `checkpoints`. The same run goes on from there:")
    name = run("trainshed resume --detach").strip()
    before = epochs(name)
    session.wait_for(lambda: epochs(name) > before)
    run("trainshed ps")
    run("trainshed logs --last 3")
    run("trainshed stop")
    run(f"trainshed clone {name}")
    run(f"trainshed rm {name}")
    say("## The same in a container\n\n`trainshed-cpu` is the image of `Dockerfile.cpu`; any with trainshed in it does.")

    def with_image(command: str, **options: object) -> str:
        return run(command, instead=command.replace("trainshed-cpu", image), **options)  # type: ignore[arg-type]

    with_image("trainshed run job.yaml --image trainshed-cpu", lines=12)
    name = with_image("trainshed run job.yaml --image trainshed-cpu --instances 2 --hp epochs=100000 --detach").strip()
    session.wait_for(lambda: epochs(name) >= 3)
    run("trainshed stop")
    run("trainshed resume --hp epochs=1", lines=10)
    run("trainshed status")
    run("trainshed ps --all")
    say("And without any file at all, ten seconds of training:")
    with_image("docker run --rm --network none trainshed-cpu demo", lines=12)


def build_wheel(folder: Path, image: str) -> Path:
    """A wheel of this checkout, made in the image, which has what that takes, without a network."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "toolkit", source / "toolkit", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = "cp -r /work/source /tmp/s && python -m pip wheel -q --no-deps --no-index --no-build-isolation -w /work /tmp/s"
    command = ["docker", "run", "--rm", "--network", "none", "--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"]
    subprocess.run([*command, "--volume", f"{folder}:/work", image, "sh", "-c", build], check=True, stdin=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def page(image: str) -> str:
    """The whole page."""
    with tempfile.TemporaryDirectory(prefix="trainshed-test-") as name:
        folder = Path(name)
        os.chmod(folder, 0o755)
        project = folder / "project"
        project.mkdir()
        wheel = build_wheel(folder, image)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SM_", "TRAINSHED_", "PYTHONPATH"))}
        site = project / f".venv/lib/python3.{sys.version_info[1]}/site-packages"
        environment = {
            **kept,
            "PATH": f"{project}/.venv/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(site),
            "XDG_STATE_HOME": str(folder / "state"),
            "DOCKER_CLI_HINTS": "false",
        }
        session = Session(project, environment)
        try:
            play(session, wheel, image)
        finally:
            session.end()
        text = "\n\n".join([HEAD.rstrip("\n"), *session.page]).replace(image, "trainshed-cpu")
        return text + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    from support import image_build

    print(page(image_build.build_cpu()), end="")
