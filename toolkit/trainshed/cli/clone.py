"""`trainshed clone`: prints a job file that repeats a run."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS

from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Prints a job file that repeats a run: trainshed clone RUN > job.yaml"
    parser.add_run()


def run(options: Namespace) -> int:
    """Prints the job file; returns the exit status."""
    from trainshed.runner.control.operations import clone
    from trainshed.runner.state.stored import find

    print(clone(find(options.run, os.environ)), end="")
    return EXIT_SUCCESS
