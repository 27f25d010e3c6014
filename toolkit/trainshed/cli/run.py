"""`trainshed run`: runs a training job here or on other machines, or submits it to Slurm or Kubernetes."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS

from .parser import Parser, UsageError

PLACES = ("here", "kubernetes", "ray", "slurm", "ssh")


def add_arguments(parser: Parser) -> None:
    """The command line: the job file or script, a flag for each field, and how to run it."""
    from trainshed.runner.job.flags import add_flags, add_groups

    parser.usage = "trainshed run JOB.yaml|SCRIPT [options]"
    parser.description = "Runs a training job here: as processes of this machine, or as containers of an image (--image)."
    parser.epilog = (
        "Flags win over the job file. Results, logs and status.json go to runs/NAME-TIME/. "
        "Exit status: the job's own; 130 after Ctrl-C, 124 when --max-runtime is over, "
        "2 if the job cannot be read, 69 without Docker."
    )
    groups = add_groups(parser)
    place, course = groups["place"].add_argument, groups["course"].add_argument
    place(
        "--on", default="here", choices=PLACES, metavar="PLACE",
        help="here (default), ssh: on the machines of --hosts, ray: on a Ray cluster, "
        "kubernetes: as pods of a cluster, or slurm: submit it with sbatch and follow it",
    )  # fmt: skip
    place(
        "--sbatch", action="append", default=[], metavar="NAME=VALUE",
        help="with --on slurm: one more option of sbatch, like partition=gpu; --detach submits "
        "and returns",
    )  # fmt: skip
    place(
        "--address", default="", metavar="HOST:PORT",
        help="with --on ray: the cluster's head, ray://HOST:PORT for its door for clients, or "
        "auto, this machine's (default: RAY_ADDRESS, else auto)",
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
    from trainshed.runner.control.parent import with_parent
    from trainshed.runner.control.resolve_models import with_pinned_models
    from trainshed.runner.job.flags import job_of

    job = with_pinned_models(with_parent(job_of(options, os.environ), os.environ), os.environ)
    if options.on == "slurm":
        from trainshed.runner.places.slurm.submit import run_on_slurm, with_options

        return run_on_slurm(with_options(job, options.sbatch), os.environ, dry_run=options.dry_run, detach=options.detach)
    if options.on == "ray":
        from trainshed.runner.places.ray.wishes import with_address

        job = with_address(job, options.address)
    if options.find_batch_size and not options.dry_run:
        from trainshed.runner.tools.batch_size import run_fitted

        return run_fitted(job, options.find_batch_size, options.scale_lr)
    if options.detach and not options.dry_run:
        from trainshed.runner.control.detached import start

        print(start(job, os.environ, on=options.on).name)
        return EXIT_SUCCESS
    if options.on == "kubernetes":
        from trainshed.runner.places.kubernetes.on_cluster import run_on_cluster

        return run_on_cluster(job, os.environ, dry_run=options.dry_run)
    from trainshed.runner.control.execution import run_job

    return run_job(job, os.environ, dry_run=options.dry_run, on=options.on)


def check(options: Namespace) -> None:
    """Refuses flags that do not go together. Raises UsageError."""
    if options.scale_lr and not options.find_batch_size:
        raise UsageError("--scale-lr goes with --find-batch-size")
    if options.sbatch and options.on != "slurm":
        raise UsageError("--sbatch goes with --on slurm")
    if options.find_batch_size and options.on != "here":
        raise UsageError(f"--find-batch-size cannot be used with --on {options.on}")
    if options.address and options.on != "ray":
        raise UsageError("--address goes with --on ray")
    if options.hosts is not None and options.on != "ssh":
        raise UsageError("--hosts goes with --on ssh")
