"""`trainshed chaos`: plays failures on a job, and tells what they cost."""

from __future__ import annotations

import os
from argparse import Namespace

from trainshed.base.errors import EXIT_USER

from . import say
from .parser import Parser, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.runner.job.job import Job
    from trainshed.runner.state.stored import Stored
    from trainshed.runner.tools.chaos import Chaos

_MOST = 1e9  # seconds


def add_arguments(parser: Parser) -> None:
    """The command line: the job file or script, a flag for each field, and what is to fail."""
    from trainshed.runner.job.flags import add_flags, add_groups
    from trainshed.runner.tools.chaos import KINDS, SIMPLE

    parser.usage = "trainshed chaos JOB.yaml|SCRIPT [options]"
    parser.description = (
        "Runs a job here, as `trainshed run` does, and plays failures on it at random moments. Then prints what was played, "
        "and where the seconds went. Exit status: the job's own."
    )
    parser.epilog = "Kinds: " + "; ".join(f"{name} {kind.does}" for name, kind in KINDS.items())
    groups = add_groups(parser)
    add = parser.add_argument_group("what fails").add_argument
    add("--every", default="60s", metavar="TIME", help="mean time between two failures (default: 60s)")
    add("--kinds", default=",".join(SIMPLE), metavar="LIST", help=f"of {', '.join(KINDS)} (default: {','.join(SIMPLE)})")
    add("--lasting", default="", metavar="TIME", help="no more failures after so long (default: until the job ends)")
    add("--chaos-seed", default="", metavar="N", help="plays the same failures again, as far as the job allows")
    add("--json", action="store_true", help="print what was played, and the ledger, as JSON alone")
    add_flags(groups)


def run(options: Namespace) -> int:
    """Runs the job; returns its exit status. Raises JobError, TrainshedError, UsageError."""
    import random
    import threading

    from trainshed.runner.control.detached import start
    from trainshed.runner.control.parent import with_parent
    from trainshed.runner.tools.chaos import Chaos

    job, kinds = _job(options)
    every = _time("--every", options.every)
    lasting = _time("--lasting", options.lasting) if options.lasting else _MOST
    seed = options.chaos_seed or str(random.SystemRandom().randrange(10**6))
    stored = start(with_parent(job, os.environ), os.environ)
    say(f"chaos: {', '.join(kinds)}, every {options.every} on average; --chaos-seed {seed} plays the same again")
    _foretell(job, kinds)
    chaos = Chaos(stored, kinds, every, lasting, random.Random(seed), say)
    thread = threading.Thread(target=chaos.play, name="chaos", daemon=True)
    thread.start()
    try:
        ended = _shown(stored, options.json)
    finally:
        chaos.over.set()  # gives back what is paused, slowed, cut off
        thread.join()
    print(_told(ended, chaos, seed, options.json), end="")
    code = ended.ours.get("ExitCode", EXIT_USER)
    return code if isinstance(code, int) else EXIT_USER


def _job(options: Namespace) -> tuple[Job, list[str]]:
    """The job, and the kinds of failures that it is played. Raises JobError, UsageError."""
    from dataclasses import replace

    from trainshed.base.errors import did_you_mean
    from trainshed.base.numerals import whole
    from trainshed.runner.job.flags import job_of
    from trainshed.runner.job.job import Spot
    from trainshed.runner.tools.chaos import KINDS

    kinds = [name.strip() for name in options.kinds.split(",") if name.strip()]
    if not kinds:
        raise UsageError(f"--kinds names none of {', '.join(KINDS)}")
    if unknown := [name for name in kinds if name not in KINDS]:
        near = did_you_mean(unknown[0], KINDS) or f"there are {', '.join(KINDS)}"
        raise UsageError(f"--kinds: there is no kind {unknown[0]!r}: {near}")
    if options.chaos_seed and whole(options.chaos_seed) is None:
        raise UsageError(f"--chaos-seed {options.chaos_seed!r} is not a whole number")
    job = job_of(options, os.environ)
    for name in kinds:
        if why := KINDS[name].obstacle(bool(job.image), job.instances):
            raise UsageError(f"--kinds {name}: {why}")
    spot = job.spot or (Spot() if any(KINDS[name].needs_spot for name in kinds) else None)
    return replace(job, spot=spot), kinds


def _foretell(job: Job, kinds: list[str]) -> None:
    """Says which failures the job will not outlive."""
    from trainshed.runner.tools.chaos import KINDS

    has = {"retries": job.retries, "max_restarts": job.distribution.max_restarts}
    for name in kinds:
        needed = KINDS[name].outlived_by
        if needed and not any(has[field] for field in needed):
            lacks = f"neither {' nor '.join(needed)}" if len(needed) > 1 else f"no {needed[0]}"
            say(f"chaos: the job has {lacks}: {name} ends it (--{needed[-1].replace('_', '-')} 10)")


def _time(name: str, text: str) -> float:
    from trainshed.base.units import seconds_of

    seconds = seconds_of(text)
    if seconds is None or not 0 < seconds <= _MOST:
        raise UsageError(f"{name} {text!r} is not a time: 60s, 5m, 1h")
    return seconds


def _shown(stored: Stored, quiet: bool) -> Stored:
    """Shows the run until it ends; Ctrl-C stops it."""
    from trainshed.runner.control.operations import stop
    from trainshed.runner.display.follow import attach, follow
    from trainshed.runner.display.screen import Screen
    from trainshed.runner.state.stored import load

    screen = Screen()
    try:
        if not quiet:
            return attach(stored, screen)
        for _ in follow(stored):
            pass
    except KeyboardInterrupt:
        stop(stored, os.environ, say)
    finally:
        screen.close()
    return load(stored.folder)


def _told(run: Stored, chaos: Chaos, seed: str, as_json: bool) -> str:
    from trainshed.base.units import duration
    from trainshed.observe.goodput import rows
    from trainshed.runner.display.columns import in_columns
    from trainshed.runner.state.run_goodput import goodput_of

    found = goodput_of(run)
    if as_json:
        import json

        played = [{"seconds": round(one.at, 3), "kind": one.kind, "what": one.what} for one in chaos.played]
        return json.dumps({"run": run.name, "seed": int(seed), "failures": played, "goodput": found}, indent=2) + "\n"
    head: list[tuple[str, ...]] = [("AFTER", "FAILURE", "OF")]
    lines = in_columns([*head, *((duration(one.at), one.kind, one.what) for one in chaos.played)]) if chaos.played else ""
    ledger = rows(found) or [("goodput", "not known: neither steps nor metrics tell them apart (profile: auto)")]
    return f"\n{lines or 'no failure was played'}\n" + "".join(f"{name:11}{said}\n" for name, said in ledger)
