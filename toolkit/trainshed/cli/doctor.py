"""`trainshed doctor`: checks this machine or container."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER

from .parser import Parser, UsageError


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Checks this machine or container, and the job in FOLDER "
        "(default: SAGEMAKER_BASE_DIR, else /opt/ml). Changes nothing. With --cluster and --hosts or a "
        "job file: the machines that --on ssh would use, from here."
    )
    parser.epilog = "Exit status: 0, or 1 if a check failed. `trainshed check-image IMAGE` checks an image from outside."
    parser.add_argument("folder", nargs="?", default="", metavar="FOLDER|JOB.yaml", help="a job's /opt/ml")
    parser.add_argument(
        "--cluster", action="store_true",
        help="run this on every host of the job: names, ports, latency, bandwidth, clocks, the "
        "same image and code everywhere; the first host prints the table",
    )  # fmt: skip
    parser.add_argument(
        "--hosts", default="", metavar="HOST,...",
        help="with --cluster: machines for --on ssh (user@machine, user@machine:port): whether "
        "they can run jobs, and whether all reach each other; default: the job file's",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")


def run(options: Namespace) -> int:
    """Prints one line a check; returns 1 if a check failed. Raises UsageError, JobError."""
    from trainshed.base.check import as_json, as_lines

    environ = dict(os.environ)
    if options.folder:
        environ["SAGEMAKER_BASE_DIR"] = options.folder
    if options.hosts and not options.cluster:
        raise UsageError("--hosts goes with --cluster")
    if options.hosts or (options.cluster and options.folder.endswith((".yaml", ".yml", ".json"))):
        from trainshed.places.ssh.checkup import examine as examine_machines

        checks = examine_machines(
            options.folder, [host.strip() for host in options.hosts.split(",") if host.strip()], environ
        )
    elif options.cluster:
        from trainshed.container.doctor.cluster_checks import checks as examine_cluster
        from trainshed.machine.console import say

        checks = examine_cluster(environ, say)
    else:
        from trainshed.container.doctor import examine

        checks = examine(environ)
    print(as_json(checks) if options.json else as_lines(checks))
    return EXIT_USER if any(check.level == "fail" for check in checks) else EXIT_SUCCESS
