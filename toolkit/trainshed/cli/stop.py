"""`trainshed stop`: ends a run."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, visible

from . import say
from .parser import Parser
from .which import run_of


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Stops a run: SIGTERM, its grace (120 s with the report), SIGKILL; then collects its results."
    parser.add_run(acts=True)
    parser.add_argument("--kill", action="store_true", help="do not wait for the script")


def run(options: Namespace) -> int:
    """Stops the run and prints its state; returns the exit status."""
    from trainshed.runner.control.operations import state_of, stop
    from trainshed.runner.display.runs import describe

    stopped = stop(run_of(options), os.environ, say, kill=options.kill)
    print(visible(describe(stopped, state_of(stopped, os.environ))), end="")
    return EXIT_SUCCESS
