"""`trainshed run`: runs a training job here or on other machines, or submits it to Slurm or Kubernetes."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS

from .parser import Parser, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Places:
    """The words that `--on` takes; packages are asked only for a place that is not built in."""

    def __contains__(self, name: object) -> bool:
        from trainshed.runner.job.places import known

        place = known(str(name))
        return place is not None and bool(place.acts)

    def __iter__(self) -> Iterator[str]:
        from trainshed.runner.job.places import names

        return iter(names())


def add_arguments(parser: Parser) -> None:
    """The command line: the job file or script, a flag for each field, and how to run it."""
    from trainshed.runner.job.flags import add_flags, add_groups
    from trainshed.runner.job.places import BUILT_IN, HERE

    parser.usage = "trainshed run JOB.yaml|SCRIPT [options]"
    parser.description = "Runs a training job here: as processes of this machine, or as containers of an image (--image)."
    parser.epilog = (
        "Flags win over the job file. Results, logs and status.json go to runs/NAME-TIME/. "
        "Exit status: the job's own; 130 after Ctrl-C, 124 when --max-runtime is over, "
        "2 if the job cannot be read, 69 without Docker."
    )
    groups = add_groups(parser)
    place, course = groups["place"].add_argument, groups["course"].add_argument
    others = [one for one in BUILT_IN.values() if one.help]
    said = ", ".join(f"{one.name}: {one.help}" for one in others)
    place("--on", default=HERE.name, choices=Places(), metavar="PLACE", help=f"{HERE.name} (default), {said}")
    for flag in (flag for one in others for flag in one.flags if flag.help):
        place(
            flag.name, default=flag.default, metavar=flag.metavar, help=flag.help,
            action="append" if flag.several else "store",
        )  # fmt: skip
    add_flags(groups)
    course(
        "--find-batch-size", default="", metavar="NAME",
        help="first find the largest value of this hyperparameter that fits into memory, "
        "by short runs of the job",
    )  # fmt: skip
    course(
        "--scale-lr", default="", metavar="NAME",
        help="with --find-batch-size: scale this hyperparameter, the learning rate, linearly",
    )  # fmt: skip
    course(
        "--detach", action="store_true",
        help="run in the background; see trainshed ps, logs, attach, stop",
    )  # fmt: skip
    course("--dry-run", action="store_true", help="print what would be run, and change nothing")


def run(options: Namespace) -> int:
    """Runs the job; returns its exit status. Raises JobError, TrainshedError, UsageError."""
    check(options)
    from trainshed.runner.acting import acting
    from trainshed.runner.control.parent import with_parent
    from trainshed.runner.control.resolve_models import with_pinned_models
    from trainshed.runner.job.flags import job_of
    from trainshed.runner.job.places import find

    place = find(options.on)
    job = with_pinned_models(with_parent(job_of(options, os.environ), os.environ), os.environ)
    job = acting(place).with_flags(job, vars(options))
    if options.find_batch_size and not options.dry_run:
        from trainshed.runner.tools.batch_size import run_fitted

        return run_fitted(job, options.find_batch_size, options.scale_lr)
    if options.detach and not options.dry_run and not place.can.detach:
        from trainshed.runner.control.detached import start

        print(start(job, os.environ, on=place.name).name)
        return EXIT_SUCCESS
    from trainshed.runner.control.execution import run_job

    return run_job(job, os.environ, dry_run=options.dry_run, detach=options.detach, on=place.name)


def check(options: Namespace) -> None:
    """Refuses flags that do not go together. Raises UsageError."""
    from trainshed.runner.job.places import find

    if options.scale_lr and not options.find_batch_size:
        raise UsageError("--scale-lr goes with --find-batch-size")
    if options.find_batch_size and not find(options.on).can.probe:
        raise UsageError(f"--find-batch-size cannot be used with --on {options.on}")
    refuse_flags_of_others(options, options.on)


def refuse_flags_of_others(options: Namespace, on: str) -> None:
    """Refuses flags that are for another place than the one the job runs at. Raises UsageError."""
    from trainshed.runner.job.places import BUILT_IN

    for place in (place for place in BUILT_IN.values() if place.name != on):
        for flag in place.flags:
            if vars(options).get(flag.attribute, flag.default) != flag.default:
                raise UsageError(f"{flag.name} goes with --on {place.name}")
