"""Has the installed Accelerate say which variables its launcher would set.

Accelerate's launcher changes from version to version, and imports torch; so it runs in an interpreter of its own, with the
ranks' path and in their folder, and stops where it would start processes (`query_child`).
"""

from __future__ import annotations

import json
import os
import sys

from trainshed.base.errors import LaunchError
from trainshed.base.record import Record

from ..rank_environment import STACKS_HOOK, TRAINING_HOOKS
from .config_file import LAUNCHERS_KEYS, SETTING, ConfigFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..launch import Launch

SECONDS = 300  # that importing torch and Accelerate may take: much, from a cold disk
# Where ranks meet is the job's; so is OMP_NUM_THREADS, which `accelerate launch` sets to 1 where nobody has set it. The
# path has the folder of the code already.
NOT_TAKEN = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "PYTHONPATH")


class LaunchVariables(Record):
    """The variables that ranks get, and notes about what Accelerate does not know."""

    variables: dict[str, str]
    notes: tuple[str, ...]


def variables_of(file: ConfigFile, launch: Launch) -> LaunchVariables:
    """The variables that `accelerate launch` would set with this file.

    Raises:
        LaunchError: Accelerate is not installed, or refuses the file.
    """
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="trainshed-accelerate-") as folder:
        question, answer = f"{folder}/config.json", f"{folder}/answer.json"
        with open(question, "w", encoding="utf-8") as stream:
            json.dump(
                {"values": _for_one_host(file, launch), "file": file.name, "deepspeed": file.deepspeed}, stream, default=str
            )
        try:
            done = subprocess.run(
                [sys.executable, "-m", f"{__package__}.query_child", question, answer],
                cwd=launch.program.folder,
                env=_environment(launch),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LaunchError(f"{SETTING} = {file.name}: Accelerate did not answer within {SECONDS} s") from None
        try:
            with open(answer, encoding="utf-8") as stream:
                told = json.load(stream)
        except (OSError, ValueError):
            tail = done.stdout.decode(errors="replace").strip().splitlines()[-1:]
            raise LaunchError(
                f"{SETTING} = {file.name}: Accelerate's launcher cannot be asked "
                f"(exit status {done.returncode}): {''.join(tail)}"
            ) from None
    if "refused" in told:
        raise LaunchError(f"{SETTING} = {file.name}: {told['refused']}", hint=told["hint"])
    # Libraries that DeepSpeed imports leave marks of their own process, with such names.
    theirs = {name: value for name, value in told["variables"].items() if not name.startswith("_")}
    variables = {name: value for name, value in theirs.items() if name not in NOT_TAKEN}
    return LaunchVariables(variables=variables, notes=tuple(told["notes"]))


def _for_one_host(file: ConfigFile, launch: Launch) -> dict[str, object]:
    """The file, with this job's ranks as those of one host, so that Accelerate asks for no addresses."""
    if file.deepspeed:
        return {"deepspeed_config_file": file.name, "num_processes": launch.cluster.world_size}
    kept = {name: value for name, value in file.values.items() if name not in LAUNCHERS_KEYS}
    return {**kept, "num_processes": launch.cluster.world_size, "num_machines": 1, "main_process_port": 0}


def _environment(launch: Launch) -> dict[str, str]:
    """The ranks' environment, without our hooks."""
    folders = launch.environment["PYTHONPATH"].split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if folder not in (STACKS_HOOK, TRAINING_HOOKS))
    return {**launch.environment, "PYTHONPATH": path}
