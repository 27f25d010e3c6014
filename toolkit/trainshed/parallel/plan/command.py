"""Plans a script without its ranks: `trainshed plan`, or `python -m trainshed.parallel.plan`.

The script runs in this one process up to its first step, which is profiled; the plan is written and the script ends there.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from trainshed.base.errors import EXIT_USER, TrainshedError, shorten, visible
from trainshed.base.voice import tell
from trainshed.contract.wire.pipeline import V_SHAPED
from trainshed.contract.wire.variables import PLAN_HOW, PLAN_ONLY, of_setting

from .arguments import read_plan_arguments
from .plan_options import How


class PlanWritten(SystemExit):
    """The plan is there: the script ends with status 0."""


class ScriptFailed(TrainshedError):
    """The script itself fails before its first step."""

    exit_code = EXIT_USER


def plan_script(script: str, arguments: Sequence[str], settings: Mapping[str, Any], output: str, how: How) -> int:
    """Writes the plan for a script to `output`.

    Args:
        script: path of the user's program.
        arguments: its command line.
        settings: as for `trainshed.parallel.init`; wins over what the script itself gives.
        how: how it is planned.

    Returns:
        0 if the plan was written; 1 if the script ended without a step; else the status with which it has exited.

    Raises:
        ScriptFailed: it has raised an error.
    """
    os.environ[of_setting("pipeline")] = json.dumps(dict(settings))
    os.environ[PLAN_ONLY] = os.path.abspath(output)
    os.environ[PLAN_HOW] = how.text()
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    try:
        return follow(script, arguments)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)  # as Python does with `sys.exit("no data")`
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else EXIT_USER
        return status or _without_a_step(script)
    except TrainshedError:
        raise
    except Exception as error:
        if _raised_in(error).startswith(_PACKAGE):  # a defect of ours, and told as one
            raise
        raise _failed(script, error) from error


_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def _raised_in(error: Exception) -> str:
    """The file whose code raised an error."""
    return traceback.extract_tb(error.__traceback__)[-1].filename


def _failed(script: str, error: Exception) -> ScriptFailed:
    """The script's own error, with its place and the part of its traceback that is the script's."""
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename != script:
        del frames[0]
    own = [one for one in frames if _is_beside(one.filename, script)]
    file, line = (own[-1].filename, own[-1].lineno) if own else (script, None)
    if isinstance(error, SyntaxError):
        file, line = error.filename or file, error.lineno or line
    last = traceback.format_exception_only(error)
    hint = ""
    if isinstance(error, KeyError) and str(error.args[0] if error.args else "").startswith("SM_"):
        hint = f"a plan is made without a job: set {error.args[0]} for this command, or read it with os.environ.get"
    place = f"{file}:{line}" if line else file
    details = "".join(["Traceback (most recent call last):\n", *frames.format()] if frames else []) + "".join(last)
    return ScriptFailed(f"the script fails at {place}: {last[-1].strip()}", details=details.rstrip(), hint=hint)


def _is_beside(file: str, script: str) -> bool:
    """Whether a file is the script, or code of its folder and no installed package."""
    folder = os.path.dirname(os.path.abspath(script)) + os.sep
    return os.path.isfile(file) and os.path.abspath(file).startswith(folder) and "site-packages" not in file


def _without_a_step(script: str) -> int:
    print(f"{script} ended without a step of trainshed.parallel: no plan was made", file=sys.stderr)
    return EXIT_USER


def follow(script: str, arguments: Sequence[str]) -> int:
    """Runs a script up to its first step, in a process whose variables say what plan is wanted.

    Returns:
        0 if the plan was written; 1 if the script ended without a step.
    """
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except PlanWritten:
        return 0
    return _without_a_step(script)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    return run(read_plan_arguments(argv))


def run(options: Namespace) -> int:
    """Does what the command line asks for. Raises TrainshedError where there is no such script."""
    if not os.path.isfile(options.script):
        raise TrainshedError(f"there is no script {options.script}")
    _check(options)
    how = How(
        options.count,
        options.ranks,
        options.gbits,
        options.gbits_host,
        options.ranks_per_host,
        slower=10.0 / options.tflops if options.count else 1.0,
        crowd=max(1.0, options.ranks_per_host / options.cores) if options.cores else 1.0,
        device="cuda" if options.count else "",
        emit=os.path.abspath(options.emit) if options.emit else "",
    )
    several = {"tensor_parallel_degree": options.tensor, "prescaled_batch": True} if options.tensor > 1 else {}
    settings = {
        **_others(options.settings),
        "pipeline_parallel_degree": options.ranks or options.stages,
        **several,
        **({} if options.virtual is None else {"virtual_stages": options.virtual}),
        "microbatches": options.microbatches,
        "pipeline": options.pipeline,
        "memory_limit": options.memory_limit,
    }
    try:
        return plan_script(options.script, options.arguments, settings, options.output, how)
    except TrainshedError as error:
        tell(f"plan: {error.message}" + (f" ({error.hint})" if error.hint else ""))
        if error.details:
            print(visible(error.details), file=sys.stderr)
        return error.exit_code


def _others(text: str) -> dict[str, Any]:
    """Settings of a job that no option has.

    Raises:
        TrainshedError: they are not a JSON object.
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        example = '{"bf16": true, "master_weights": true}'
        raise TrainshedError(f"--settings {shorten(text)} is not a JSON object", hint=f"such as {example}")
    return found


def _check(options: Namespace) -> None:
    if options.emit and os.path.exists(options.emit):
        raise TrainshedError(
            f"--emit {options.emit}: it is there already, perhaps changed", hint="name another file, or remove it"
        )
    none = options.ranks, options.ranks_per_host, options.gbits_host, options.cores
    if min(none) < 0 or min(options.gbits, options.tflops) <= 0:
        raise TrainshedError("--ranks, --ranks-per-host, --gbits, --gbits-host, --cores and --tflops must be more than 0")
    if options.ranks and options.pipeline in V_SHAPED:
        raise TrainshedError(f"--ranks chooses no degrees for {options.pipeline}", hint="give --stages with it")
    if options.ranks and options.tensor > 1:
        raise TrainshedError("--ranks chooses the tensor ranks", hint="give --stages with --tensor, or --ranks alone")
    if options.gbits_host and not options.ranks_per_host:
        raise TrainshedError("--gbits-host needs --ranks-per-host", hint="tell how many of the ranks share a host")
    if options.cores and not options.ranks_per_host:
        raise TrainshedError("--cores needs --ranks-per-host", hint="tell how many ranks share these cores")
    if options.ranks_per_host and options.ranks % options.ranks_per_host and options.ranks > options.ranks_per_host:
        raise TrainshedError(f"{options.ranks} ranks do not make hosts of {options.ranks_per_host}")
