"""`trainshed stop`: ends a run."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, one_line, visible

from . import say
from .parser import Parser
from .which import run_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.runner.state.stored import Stored


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Stops a run: SIGTERM, its grace (120 s with the report), SIGKILL; then collects its results."
    parser.add_run(acts=True)
    parser.add_argument("--kill", action="store_true", help="do not wait for the script")


def run(options: Namespace) -> int:
    """Stops the run and prints its state; returns the exit status."""
    from trainshed.runner.control.operations import state_of, stop
    from trainshed.runner.display.runs import describe

    meant = run_of(options)
    older = _older(meant) if meant.ended and not options.run else None
    stopped = stop(older or meant, os.environ, say, kill=options.kill)
    if meant.ended and not options.run and older is None:
        say("no run of this folder goes on")
    print(visible(describe(stopped, state_of(stopped, os.environ))), end="")
    return EXIT_SUCCESS


def _older(ended: Stored) -> Stored | None:
    """The run of this folder that goes on where the newest one has ended, told to the user."""
    from trainshed.runner.state.stored import newest_running

    found = newest_running(os.environ)
    if found is not None:
        say(f"{ended.name}, the newest run of this folder, has ended: stopping {found.name} in {one_line(found.folder)}")
    return found
