"""The container engine: Docker's or Podman's command line, found, asked, and its errors turned into advice.

The command line rather than an SDK: it is there wherever images are run, it knows the user's contexts and logins, and
`docker run`, Compose and buildx versions that differ do not matter.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.base.errors import EXIT_UNAVAILABLE, TrainshedError, did_you_mean, shorten
from trainshed.base.secrets import MASK

ANSWER_SECONDS = 60.0
_NETWORKS = ("tcp://", "ssh://", "http://", "https://")


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
    address: where its daemon is, as `DOCKER_HOST` would say it; `podman` where that needs none.
    memory: bytes of the machine that it is on, 0 where it does not say.
    """

    command: tuple[str, ...]
    kind: str = "docker"
    rootless: bool = False
    gpus: bool = False
    address: str = ""
    memory: int = 0

    @property
    def elsewhere(self) -> bool:
        """Tells whether it is reached over a network: then it cannot mount folders of this machine."""
        return self.address.startswith(_NETWORKS)

    @property
    def place(self) -> str:
        """Its address for people and records: without a password."""
        return _without_password(self.address)

    def run(
        self, *arguments: str, timeout: float | None = ANSWER_SECONDS, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs one command of the engine to its end. Raises EngineError if it cannot be run or gives no answer.

        Args:
            variables: of the command's environment, beside ours.
        """
        return call([*self.command, *arguments], timeout, variables)

    def checked(
        self, *arguments: str, timeout: float | None = ANSWER_SECONDS, variables: Mapping[str, str] | None = None
    ) -> str:
        """Returns what a command prints. Raises EngineError with the engine's own reason if it fails."""
        done = self.run(*arguments, timeout=timeout, variables=variables)
        if done.returncode != 0:
            raise EngineError(f"{self.kind} {arguments[0]} failed: {reason(done.stderr)}", hint=hint_for(done.stderr))
        return done.stdout

    def inspect_image(self, image: str) -> dict[str, Any] | None:
        """Returns what the engine knows of an image, None where it has none of this name."""
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
            f"{command[0] if command else 'docker'} is not installed",
            hint="install Docker or Podman (DOCKER names another command), or leave the image out to run processes",
        )
    kind = "podman" if "podman" in os.path.basename(command[0]) else "docker"
    address = _address(command, kind, environ)
    done = call([*command, "info", "--format", "{{json .}}"], ANSWER_SECONDS)
    text = done.stdout if done.returncode == 0 else ""
    try:
        info = json.loads(text)
    except ValueError:
        info = {}
    errors = info.get("ServerErrors") or []
    if not info or errors or (kind == "docker" and not info.get("ServerVersion")):
        said = "\n".join(errors) or done.stderr
        hint = hint_for(said)
        if address.startswith(_NETWORKS):
            hint = f"check that {_without_password(address)} is the right address and that you may use it"
        raise EngineError(f"{kind} does not answer: {reason(said)}", hint=hint)
    if kind == "podman":
        host = info.get("host", {})
        rootless = bool(host.get("security", {}).get("rootless"))
        if host.get("serviceIsRemote") and address == kind:
            address = str((host.get("remoteSocket") or {}).get("path") or kind)
        return Engine(command, kind, rootless, True, address, _bytes(host.get("memTotal")))
    rootless = any("rootless" in str(option) for option in info.get("SecurityOptions") or [])
    gpus = "nvidia" in (info.get("Runtimes") or {}) or shutil.which("nvidia-container-runtime-hook") is not None
    return Engine(command, kind, rootless, gpus, address, _bytes(info.get("MemTotal")))


def _address(command: tuple[str, ...], kind: str, environ: Mapping[str, str]) -> str:
    """Where the daemon is: the command's own options come before variables, these before the chosen context."""
    words = [part for word in command for part in ([word] if not word.startswith("--") else word.split("=", 1))]

    def option(*names: str) -> str:
        return next((words[at + 1] for at, word in enumerate(words[:-1]) if word in names), "")

    if kind == "podman":
        return option("--url") or environ.get("CONTAINER_HOST") or kind
    host, context = option("-H", "--host"), option("-c", "--context")
    if host or (environ.get("DOCKER_HOST") and not context):
        return host or environ["DOCKER_HOST"]
    named = [context] if context else []
    done = call([command[0], "context", "inspect", *named, "--format", "{{.Endpoints.docker.Host}}"], ANSWER_SECONDS)
    return done.stdout.strip() if done.returncode == 0 and done.stdout.strip() else "unix:///var/run/docker.sock"


