"""`trainshed cache`: what was fetched for channels and is kept for other runs."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_SUCCESS, EXIT_USER, TrainshedError, one_line
from trainshed.contract.wire.variables import CHANNEL_CACHE, CHANNEL_CACHE_SIZE

from . import say
from .parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.runner.files.fetching.file_cache import Cache


def add_arguments(parser: Parser) -> None:
    """The command line."""
    parser.description = "Looks after the files that were fetched for channels and are kept for other runs."
    parser.epilog = (
        f"{CHANNEL_CACHE} names their folder (`off`: nothing is kept; default: ~/.cache/trainshed/channels), "
        f"{CHANNEL_CACHE_SIZE} what they may take, like 50g (default: a tenth of the disk)."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ls|rm|prune")
    what = "what is kept, by folder, what was used last first"
    listed = actions.add_parser("ls", help=f"list {what}", description=f"Lists {what}.")
    listed.add_argument("--files", action="store_true", help="list every file")
    listed.add_argument("--json", action="store_true", help="print JSON; times in seconds since the epoch")
    what = "what is kept of some addresses, or everything"
    removed = actions.add_parser("rm", help=f"remove {what}", description=f"Removes {what}.")
    removed.add_argument("addresses", nargs="*", metavar="ADDRESS", help="beginning of addresses, like s3://bucket/data/")
    removed.add_argument("--all", action="store_true", help="remove everything")
    what = "what was used longest ago, until the rest fits"
    pruned = actions.add_parser("prune", help=f"remove {what}", description=f"Removes {what}.")
    pruned.add_argument("--to", default="", metavar="SIZE", help="what may stay, like 10g (default: what may always stay)")


def run(options: Namespace) -> int:
    """Does what is asked for; returns the exit status. Raises TrainshedError."""
    from trainshed.base.units import size
    from trainshed.runner.files.fetching.file_cache import find_cache, limit_of

    cache = find_cache(os.environ)
    if cache is None:
        raise TrainshedError(f"{CHANNEL_CACHE} is off: nothing is kept")
    if options.action == "ls":
        from trainshed.base.plain_json import as_json
        from trainshed.runner.display.cached import facts

        told = facts(cache, files=options.files)
        print(as_json(told) if options.json else _listed(told), end="")
        return EXIT_SUCCESS
    if options.action == "prune":
        count, gone = cache.prune(limit_of(options.to, "--to") if options.to else None)
        print(f"{count:,} {'file' if count == 1 else 'files'} removed, {size(gone)}")
        return EXIT_SUCCESS
    return _removed(cache, options.addresses, everything=options.all)


def _listed(told: dict[str, Any]) -> str:
    import time

    from trainshed.base.units import duration, size

    rows = told["addresses"]
    lines = [f"{'SIZE':>8}  {'FILES':>7}  {'USED':<18}  ADDRESS"] if rows else []
    for row in rows:
        begun = f"  ({row['partial']:,} of them not whole yet)" if row["partial"] else ""
        used = f"{duration(max(0.0, time.time() - row['used']))} ago"
        lines.append(f"{size(row['bytes']):>8}  {row['files']:>7,}  {used:<18}  {one_line(row['address'])}{begun}")
    total = size(sum(row["bytes"] for row in rows))
    return "\n".join([*lines, f"{total} of {size(told['limit'])} in {told['folder']}", ""])


def _removed(cache: Cache, addresses: list[str], *, everything: bool) -> int:
    from trainshed.base.units import size

    if everything == bool(addresses):
        raise TrainshedError("name addresses, or --all", hint="`trainshed cache ls` lists them")
    count = gone = used = 0
    for entry in cache.entries():
        if everything or entry.url.startswith(tuple(addresses)):
            if cache.remove(entry):
                count, gone = count + 1, gone + entry.size
            else:
                used += 1
    print(f"{count:,} {'file' if count == 1 else 'files'} removed, {size(gone)}")
    if used:
        say(f"{used:,} stay: a run is fetching them now")
    return EXIT_USER if used or not (count or everything) else EXIT_SUCCESS
