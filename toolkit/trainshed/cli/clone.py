"""`trainshed clone`: prints a job file that repeats a run."""

from __future__ import annotations

from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS

from .parser import Parser
from .which import run_of


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Prints a job file that repeats a run: trainshed clone RUN > job.yaml"
    parser.add_run(acts=False)


def run(options: Namespace) -> int:
    """Prints the job file; returns the exit status."""
    from trainshed.runner.control.operations import clone

    print(clone(run_of(options)), end="")
    return EXIT_SUCCESS
