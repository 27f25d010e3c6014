"""Installs what the user's code needs: requirements.txt for every kind of program, the code itself if it is a package."""

from __future__ import annotations

import os
import re
import sys
from contextlib import nullcontext
from importlib.machinery import PathFinder

from trainshed.base.errors import ProgramError
from trainshed.base.record import Record
from trainshed.base.secrets import mask_text
from trainshed.machine.isolation import isolated
from trainshed.machine.scratch import can_execute, own_folder
from trainshed.machine.signals import Interrupted

from ..supervisor.launch_plan import LaunchPlan, ProcessSpec, StartError
from ..supervisor.loop import run
from ..supervisor.spawn import find_executable
from . import install_errors, kept_packages
from .turn import Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from trainshed.contract.job import TrainingJob

    from ..roster.roster import Preparing
    from .locate import Program

# uv ignores pip's settings, so pip is used if there are any; these do not change what is installed.
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


def install(
    program: Program,
    job: TrainingJob,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    others: Preparing | None = None,
) -> Program:
    """Installs the program's requirements; returns the program, with the folder for PYTHONPATH where one was needed.

    Args:
        others: hears the job's other hosts while this one installs, or waits for its turn.

    Raises:
        ProgramError: the installation failed or took longer than the job allows.
        Interrupted: a stop signal arrived.
        ClusterError: another host has ended the job meanwhile.
    """
    arguments = _requirements(program, job, environ, say)
    what = " and ".join(name for name in (arguments and "requirements.txt", program.installs and "the package") if name)
    if program.installs:
        arguments.append(program.folder)
    if not arguments:
        return program
    kept = None
    if not program.installs:  # else it would hold the code as well, which changes
        kept = kept_packages.find(arguments[-1], environ, _pip_files(environ), _environment_is_writable(), say)
    if kept is not None:
        # Two hosts of a job share the folder.
        with Turn(kept.place, f"installing {what}", job.settings.install_timeout_seconds, say, _look(others)) as seconds:
            if kept.is_whole():
                say(f"{what} is installed already: the warm pool has it")
                return _with_packages(program, kept.prefix) if kept.prefix else program
            job = job.replace(settings=job.settings.replace(install_timeout_seconds=seconds))
            if kept.begin():
                try:
                    made = _install(program, job, environ, say, others, arguments, what, kept.prefix)
                except BaseException as error:
                    kept.drop()
                    if not isinstance(error, ProgramError) or not _is_full(error):
                        raise
                    say("the warm pool's disk is full: the packages are installed for this run alone")
                else:
                    kept.finish(say)
                    return made
    return _install(program, job, environ, say, others, arguments, what, "")


def _is_full(error: ProgramError) -> bool:
    text = f"{error.message}\n{error.details}"
    return "No space left" in text or "Disk quota" in text


def _look(others: Preparing | None) -> Callable[[], None]:
    return others.look if others is not None else lambda: None


