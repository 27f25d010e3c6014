"""`trainshed verify`: whether a script that is parallel by torch's own means trains as one process does."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import TrainshedError, visible
from trainshed.cli.parser import Parser, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.runner.job.job import Job

_FLAGS = ("hyperparameters", "channels", "environment", "argv", "source_dir")
_RANKS = 2


def add_arguments(parser: Parser) -> None:
    """The command line; torch is not loaded for it."""
    from trainshed.runner.job.fields import every
    from trainshed.runner.job.flags import add_flags, add_groups

    parser.usage = "trainshed verify JOB.yaml|SCRIPT [-n N] [options]"
    parser.description = (
        "Runs the first steps of a script here, as N ranks and as one process with the batches of all of them, and says "
        "whether losses, gradients, the clipped norm and weights agree; where not, what is wrong (docs/verify.md)."
    )
    parser.epilog = "Exit status: 0 if they agree, 1 if something is wrong, 3 if not all could be compared."
    groups = add_groups(parser)
    course = groups["course"].add_argument
    course("-n", "--ranks", type=whole, metavar="N", help="ranks (default: the job's processes_per_host, or 2)")
    course("--steps", type=int, default=3, metavar="N", help="steps of the optimizer (default: 3)")
    course("--timeout", type=float, default=600.0, metavar="SECONDS", help="of the ranks, and of the process (default: 600)")
    course("--json", action="store_true", help="print JSON")
    add_flags(groups, without=tuple(field for field, _ in every() if field not in _FLAGS))


def run(options: Namespace) -> int:
    """Compares and prints; returns the exit status. Raises JobError, TrainshedError."""
    from trainshed.runner.job.flags import job_of

    if not options.what:
        raise TrainshedError("say what is to be verified: trainshed verify JOB.yaml|SCRIPT -n 2")
    options.name = ""
    job = job_of(options, os.environ)
    ranks = job.distribution.processes_per_host or _RANKS if options.ranks is None else options.ranks
    if ranks < 2 or options.steps < 1 or options.timeout <= 0:
        raise TrainshedError("-n must be at least 2, --steps at least 1, --timeout more than 0")
    script = os.path.join(job.source_dir, job.program)
    if not (job.program.endswith(".py") and os.path.isfile(script)):
        raise TrainshedError(
            f"{job.program!r} is not a Python script here", hint="verify runs scripts, not modules or images"
        )
    return _verified(job, script, ranks, options)


def _verified(job: Job, script: str, ranks: int, options: Namespace) -> int:
    from trainshed.base.plain_json import as_json
    from trainshed.contract.hyperparameters import to_argv
    from trainshed.parallel.verify.judgement import told
    from trainshed.parallel.verify.play import verify

    environ = {**os.environ, **job.environment, **_variables(job)}
    style = job.argv or ("flags" if options.what.endswith(".py") else "sagemaker")
    verdict = verify(script, to_argv(job.hyperparameters, style), ranks, options.steps, environ, options.timeout)
    if options.json:
        print(as_json(verdict.plain()), end="")
    else:
        print(visible(told(verdict)))
    return verdict.status


def _variables(job: Job) -> dict[str, str]:
    """What the script finds of its job. Raises TrainshedError."""
    import torch

    from trainshed.contract.hyperparameters import to_environment_text

    found = {}
    for channel in job.channels:
        if channel.staged or channel.input_mode == "Pipe":
            raise TrainshedError(
                f"channel {channel.name!r} is not a folder on this machine", hint=f"--channel {channel.name}=FOLDER"
            )
        found[f"SM_CHANNEL_{channel.name.upper()}"] = channel.path
    hyperparameters = {f"SM_HP_{name.upper()}": to_environment_text(one) for name, one in job.hyperparameters.items()}
    gpus = str(torch.cuda.device_count())
    return {**found, **hyperparameters, "SM_NUM_GPUS": gpus, "SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
