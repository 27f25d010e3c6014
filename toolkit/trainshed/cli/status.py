"""`trainshed status`: the state of a run."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, visible

from .parser import Parser
from .which import run_of


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Shows the state of a run: phases with their seconds, goodput, exit status, metrics, and the reason of a failure."
    )
    parser.add_run(acts=False)
    parser.add_argument("--json", action="store_true", help="in the shape of DescribeTrainingJob, plus `Trainshed`")


def run(options: Namespace) -> int:
    """Prints the state; returns the exit status."""
    from trainshed.runner.control.operations import public_status, state_of
    from trainshed.runner.display.runs import describe
    from trainshed.runner.state.run_goodput import goodput_of

    stored = run_of(options)
    if options.json:
        import json

        status = public_status(stored, os.environ)
        if (goodput := goodput_of(stored)) is not None:
            status.setdefault("Trainshed", {})["Goodput"] = goodput
        print(json.dumps(status, indent=2))
    else:
        print(visible(describe(stored, state_of(stored, os.environ))), end="")
    return EXIT_SUCCESS