def _install(
    program: Program,
    job: TrainingJob,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    others: Preparing | None,
    arguments: list[str],
    what: str,
    prefix: str,
) -> Program:
    """Runs the installer. prefix: the folder that gets the packages, "" for the interpreter's own or one of this run's."""
    aside = own_folder("packages", environ, job.paths)
    target = prefix or ("" if _environment_is_writable() else aside)
    command = _installer(environ)
    installer = "uv" if os.path.basename(command[0]) == "uv" else "pip"
    variables = {**environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    # Builds run programs in the temporary folder, and /tmp may be missing or not allow that. And an installer that is
    # stopped leaves its files there, which go with our folder.
    variables["TMPDIR"] = f"{aside}/tmp"
    os.mkdir(variables["TMPDIR"])
    if target:
        # uv's cache may be missing, too.
        command += ["--prefix", target, *(["--no-cache"] if installer == "uv" else [])]
        if not can_execute(target):
            say(
                f"warning: packages are installed to {target}, which is mounted noexec: compiled ones cannot be loaded; "
                "allow it (docker run --tmpfs /tmp:exec)"
            )
    say(f"installing {what} with {installer}")
    spec = ProcessSpec(argv=(*command, *arguments), env=variables, cwd=program.folder, label="install", signal_group=True)
    seconds = job.settings.install_timeout_seconds
    # Two hosts of a job may share an environment: processes on one machine.
    turn = nullcontext(seconds) if target else Turn(_environment(), f"installing {what}", seconds, say, _look(others))
    with turn as seconds:
        problem = _run(spec, what, seconds, say, others)
        if problem and target and installer == "pip" and "Permission denied" in problem.errors:
            # pip tried to remove an older version from the environment. Without that, it need not know of any.
            say(f"{what}: this user cannot replace what the image has; installing all of it again beside that")
            problem = _run(spec.replace(argv=(*spec.argv, "--ignore-installed")), what, seconds, say, others)
    if problem:
        raise ProgramError(
            f"{what} could not be installed: {install_errors.reason(problem.errors)}",
            details=install_errors.excerpt(problem.errors, problem.output),
            hint=install_errors.hint(problem.errors),
        )
    return _with_packages(program, target) if target else program


def _with_packages(program: Program, prefix: str) -> Program:
    return program.replace(packages=_site_packages(prefix), scripts=f"{prefix}/bin")


def _requirements(program: Program, job: TrainingJob, environ: Mapping[str, str], say: Callable[[str], None]) -> list[str]:
    """The installer's arguments for requirements.txt: without packages that trainshed stands in for."""
    if not program.requirements:
        return []
    try:
        with open(program.requirements, encoding="utf-8", errors="surrogateescape") as file:
            given = file.read()
    except OSError:  # the installer reports it
        return ["-r", program.requirements]
    absent = [name for name, module in STAND_INS.items() if not PathFinder.find_spec(module)]
    text, left_out = without(absent, given, os.path.dirname(program.requirements))
    if not left_out:
        return ["-r", program.requirements]
    say(
        f"not installing {' and '.join(left_out)} from requirements.txt: trainshed has its modules for the script "
        "(install it in the image to use the original)"
    )
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        return []
    path = f"{own_folder('requirements', environ, job.paths)}/requirements.txt"
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    return ["-r", path]


class _Problem(Record):
    """What a failed installer printed: to stderr (or all, where that stayed empty), and to stdout."""

    errors: str
    output: str


def _run(
    spec: ProcessSpec, what: str, seconds: float, say: Callable[[str], None], others: Preparing | None
) -> _Problem | None:
    """Runs the installer; returns what it printed if it failed, else None.

    Raises:
        ProgramError: there is no installer, or it takes longer than `seconds`.
        Interrupted: a stop signal arrived.
    """
    plan = LaunchPlan(processes=(spec,), grace_seconds=_INSTALL_GRACE, max_seconds=seconds)
    try:
        outcome = run(plan, say=say, watchers=(others,) if others is not None else ())
    except StartError as error:
        raise ProgramError(f"{what} cannot be installed: {error}", hint="pip must be in the image") from error
    if outcome.stop_signal:
        raise Interrupted(outcome.stop_signal, f"while {what} was being installed")
    if outcome.timed_out:
        raise ProgramError(
            f"{what} could not be installed within {round(seconds, 1):g} s",
            hint="is the package index reachable? trainshed_install_timeout_seconds sets the limit",
        )
    (result,) = outcome.results
    if result.returncode == 0:
        return None
    errors, output = (mask_text(text.decode("utf-8", "replace")) for text in (result.tail, result.output_tail))
    return _Problem(errors=errors, output=output)


def _installer(environ: Mapping[str, str]) -> list[str]:
    uv = find_executable("uv", environ.get("PATH", os.defpath), "/")
    settings = [name for name in environ if name.startswith("PIP_") and environ[name] and name not in _HARMLESS_VARIABLES]
    if uv and not settings and not any(map(os.path.exists, _pip_files(environ))):
        return [uv, "pip", "install", "--no-progress", "--python", sys.executable]
    return [*isolated("pip"), "install", "--progress-bar", "off"]


def _pip_files(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("HOME", "/root")
    config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    shared = [f"{folder}/pip/pip.conf" for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    return ["/etc/pip.conf", *shared, f"{config}/pip/pip.conf", f"{home}/.pip/pip.conf", f"{sys.prefix}/pip.conf"]


def _environment() -> str:
    """The folder of this Python's packages."""
    import sysconfig

    return sysconfig.get_paths()["purelib"]


def _environment_is_writable() -> bool:
    return os.access(_environment(), os.W_OK)


def _site_packages(prefix: str) -> str:
    """The folders below an installation prefix that Python needs on its path, joined with `:`."""
    import sysconfig

    schemes = (sysconfig.get_default_scheme(), "posix_prefix")  # Debian's own differs, and uv does not use it
    paths = [sysconfig.get_paths(scheme, vars={"base": prefix, "platbase": prefix}) for scheme in schemes]
    folders = dict.fromkeys(path[kind] for path in paths for kind in ("purelib", "platlib"))
    return os.pathsep.join(folder for folder in folders if os.path.isdir(folder))


# On PyPI these are sources only: they need a compiler and minutes. `compat/sagemaker_training_api` serves their modules.
STAND_INS = {"sagemaker-training": "sagemaker_training", "sagemaker-containers": "sagemaker_containers"}
_NAME = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\]\s*)?(?:[=<>!~;@#\\(].*)?$")
_PATH_OPTION = re.compile(
    r"(?P<option>-r|-c|-f|--requirement|--constraint|--find-links)(?P<between>\s+|=|)(?P<path>\S+)(?P<rest>.*)"
)


def without(names: Container[str], text: str, folder: str) -> tuple[str, tuple[str, ...]]:
    """A requirements file without some packages, and the names of those left out.

    Args:
        names: normalized names of packages: lower case, with hyphens.
        text: the file's content.
        folder: where it lies; relative paths of its options are made absolute, so that the result may lie elsewhere.
    """
    kept: list[str] = []
    left_out: list[str] = []
    dropping = False  # the continuation lines of a requirement that is left out
    for line in text.splitlines():
        if dropping:
            dropping = line.rstrip().endswith("\\")
            continue
        match = _NAME.match(line)
        name = re.sub(r"[-_.]+", "-", match["name"]).lower() if match else ""
        if name in names:
            left_out.append(name)
            dropping = line.rstrip().endswith("\\")
            continue
        kept.append(_absolute(line, folder))
    return "\n".join(kept) + "\n", tuple(dict.fromkeys(left_out))


def _absolute(line: str, folder: str) -> str:
    match = _PATH_OPTION.match(line)
    if not match or not os.path.exists(f"{folder}/{match['path']}"):
        return line
    return f"{match['option']}{match['between']}{folder}/{match['path']}{match['rest']}"
