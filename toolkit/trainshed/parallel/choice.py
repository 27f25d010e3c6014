"""Chooses the degrees of a job that leaves them open (`degrees = auto`), before its ranks are given their places.

The ranks measure what they have. Then the first one has the script planned as `trainshed plan --count --ranks N` does: in a
process of its own, up to its first step, with operations counted. All ranks take what that process chose. The plan is kept
where the job's output is, and where its checkpoints are, so that a job that starts again with as many ranks stays as it was.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

import torch

import trainshed
from trainshed.base.errors import shorten
from trainshed.contract.wire.pipeline import PipelineSettings, read_settings
from trainshed.contract.wire.variables import AGENT_PID, AUTOPATCH, PLAN_HOW, PLAN_ONLY, of_setting

from .ground.errors import PlanError
from .ground.grid import Joined
from .plan.plan_file import Plan, load_plan
from .plan.plan_options import How
from .resources import measure
from .stages.planning import from_leader

_NAME = "pipeline-plan.json"
_FOLDERS = ("SM_CHECKPOINT_DIR", "SM_OUTPUT_DATA_DIR")
_BY_HAND = "give the degrees (partitions, tensor_parallel_degree, ...), or see what `trainshed plan --count --ranks N` says"


def choose_degrees(settings: PipelineSettings, joined: Joined, device: torch.device) -> PipelineSettings:
    """The settings with their degrees; the first rank prints which, and why. Collective.

    Raises:
        PipelineError: on all ranks, if the script cannot be planned.
    """
    found = from_leader(joined.rank, joined.control, lambda: _kept(settings, joined.world))
    if found is None:
        how = measure(joined, settings, device)
        found = from_leader(joined.rank, joined.control, lambda: _chosen(settings, how))
    chosen, line = found
    if joined.rank == 0:
        print(line, flush=True)
    return chosen_settings(settings, chosen)


def chosen_settings(settings: PipelineSettings, chosen: dict[str, Any]) -> PipelineSettings:
    """Those of a job together with those that were chosen."""
    return read_settings({**settings.given(), "degrees": "given", **chosen}, "degrees = auto")


def _kept(settings: PipelineSettings, world: int) -> tuple[dict[str, Any], str] | None:
    """What was chosen before, for as many ranks and the same settings.

    Raises:
        PlanError: the job's `partition_file` is a plan whose degrees were not chosen.
    """
    for path in _places(settings):
        if not os.path.exists(path):
            continue
        plan = load_plan(path)
        if not plan.settings:
            raise PlanError(f"{path}: its degrees were not chosen", hint="delete it, or leave degrees = auto out")
        degrees = plan.degrees
        ranks = degrees["stages"] * degrees["tensor"] * degrees["replicas"]
        given = settings.given()
        whole = chosen_settings(settings, plan.settings)
        if ranks == world and all(getattr(whole, name) == value for name, value in given.items() if name != "degrees"):
            return plan.settings, f"degrees: {_spoken(plan.settings)}, as in {path}: delete it to have them chosen again"
    return None


def _places(settings: PipelineSettings) -> list[str]:
    """Where the plan of a choice is kept."""
    folders = [os.environ[name] for name in _FOLDERS if os.path.isdir(os.environ.get(name, ""))]
    return [*([settings.partition_file] if settings.partition_file else []), *(f"{one}/{_NAME}" for one in folders)]


def _chosen(settings: PipelineSettings, how: How) -> tuple[dict[str, Any], str]:
    plan = _planned(settings, how)
    kept = ""
    for path in _places(settings):
        try:
            plan.save(path)
            kept = kept or f"; who holds what is in {path}"
        except OSError as error:
            if path == settings.partition_file:
                raise PlanError(f"the plan cannot be written to {path}: {error.strerror}") from None
    told = plan.predicted["chosen"]
    memory = f"{told['memory_mib']:.0f} of {how.limit_mib} MiB on the fullest rank"
    rows = "; split data by rdp_rank() of rdp_size()" if plan.degrees["replicas"] > 1 else ""
    return plan.settings, (
        f"degrees: {told['words']}, {_spoken(plan.settings)}: {told['why']}; predicted by counting: "
        f"{told['step_ms']:.0f} ms a step, {memory}{kept}{rows}"
    )


def _spoken(chosen: dict[str, Any]) -> str:
    return json.dumps(chosen).replace('"', "")


def _planned(settings: PipelineSettings, how: How) -> Plan:
    """The plan of a process that runs the script up to its first step.

    Raises:
        PlanError: it makes none, or not in time.
    """
    script = script_of_this_process()
    with tempfile.TemporaryDirectory(prefix="trainshed-plan-") as folder:
        path, log = os.path.join(folder, _NAME), os.path.join(folder, "log")
        command = [sys.executable, "-m", "trainshed.parallel.plan", script, *sys.argv[1:]]
        with open(log, "wb") as output:
            process = subprocess.Popen(
                command,
                env=_environment(settings, how, path),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(settings.timeout_seconds / 2)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(process)
        if status == 0 and os.path.exists(path):
            return load_plan(path)
        with open(log, errors="replace") as file:
            said = file.read()[-4000:]
    if status is None:
        raise PlanError(
            f"degrees = auto: {script} came to no step within {settings.timeout_seconds / 2:.0f} s",
            hint=f"what it does before its first step takes longer than half of timeout_seconds: raise that, or {_BY_HAND}",
        )
    raise PlanError(f"degrees = auto: {script} cannot be planned: {_reason(said, status)}", hint=_BY_HAND)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def script_of_this_process() -> str:
    """Path of the program that runs here.

    Raises:
        PlanError: it is no file that could run again.
    """
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or getattr(main, "__spec__", None) is not None or not os.path.isfile(path):
        raise PlanError("degrees = auto plans a script: this program is a module or was typed in", hint=_BY_HAND)
    return os.path.abspath(path)


def _environment(settings: PipelineSettings, how: How, path: str) -> dict[str, str]:
    """Of a process that is the only rank of its job."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    without = (AGENT_PID, AUTOPATCH, "GROUP_RANK", "ROLE_RANK", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC_", "PET_", "OMPI_"))}
    toolkit = os.path.dirname(os.path.dirname(os.path.abspath(trainshed.__file__)))
    return {
        **{name: value for name, value in kept.items() if name not in without},
        **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), toolkit]),
        of_setting("pipeline"): json.dumps(settings.given()),
        PLAN_ONLY: path,
        PLAN_HOW: how.text(),
    }


def _reason(said: str, status: int) -> str:
    """The last thing that a failed process said, without the name of its error's class."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if status < 0:
        name = signal.Signals(-status).name
        return f"it was ended by {name}" + (", which the kernel does where memory is short" if name == "SIGKILL" else "")
    if not lines:
        return f"it ended with status {status}"
    last = lines[-1].removeprefix("[rank0]: ")  # torch's, in a process with a process group
    kind, _, rest = last.partition(": ")
    return shorten(rest if kind.startswith("trainshed.") else last, 500)
