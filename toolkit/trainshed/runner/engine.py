"""The container engine: Docker's or Podman's command line, found, asked, and its errors turned into advice.

The command line rather than an SDK: it is there wherever images are run, it knows the user's contexts and logins, and
`docker run`, Compose and buildx versions that differ do not matter.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.contract.errors import EXIT_UNAVAILABLE, TrainshedError, did_you_mean, shorten

ANSWER_SECONDS = 60.0


class EngineError(TrainshedError):
    """The container engine is missing, does not answer, or refuses."""

    exit_code = EXIT_UNAVAILABLE


@dataclass(frozen=True)
class Engine:
    """A container engine that answers.

    command: what to put before `run`, `inspect` ...
    kind: `docker` or `podman`.
    rootless: root inside is the caller outside, so files come out right without `--user`.
    gpus: whether it can hand GPUs to containers.
    """

    command: tuple[str, ...]
    kind: str = "docker"
    rootless: bool = False
    gpus: bool = False

    def run(self, *arguments: str, timeout: float | None = ANSWER_SECONDS) -> subprocess.CompletedProcess[str]:
        """Runs one command of the engine to its end. Raises EngineError if it cannot be run or gives no answer."""
        return call([*self.command, *arguments], timeout)

    def checked(self, *arguments: str, timeout: float | None = ANSWER_SECONDS) -> str:
        """What a command prints. Raises EngineError with the engine's own reason if it fails."""
        done = self.run(*arguments, timeout=timeout)
        if done.returncode != 0:
            raise EngineError(f"{self.kind} {arguments[0]} failed: {reason(done.stderr)}", hint=hint_for(done.stderr))
        return done.stdout

    def inspect_image(self, image: str) -> dict[str, Any] | None:
        """What the engine knows of an image, None where it has none of this name."""
        done = self.run("image", "inspect", image)
        if done.returncode != 0:
            return None
        try:
            return json.loads(done.stdout)[0]
        except (ValueError, LookupError):
            return None

    def images(self) -> list[str]:
        """Names of the images that are here."""
        done = self.run("image", "ls", "--format", "{{.Repository}}:{{.Tag}}")
        names = [name for name in done.stdout.split() if "<none>" not in name]
        return [name.removesuffix(":latest").removeprefix("localhost/") for name in names]


def find_engine(environ: Mapping[str, str]) -> Engine:
    """The engine that `DOCKER` names (`podman`, `docker --context lab`), else docker, else podman.

    Raises:
        EngineError: there is none, or it does not answer.
    """
    named = shlex.split(environ.get("DOCKER", ""))
    path = environ.get("PATH", os.defpath)
    command = tuple(named) or next(((name,) for name in ("docker", "podman") if shutil.which(name, path=path)), ())
    if not command or shutil.which(command[0], path=path) is None:
        raise EngineError(
            f"there is no {command[0] if command else 'docker'} command here",
            hint="install Docker or Podman (DOCKER names another command), or leave the image out to run processes",
        )
    kind = "podman" if "podman" in os.path.basename(command[0]) else "docker"
    done = call([*command, "info", "--format", "{{json .}}"], ANSWER_SECONDS)
    text = done.stdout if done.returncode == 0 else ""
    try:
        info = json.loads(text)
    except ValueError:
        info = {}
    errors = info.get("ServerErrors") or []
    if not info or errors or (kind == "docker" and not info.get("ServerVersion")):
        said = "\n".join(errors) or done.stderr
        raise EngineError(f"{kind} does not answer: {reason(said)}", hint=hint_for(said))
    if kind == "podman":
        rootless = bool(info.get("host", {}).get("security", {}).get("rootless"))
        return Engine(command, kind, rootless, gpus=True)
    rootless = any("rootless" in str(option) for option in info.get("SecurityOptions") or [])
    gpus = "nvidia" in (info.get("Runtimes") or {}) or shutil.which("nvidia-container-runtime-hook") is not None
    return Engine(command, kind, rootless, gpus)


def call(command: list[str], timeout: float | None) -> subprocess.CompletedProcess[str]:
    """Runs a command, its output as text. Raises EngineError if it cannot be run or takes longer than `timeout`."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"`{shlex.join(command[:3])}` gave no answer in {timeout:g} s", hint="is its daemon well? try it by hand"
        ) from error
    except OSError as error:
        raise EngineError(f"{command[0]} cannot be run: {error.strerror}") from error


def reason(stderr: str) -> str:
    """The line of an engine's error output that says why, without its preamble."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("See '", "Run '", "time=", "errors pretty printing"))]
    line = next((line for line in lines if "rror" in line or "annot" in line), lines[-1] if lines else "no reason given")
    for preamble in ("docker: ", "Error response from daemon: ", "Error: ", "ERROR: "):
        line = line.removeprefix(preamble)
    return shorten(line, 300)


_HINTS = (
    ("permission denied while trying to connect", "let this user use it: sudo usermod -aG docker $USER, then log in again"),
    ("Cannot connect to the Docker daemon", "start it: sudo systemctl start docker, or open Docker Desktop"),
    ("could not select device driver", "install the NVIDIA container toolkit, or run without GPUs: --gpus 0"),
    ("nvidia-container-cli", "the NVIDIA driver of this machine does not work with containers: try nvidia-smi"),
    ('exec: "train"', "the image has no `train`: RUN pip install trainshed in it; `trainshed check-image` says more"),
    ("train: not found", "the image has no `train`: RUN pip install trainshed in it; `trainshed check-image` says more"),
    ("all predefined address pools", "too many networks: docker network prune"),
    ("Minimum memory limit", "raise --memory"),
    ("exceeds", "ask for less: --cpus, --memory"),
    ("exec format error", "the image is for another processor architecture"),
    ("no space left", "free some space: docker system prune"),
    ("No such image", "build or pull it first"),
    ("is already in use", "a container of an earlier run has this name"),
)


def hint_for(text: str) -> str:
    """What to do about an engine's error, "" where we do not know."""
    return next((hint for sign, hint in _HINTS if sign.lower() in text.lower()), "")


def near_image(image: str, engine: Engine) -> str:
    """`did you mean ...?` for an image that is not here."""
    return did_you_mean(image, engine.images())
