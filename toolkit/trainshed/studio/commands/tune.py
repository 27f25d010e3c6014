"""`trainshed tune`: searches the hyperparameters of a job."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS
from trainshed.cli import say
from trainshed.cli.parser import Parser, UsageError
from trainshed.cli.run import refuse_flags_of_others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.studio.tune.tuning import TuningJob

VERBS = ("status", "stop", "report")


def add_arguments(parser: Parser) -> None:
    """The command line."""
    from trainshed.runner.job.flags import add_flags

    parser.usage = (
        "trainshed tune TUNE.yaml|REQUEST.json [options]\n"
        "       trainshed tune --resume [TUNING] [options]\n"
        "       trainshed tune status|stop|report [TUNING] [options]"
    )
    parser.description = (
        "Runs a job many times with other hyperparameters, and finds the best: grid, random, Bayesian (Optuna), Hyperband. "
        "Each trial is an ordinary run. The same command, or --resume, goes on after a kill: finished trials count, running "
        "ones are watched again."
    )
    parser.epilog = (
        "TUNING is the name of a tuning job in ./tunes, or its folder (default: the newest). `best` in its folder leads to "
        "the best run, best.yaml makes it again. Exit status: 0 with a best trial, 1 without, 130 after Ctrl-C (the trials "
        "then wait for --resume), 2 if the file cannot be read. docs/tune.md describes the file."
    )
    parser.add_argument("what", nargs="?", default="", metavar="TUNE.yaml", help="what to tune; or status, stop, report")
    parser.add_argument("tuning", nargs="?", default="", metavar="TUNING", help="of status, stop, report and --resume")
    group = parser.add_argument_group("the tuning job")
    add = group.add_argument
    add("--resume", action="store_true", help="go on with a tuning job as it was understood; limits may be changed")
    add("--retry", choices=("failed",), default="", metavar="failed", help="run trials again that have failed")
    add("--output", dest="folder", default="", metavar="DIR", help="its folder (default: tunes/NAME); of report the file")
    add("--name", dest="tuning_name", default="", metavar="NAME", help="its name (default: the file's)")
    add("--max-jobs", default="", metavar="N", help="trials")
    add("--max-parallel-jobs", default="", metavar="N", help="trials beside each other")
    add("--max-tuning-runtime", default="", metavar="SECONDS", help="time in which trials run (max_runtime_seconds)")
    add("--on", dest="on", default="", metavar="PLACE", help="where trials run: here (default), or slurm")
    add("--sbatch", action="append", default=[], metavar="NAME=VALUE", help="with --on slurm: one more option of sbatch")
    add("--dry-run", action="store_true", help="print the first values that would be tried, and start nothing")
    shown = parser.add_argument_group("status, stop and report")
    shown.add_argument("--json", action="store_true", help="status: in the shape of DescribeHyperParameterTuningJob")
    shown.add_argument("--kill", action="store_true", help="stop: do not wait for the scripts")
    titles = {"job": "the job of each trial", "place": "where trials run", "course": "how each goes"}
    add_flags({name: parser.add_argument_group(title) for name, title in titles.items()}, without=("name", "output"))


def run(options: Namespace) -> int:
    """Tunes, or tells how it stands; returns the exit status. Raises JobError, TrainshedError, UsageError."""
    if options.what in VERBS:
        return _ask(options)
    if options.resume and not os.path.isfile(options.what):
        return _resume(options)
    if not options.what or options.tuning:
        raise UsageError("name one tuning file: trainshed tune TUNE.yaml; or --resume, status, stop, report")
    if options.json or options.kill:
        raise UsageError("--json goes with status, --kill with stop")
    from trainshed.runner.job.flags import overlaid
    from trainshed.studio.tune.sessions import tune
    from trainshed.studio.tune.tuning_file import read_tuning
    from trainshed.studio.tune.tuning_folder import TUNES

    def overlay(values: object, problems: object) -> object:
        return overlaid(values, options, os.environ, problems)  # type: ignore[arg-type]

    tuning = read_tuning(options.what, os.environ, overlay, _changes(options))  # type: ignore[arg-type]
    if options.sbatch:
        tuning = _with_flags(tuning, options)
    if options.dry_run:
        return _dry_run(tuning)
    return tune(
        tuning, os.path.abspath(options.what), options.folder or f"{TUNES}/{tuning.name}", os.environ, bool(options.retry)
    )


def _with_flags(tuning: TuningJob, options: Namespace) -> TuningJob:
    """Raises UsageError, JobError."""
    from dataclasses import replace

    from trainshed.runner.acting import acting
    from trainshed.runner.job.places import find

    refuse_flags_of_others(Namespace(sbatch=options.sbatch), tuning.place)
    acts = acting(find(tuning.place))
    tuning = replace(tuning, job=acts.with_flags(tuning.job, vars(options)))
    acts.check(tuning.job, os.environ)
    return tuning


def _changes(options: Namespace) -> dict[str, object]:
    """What flags say of the tuning job, as nodes."""
    from trainshed.runner.job.nodes import Node, scalar

    given = {
        "name": ("--name", options.tuning_name),
        "on": ("--on", options.on),
        "max_jobs": ("--max-jobs", options.max_jobs),
        "max_parallel_jobs": ("--max-parallel-jobs", options.max_parallel_jobs),
        "max_runtime_seconds": ("--max-tuning-runtime", options.max_tuning_runtime),
    }
    return {name: Node(scalar(text), flag, os.getcwd(), text) for name, (flag, text) in given.items() if text}


def _resume(options: Namespace) -> int:
    from dataclasses import replace

    from trainshed.studio.tune.sessions import resume
    from trainshed.studio.tune.tuning_file import checked_limits
    from trainshed.studio.tune.tuning_folder import TuningFolder

    if options.tuning or options.tuning_name or options.dry_run or options.on or options.sbatch:
        raise UsageError("--resume takes one TUNING and limits")
    _refuse_job_flags(options, "--resume")
    limits = checked_limits(_changes(options))  # type: ignore[arg-type]

    def change(tuning: TuningJob) -> TuningJob:
        return replace(tuning, limits=replace(tuning.limits, **limits))

    return resume(TuningFolder.find(options.what or options.folder), os.environ, change, bool(options.retry))


def _ask(options: Namespace) -> int:
    from trainshed.studio.tune import sessions
    from trainshed.studio.tune.tuning_folder import TuningFolder

    if options.resume:
        raise UsageError(f"--resume cannot be used with {options.what}")
    _refuse_job_flags(options, options.what)
    if _changes(options) or options.dry_run or options.retry:
        raise UsageError(f"{options.what} changes no limits")
    folder = TuningFolder.find(options.tuning)
    if options.what == "status":
        return sessions.status(folder, as_json=options.json)
    if options.what == "stop":
        return sessions.stop(folder, os.environ, say, kill=options.kill)
    from trainshed.studio.tune.tuning_page import write

    print(write(folder, options.folder))
    return EXIT_SUCCESS


def _refuse_job_flags(options: Namespace, what: str) -> None:
    """Flags of the job say nothing where the job is the one that was kept. Raises UsageError."""
    from trainshed.runner.job.fields import every

    given = [row.flags[0] for field, row in every() if row.flags and vars(options).get(field) not in (None, [], "")]
    given += ["--no-image"] if options.no_image else []
    if given:
        raise UsageError(f"{what} takes the job as it was: {', '.join(given)} cannot be used; name the tuning file instead")


def _dry_run(tuning: object) -> int:
    from trainshed.base.errors import visible
    from trainshed.studio.tune.propose import preview

    print(visible(preview(tuning)), end="")  # type: ignore[arg-type]
    return EXIT_SUCCESS
