"""`trainshed release`: ends warm pools before their time."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, TrainshedError, did_you_mean

from . import say
from .parser import Parser

ALL = "all"


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Removes warm pools: what jobs with `keep_alive` have left for the next run. `trainshed ps` lists them. One that a "
        "run uses goes when that run ends."
    )
    parser.add_argument("pools", nargs="+", metavar="POOL", help="names of pools or of the jobs that made them, or all")


def run(options: Namespace) -> int:
    """Removes the pools and prints their names; returns the exit status."""
    from trainshed.runner.files.warm_pool import ask_for_end, every, sweep

    sweep(os.environ)
    pools = every(os.environ)
    found = []
    for text in options.pools:
        meant = [one for one in pools if text in (ALL, one.name, one.job)]
        if not meant and text != ALL:
            hint = did_you_mean(text, [one.name for one in pools]) or "trainshed ps lists them"
            raise TrainshedError(f"there is no warm pool {text}", hint=hint)
        found += [one for one in meant if one not in found]
    for one in found:
        try:
            gone = ask_for_end(one)
        except OSError as error:
            raise TrainshedError(f"{one.name} cannot be released: {error.strerror}") from error
        if gone:
            print(one.name, flush=True)
        else:
            say(f"{one.name} is in use by {one.run.get('Name', 'a run')}, and goes when that ends")
    return EXIT_SUCCESS
