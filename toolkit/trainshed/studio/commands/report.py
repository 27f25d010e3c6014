"""`trainshed report`: a run's page."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS
from trainshed.cli.parser import Parser
from trainshed.cli.which import run_of, run_or_none


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Writes the report of a run, also of one that still goes on: curves, phases, settings and failure of all its hosts "
        "and attempts, in one HTML file that loads nothing."
    )
    parser.epilog = "RUN may also be a job folder (/opt/ml) in which `train` ran."
    parser.add_run(acts=False)
    parser.add_argument(
        "-o", "--output", default="", metavar="FILE", help="where to (default: report.html in the run's folder)"
    )


def run(options: Namespace) -> int:
    """Writes the page and prints its path; returns the exit status. Raises TrainshedError."""
    from trainshed.studio.run_report import facts_of, facts_of_job_folder, write

    stored = run_or_none(options.run, _is_job_folder) if options.run else run_of(options)
    if stored is None:
        folder = os.path.abspath(options.run)
        facts, path = facts_of_job_folder(folder), f"{folder}/output/data/report.html"
    else:
        from trainshed.runner.files.run import REPORT

        facts, path = facts_of(stored), f"{stored.folder}/{REPORT}"
    path = options.output or path
    write(facts, path)
    print(path)
    return EXIT_SUCCESS


def _is_job_folder(path: str) -> bool:
    return os.path.isdir(f"{path}/output/data")
