"""Installs what the user's code needs: requirements.txt for every kind of program, the code itself if it is a package."""

from __future__ import annotations

import os
import sys

from trainshed.contract.errors import ProgramError, shorten
from trainshed.contract.secrets import mask_text

from ..interrupted import Interrupted
from ..supervisor.loop import run
from ..supervisor.plan import LaunchPlan, ProcessSpec, StartError
from ..supervisor.spawn import find_executable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .locate import Program

# pip's settings that say where packages come from. uv reads none of them, so with any of these pip does the work.
_INDEX_VARIABLES = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_NO_INDEX",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
    "PIP_PROXY",
)
_INSTALL_GRACE = 5.0


def install(program: Program, seconds: float, environ: Mapping[str, str], say: Callable[[str], None]) -> Program:
    """Installs the program's requirements; returns the program, with the folder for PYTHONPATH where one was needed.

    Raises:
        ProgramError: the installation failed or took longer than `seconds`.
        Interrupted: a stop signal came meanwhile.
    """
    arguments = ["-r", program.requirements] if program.requirements else []
    if program.kind == "package":
        arguments.append(program.folder)
    if not arguments:
        return program
    target = "" if _environment_is_writable() else _own_packages_folder()
    command = _installer(environ) + (["--prefix", target] if target else []) + arguments
    what = " and ".join(
        name for name in (program.requirements and "requirements.txt", program.kind == "package" and "the package") if name
    )
    say(f"installing {what} with {'uv' if 'uv' in os.path.basename(command[0]) else 'pip'}")
    spec = ProcessSpec(
        argv=tuple(command),
        env={**environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"},
        cwd=program.folder,
        label="install",
        signal_group=True,
    )
    plan = LaunchPlan(processes=(spec,), grace_seconds=_INSTALL_GRACE, max_seconds=seconds)
    try:
        with _Lock():  # two hosts of a job may share one environment (processes on one machine)
            outcome = run(plan, say=say)
    except StartError as error:
        raise ProgramError(f"{what} cannot be installed: {error}", hint="pip must be in the image") from error
    if outcome.stop_signal:
        raise Interrupted(outcome.stop_signal, f"while {what} was being installed")
    if outcome.timed_out:
        raise ProgramError(
            f"{what} could not be installed within {seconds:g} s",
            hint="is the package index reachable? trainshed_install_timeout_seconds sets the limit",
        )
    (result,) = outcome.results
    if result.returncode != 0:
        text = mask_text((result.tail + b"\n" + result.output_tail).decode("utf-8", "replace"))
        raise ProgramError(f"{what} could not be installed: {_reason(text)}", details=text[-2000:], hint=_hint(text))
    return program.replace(packages=_site_packages(target)) if target else program


def _installer(environ: Mapping[str, str]) -> list[str]:
    uv = find_executable("uv", environ.get("PATH", os.defpath), "/")
    if uv and not any(environ.get(name) for name in _INDEX_VARIABLES) and not any(map(os.path.exists, _pip_files(environ))):
        return [uv, "pip", "install", "--no-progress", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--progress-bar", "off"]


def _pip_files(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("HOME", "/root")
    config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    return ["/etc/pip.conf", f"{config}/pip/pip.conf", f"{home}/.pip/pip.conf", f"{sys.prefix}/pip.conf"]


def _environment_is_writable() -> bool:
    import sysconfig

    return os.access(sysconfig.get_paths()["purelib"], os.W_OK)


def _own_packages_folder() -> str:
    """Where packages go when this user may not write to the interpreter's environment."""
    import tempfile

    return tempfile.mkdtemp(prefix="trainshed-packages-")


def _site_packages(prefix: str) -> str:
    import sysconfig

    return sysconfig.get_paths(vars={"base": prefix, "platbase": prefix})["purelib"]


def _reason(text: str) -> str:
    """The line with which pip or uv says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error:", "× ", "x "))]
    chosen = next((line for line in errors if "subprocess" not in line and "metadata-generation" not in line), "")
    return shorten(chosen or (errors or lines or ["no reason given"])[-1], 300)


def _hint(text: str) -> str:
    if "No matching distribution" in text or "no version of" in text:
        return "check the name and version in requirements.txt, and whether the index is reachable from the container"
    if "No space left" in text:
        return "the container's disk is full"
    if "Connection" in text or "resolve host" in text or "Temporary failure" in text:
        return "the package index is not reachable from this container; build the packages into the image"
    return "try it in the image: pip install -r requirements.txt"


class _Lock:
    """One installation into one environment at a time."""

    def __enter__(self) -> None:
        import fcntl
        import hashlib
        import tempfile

        name = hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]
        path = f"{tempfile.gettempdir()}/trainshed-install-{os.getuid()}-{name}.lock"
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
