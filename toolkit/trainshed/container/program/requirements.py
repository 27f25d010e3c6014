"""Installs what the user's code needs: requirements.txt for every kind of program, the code itself if it is a package."""

from __future__ import annotations

import os
import sys

from trainshed.base.errors import ProgramError, shorten
from trainshed.base.secrets import mask_text
from trainshed.machine.signals import Interrupted

from ..scratch import own_folder
from ..supervisor.launch_plan import LaunchPlan, ProcessSpec, StartError
from ..supervisor.loop import run
from ..supervisor.spawn import find_executable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .locate import Program

# uv reads none of pip's settings, so where any is made pip does the work; these change nothing that matters.
_HARMLESS_VARIABLES = frozenset(
    {
        "PIP_CACHE_DIR",
        "PIP_DEFAULT_TIMEOUT",
        "PIP_DISABLE_PIP_VERSION_CHECK",
        "PIP_NO_CACHE_DIR",
        "PIP_NO_COLOR",
        "PIP_NO_INPUT",
        "PIP_PROGRESS_BAR",
        "PIP_QUIET",
        "PIP_RETRIES",
        "PIP_ROOT_USER_ACTION",
        "PIP_VERBOSE",
    }
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
    target = "" if _environment_is_writable() else own_folder("packages")
    command = _installer(environ) + (["--prefix", target] if target else []) + arguments
    what = " and ".join(
        name for name in (program.requirements and "requirements.txt", program.kind == "package" and "the package") if name
    )
    installer = "uv" if os.path.basename(command[0]) == "uv" else "pip"
    say(f"installing {what} with {installer}")
    spec = ProcessSpec(
        argv=tuple(command),
        env={**environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"},
        cwd=program.folder,
        label="install",
        signal_group=True,
    )
    with _Lock():  # two hosts of a job may share one environment (processes on one machine)
        problem = _run(spec, what, seconds, say)
        if target and installer == "pip" and "Permission denied" in problem:
            # pip wanted to take an older version out of the environment. Without that, it needs to know of none.
            say(f"{what}: this user cannot replace what the image has; installing all of it again beside that")
            problem = _run(spec.replace(argv=(*spec.argv, "--ignore-installed")), what, seconds, say)
    if problem:
        raise ProgramError(
            f"{what} could not be installed: {_reason(problem)}", details=problem[-2000:], hint=_hint(problem)
        )
    return program.replace(packages=_site_packages(target), scripts=f"{target}/bin") if target else program


def _run(spec: ProcessSpec, what: str, seconds: float, say: Callable[[str], None]) -> str:
    """Runs the installer; returns what it printed if it failed, else "".

    Raises:
        ProgramError: there is no installer, or it takes longer than `seconds`.
        Interrupted: a stop signal came meanwhile.
    """
    plan = LaunchPlan(processes=(spec,), grace_seconds=_INSTALL_GRACE, max_seconds=seconds)
    try:
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
    if result.returncode == 0:
        return ""
    return mask_text((result.tail + b"\n" + result.output_tail).decode("utf-8", "replace")) or "no reason given"


def _installer(environ: Mapping[str, str]) -> list[str]:
    uv = find_executable("uv", environ.get("PATH", os.defpath), "/")
    settings = [name for name in environ if name.startswith("PIP_") and environ[name] and name not in _HARMLESS_VARIABLES]
    if uv and not settings and not any(map(os.path.exists, _pip_files(environ))):
        return [uv, "pip", "install", "--no-progress", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--progress-bar", "off"]


def _pip_files(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("HOME", "/root")
    config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    shared = [f"{folder}/pip/pip.conf" for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    return ["/etc/pip.conf", *shared, f"{config}/pip/pip.conf", f"{home}/.pip/pip.conf", f"{sys.prefix}/pip.conf"]


def _environment_is_writable() -> bool:
    import sysconfig

    return os.access(sysconfig.get_paths()["purelib"], os.W_OK)


def _site_packages(prefix: str) -> str:
    """The folders below an installation prefix that Python needs on its path, joined as PYTHONPATH is."""
    import sysconfig

    schemes = (sysconfig.get_default_scheme(), "posix_prefix")  # Debian's own differs, and uv does not use it
    paths = [sysconfig.get_paths(scheme, vars={"base": prefix, "platbase": prefix}) for scheme in schemes]
    folders = dict.fromkeys(path[kind] for path in paths for kind in ("purelib", "platlib"))
    return os.pathsep.join(folder for folder in folders if os.path.isdir(folder))


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
