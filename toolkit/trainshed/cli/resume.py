"""`trainshed resume`: continues a run from its checkpoints."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping

from trainshed.base.errors import EXIT_SUCCESS

from . import say
from .parser import Parser, UsageError
from .which import run_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.runner.job.job import Job


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Continues a run that was stopped, failed or lost: same folder, same job, its checkpoints."
    parser.add_run(acts=True)
    parser.add_argument(
        "--hyperparameter", "--hp", action="append", default=[], metavar="K=V",
        help="change a hyperparameter; give secrets again that were plain text",
    )  # fmt: skip
    parser.add_argument(
        "--env", action="append", default=[], metavar="K=V",
        help="change a variable; K alone takes yours",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="also a run that has completed: train on, pack again")
    parser.add_argument("--detach", action="store_true", help="run in the background")


def run(options: Namespace) -> int:
    """Continues the run; returns the job's exit status. Raises UsageError, TrainshedError."""
    from trainshed.runner.control.operations import to_resume
    from trainshed.runner.job.flags import hyperparameter_of

    texts = pairs("--hyperparameter", options.hyperparameter)
    hyperparameters = {name: hyperparameter_of(text) for name, text in texts.items()}
    variables = pairs("--env", options.env, os.environ)

    def change(job: Job) -> Job:
        from dataclasses import replace

        kept = {name: held for name, held in job.references.items() if name not in variables}
        return replace(
            job,
            hyperparameters={**job.hyperparameters, **hyperparameters},
            environment={**job.environment, **variables},
            references=kept,
        )

    stored = run_of(options)
    again = to_resume(stored, os.environ, say, change, again=options.again)
    if options.detach:
        from trainshed.runner.control.detached import start

        print(start(again.job, os.environ, again=again, on=stored.place.name).name)
        return EXIT_SUCCESS
    from trainshed.runner.control.execution import run_job

    return run_job(again.job, os.environ, again=again, on=stored.place.name)


def pairs(flag: str, pairs: list[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """NAME=VALUE as a mapping. A NAME alone takes the value of `environ`. Raises UsageError."""
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals and environ and name in environ:
            equals, text = "=", environ[name]
        if not equals or not name:
            raise UsageError(f"{flag} {pair}: must be NAME=VALUE")
        values[name] = text
    return values
