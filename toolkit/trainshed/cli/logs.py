"""`trainshed logs`: what a run's hosts have printed."""

from __future__ import annotations

import sys
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, did_you_mean

from . import say
from .parser import Parser, UsageError, whole
from .which import run_of


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Prints what a run's hosts have printed."
    parser.add_run(acts=False)
    add = parser.add_argument
    add("--follow", "-f", action="store_true", help="continue until the run ends")
    add("--rank", type=whole, metavar="N", help="lines of one rank only")
    add("--host", default="", metavar="NAME", help="lines of one host only, like algo-2")
    add("--last", "-n", type=whole, metavar="N", help="start with the last N lines of each host")


def run(options: Namespace) -> int:
    """Prints the lines; returns the exit status. Raises UsageError where the host has no log."""
    from trainshed.runner.display.follow import logs_of, show_logs

    stored = run_of(options)
    hosts = logs_of(stored)
    if options.host and options.host not in hosts and not options.follow:
        near = did_you_mean(options.host, hosts)
        raise UsageError(f"there is no log of {options.host!r}", hint=near)
    sys.stdout.flush()
    ranks = show_logs(
        stored,
        1,
        host=options.host,
        rank=options.rank,
        last=options.last,
        go_on=options.follow,
    )
    if options.rank is not None and options.rank not in ranks:
        seen = f"; there are those of {', '.join(map(str, sorted(ranks)[:16]))}" if ranks else ""
        say(f"no line here is of rank {options.rank}{seen}")
    return EXIT_SUCCESS