def _without_password(address: str) -> str:
    return re.sub(r"(://[^/@:]*):[^/@]*@", rf"\1:{MASK}@", address)


def _bytes(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def call(
    command: list[str], timeout: float | None, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command, its output as text. Raises EngineError if it cannot be run or takes longer than `timeout`."""
    try:
        return subprocess.run(
            command,
            env={**os.environ, **variables} if variables else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"`{shlex.join(command[:3])}` did not answer within {timeout:g} s",
            hint="check that its daemon runs; try the command by hand",
        ) from error
    except OSError as error:
        raise EngineError(f"cannot run {command[0]}: {error.strerror}") from error


def reason(stderr: str) -> str:
    """The line of an engine's error output that says why, without its preamble."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("See '", "Run '", "time=", "errors pretty printing"))]
    line = next((line for line in lines if "rror" in line or "annot" in line), lines[-1] if lines else "no reason given")
    for preamble in ("docker: ", "Error response from daemon: ", "Error: ", "ERROR: "):
        line = line.removeprefix(preamble)
    return shorten(line, 300)


_NO_SHELL = (
    'the image has no /bin/sh, which `train` needs: set ENTRYPOINT ["python3", "-I", "-m", "trainshed"] in it; '
    "`trainshed check-image` says more"
)
_HINTS = (
    (
        "permission denied while trying to connect",
        "add this user to the group docker: sudo usermod -aG docker $USER, then log in again",
    ),
    ("Cannot connect to the Docker daemon", "start it: sudo systemctl start docker, or open Docker Desktop"),
    ("could not select device driver", "install the NVIDIA container toolkit, or run without GPUs: --gpus 0"),
    ("nvidia-container-cli", "the NVIDIA driver of this machine does not work with containers: try nvidia-smi"),
    ('exec: "train"', "the image has no `train`: RUN pip install trainshed in it; `trainshed check-image` says more"),
    ("train: not found", "the image has no `train`: RUN pip install trainshed in it; `trainshed check-image` says more"),
    ("/train: no such file or directory", _NO_SHELL),
    ("all predefined address pools", "too many networks exist: docker network prune"),
    ("Minimum memory limit", "raise --memory"),
    ("exceeds", "ask for less: --cpus, --memory"),
    ("exec format error", "the image is for another processor architecture"),
    ("no space left", "free some space: docker system prune"),
    ("No such image", "build or pull it first"),
    ("is already in use", "a container of an earlier run has this name"),
)
# What engines say of a folder that is here and that they do not see: their daemon is in a virtual machine, in another
# container, or has a file system of its own for another reason.
_UNSEEN = ("source path does not exist", "mounts denied", "statfs /", "no such file or directory")


def hint_for(text: str) -> str:
    """Says what to do about an engine's error, "" where we do not know."""
    return next((hint for sign, hint in _HINTS if sign.lower() in text.lower()), "")


def sees_nothing(text: str) -> bool:
    """Returns whether an engine's error says that it does not see a folder that it is to mount."""
    return any(sign in text.lower() for sign in _UNSEEN)


def identity_of(image: str, known: Mapping[str, Any]) -> dict[str, str]:
    """`name`, `id` and, of an image from a registry, `digest` (`REPOSITORY@sha256:...`), as the engine says them."""
    digests = known.get("RepoDigests")
    found = {"name": image, "id": known.get("Id"), "digest": next(iter(digests), "") if isinstance(digests, list) else ""}
    return {name: value for name, value in found.items() if isinstance(value, str) and value}


def near_image(image: str, engine: Engine) -> str:
    """`did you mean ...?` for an image that is not here."""
    return did_you_mean(image, engine.images())
