"""`trainshed rerun`: makes a run again."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS
from trainshed.cli import say
from trainshed.cli.parser import Parser, UsageError
from trainshed.cli.which import run_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.runner.files.run import Run


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Makes a run again, as a new run: the code as it was when that run started, its hyperparameters and settings, its "
        "data, which is compared with the fingerprints of then. Ends with the metrics of both."
    )
    parser.epilog = (
        "--exact installs packages through your own settings of pip into an environment that is kept and shared. "
        "trainshed itself is the one that you call. docs/lineage.md says what can differ all the same."
    )
    parser.add_run(acts=True)
    add = parser.add_argument
    add("--exact", action="store_true", help="with the very packages (or, in containers, the very image)")
    add("--leave-out", action="append", default=[], metavar="PACKAGE", help="with --exact: need not be there")
    add("--other-data", action="store_true", help="take the channels' data as it is now")
    add("--output", default="", metavar="DIR", help="folder of the new run (default: below ./runs)")
    add("--hyperparameter", "--hp", action="append", default=[], metavar="K=V", help="a secret that was not kept")
    add("--env", action="append", default=[], metavar="K=V", help="likewise, a variable; K alone takes yours")
    add("--detach", action="store_true", help="run in the background")


def run(options: Namespace) -> int:
    """Makes the run again; returns the job's exit status. Raises UsageError, JobError, TrainshedError."""
    from dataclasses import replace

    from trainshed.cli.resume import pairs
    from trainshed.runner.job.flags import hyperparameter_of
    from trainshed.runner.state.stored import load
    from trainshed.studio.lineage.rerun import Wish, compared, job_again

    if options.leave_out and not options.exact:
        raise UsageError("--leave-out goes with --exact")
    texts = pairs("--hyperparameter", options.hyperparameter)
    wish = Wish(
        options.exact,
        options.other_data,
        tuple(options.leave_out),
        {name: hyperparameter_of(text) for name, text in texts.items()},
        pairs("--env", options.env, os.environ),
    )
    before = run_of(options)
    job = job_again(before, wish, os.environ, say)
    job = replace(job, output=os.path.abspath(options.output) if options.output else "")
    if options.detach:
        from trainshed.runner.control.detached import start

        print(start(job, os.environ).name)
        return EXIT_SUCCESS
    from trainshed.runner.control.execution import run_job

    made: list[str] = []

    def started(run: Run) -> None:
        made.append(run.folder)

    status = run_job(job, os.environ, started=started)
    for line in compared(before, load(made[0])) if made else ():
        say(line)
    return status
