"""`trainshed init`: writes a job file and a Dockerfile."""

from __future__ import annotations

from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS

from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Writes a job file and a Dockerfile beside a training script; without a script, "
        "a small one too. Files that exist stay as they are."
    )
    parser.add_argument(
        "script", nargs="?", default="", metavar="SCRIPT",
        help="the training script (default: train.py)",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace job.yaml and Dockerfile")


def run(options: Namespace) -> int:
    """Writes the files and says which; returns the exit status."""
    from trainshed.runner.tools.init import write

    for line in write(options.script, force=options.force):
        print(line)
    return EXIT_SUCCESS
