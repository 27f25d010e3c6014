"""`trainshed attach`: shows a run until it ends."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER

from . import say
from .parser import Parser
from .which import run_of


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Shows a run's lines as they come, until it ends; exits with its exit status. Ctrl-C leaves it running."
    )
    parser.add_run(acts=False)


def run(options: Namespace) -> int:
    """Shows the run; returns its exit status."""
    from trainshed.runner.control.operations import with_follower
    from trainshed.runner.display.follow import attach
    from trainshed.runner.display.screen import Screen

    stored = with_follower(run_of(options), os.environ)
    screen = Screen()
    try:
        stored = attach(stored, screen)
    except KeyboardInterrupt:
        screen.say(f"{stored.name} goes on; `trainshed stop {stored.name}` ends it")
        return EXIT_SUCCESS
    finally:
        screen.close()
    if stored.lost:
        command = f"`trainshed stop {stored.name}`"
        say(f"{stored.name}: its runner was killed; {command} ends it and collects its results")
        return EXIT_USER
    code = stored.ours.get("ExitCode", EXIT_USER)
    return code if isinstance(code, int) else EXIT_USER
