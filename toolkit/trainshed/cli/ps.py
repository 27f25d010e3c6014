"""`trainshed ps`: the runs of this machine."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, visible

from .parser import Parser


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = (
        "Lists the runs of this machine that have not ended: those in ./runs and in the index. `trainshed ls` searches all "
        "runs, past ones too, by metrics, hyperparameters and tags. Below them: the warm pools that jobs with `keep_alive` "
        "have left (`trainshed release` removes them)."
    )
    parser.epilog = (
        "A run whose runner was killed is Lost: `trainshed stop` ends it and collects its results, "
        "`trainshed rm` removes it."
    )
    parser.add_argument("--all", "-a", action="store_true", help="list ended runs too")
    parser.add_argument("--json", action="store_true", help="print an object with `runs` and `pools`")


def run(options: Namespace) -> int:
    """Prints the table; returns the exit status."""
    from trainshed.runner.control.operations import state_of
    from trainshed.runner.display import pools
    from trainshed.runner.display.runs import facts, table
    from trainshed.runner.files import warm_pool as pool
    from trainshed.runner.state.stored import every

    pool.sweep(os.environ)
    runs = [(stored, state_of(stored, os.environ)) for stored in every(os.environ)]
    if options.json:
        from trainshed.base.plain_json import as_json

        shown = [facts(*one) for one in runs if options.all or not one[0].ended]
        print(as_json({"runs": shown, "pools": [pools.facts(one) for one in pool.every(os.environ)]}), end="")
        return EXIT_SUCCESS
    print(visible(table(runs, everything=options.all)), end="")
    if kept := pools.table(pool.every(os.environ)):
        print("\n" + visible(kept), end="")
    return EXIT_SUCCESS
