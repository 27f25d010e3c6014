"""`trainshed demo`: trains something small, offline."""

from __future__ import annotations

import os
from argparse import Namespace

from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Trains a small network on handwritten digits, offline, in about ten seconds: lays out a job in a temporary folder "
        "(in a container in /opt/ml; SAGEMAKER_BASE_DIR names another) and runs `train` on it. Without torch and "
        "scikit-learn it fits a line to points instead."
    )
    parser.epilog = (
        "In a container: `docker run --rm IMAGE demo`; with `-v $PWD/job:/opt/ml` the job and its model are kept."
    )


def run(options: Namespace) -> int:
    """Runs the demo; returns the exit status of its job."""
    from trainshed.container.demo import demo

    return demo(os.environ)
