"""`trainshed watch`: a run's curves, machine and log in the terminal."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER
from trainshed.cli import say
from trainshed.cli.parser import Parser, whole
from trainshed.cli.which import run_of


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Shows a run in the terminal until it ends: curves, CPU, memory and GPUs, what its steps consist of, what rules "
        "have found, its last lines. Exits with its exit status. Ctrl-C leaves it running."
    )
    parser.epilog = "Without a terminal it prints a line now and then."
    parser.add_run(acts=False)
    parser.add_argument("--rank", type=whole, metavar="N", help="lines of one rank only")
    parser.add_argument("--once", action="store_true", help="show how the run is now, and exit")


def run(options: Namespace) -> int:
    """Shows the run; returns its exit status."""
    from trainshed.runner.control.operations import state_of
    from trainshed.runner.state.stored import Stored
    from trainshed.studio.watch.live import watch

    def state(run: Stored) -> str:
        return " ".join(filter(None, state_of(run, os.environ)))

    stored = run_of(options)
    try:
        stored = watch(stored, state, os.environ, rank=options.rank, once=options.once)
    except KeyboardInterrupt:
        say(f"{stored.name} goes on; `trainshed stop {stored.name}` ends it")
        return EXIT_SUCCESS
    if options.once or not (stored.ended or stored.lost):
        return EXIT_SUCCESS
    code = stored.ours.get("ExitCode", EXIT_USER)
    return code if isinstance(code, int) else EXIT_USER
