"""Every benchmark that needs no special machine, one after the other, and one table of what they claim.

    make bench                                    # under 30 minutes on two quiet cores
    python benchmarks/bench.py --only data tune   # some of them
    python benchmarks/bench.py --list

Each is a script of this folder, at a size that takes minutes. The table has a row a claim: ours, the peer's number in
the same run, the limit, and how ours stands to the last results (`results/last.json`, which `--record` writes anew).
What a script prints is in build/bench/NAME.log. Status 1: a script failed. What is not met is told, and fails nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _claims import Claim, number

FOLDER = Path(__file__).resolve().parent
LAST = FOLDER / "results" / "last.json"
LOGS = FOLDER.parent / "build" / "bench"
LIMIT = 600.0  # seconds of one script
CHANGED = 1.10  # times the last number, in either direction: told


class Play(NamedTuple):
    """A script and its arguments. `claims` says what of ours is measured."""

    name: str
    claims: str
    words: Sequence[str] = ()
    script: str = ""


PLAYS = (
    Play("instructions", "what every job pays, in instructions (needs valgrind)"),
    Play("launcher", "start, exit, log lines, SIGTERM, two ranks", ("--quick",)),
    Play("output", "64 ranks that print", ("--seconds", "2")),
    Play("observe-log", "searching a log for metrics", ("--only", "log", "--lines", "100000"), "observe"),
    Play("observe-write", "metrics.log", ("--only", "write"), "observe"),
    Play("observe-sampler", "the profiler's sampler", ("--only", "sampler", "--seconds", "15"), "observe"),
    Play("observe-steps", "marks of steps", ("--only", "steps"), "observe"),
    Play("cli", "--help of every command", ("--runs", "5")),
    Play("mpi", "a job on two hosts", ("--repeat", "2")),
    Play("roster", "1,000 hosts", ("--idle", "5")),
    Play("fingerprint", "telling what data a run saw", ("--files", "50000", "--rounds", "2")),
    Play("data", "channels of each kind", ("--mb", "128")),
    Play("catalog", "questions to 2,000 runs", ("--runs", "2000", "--repeat", "3")),
    Play("ui", "the page with 2,000 runs and 1,000,000 points"),
    Play("tune", "trials and ASHA", ("--rounds", "1", "--seeds", "20")),
    Play("checkpoint", "what a save costs the loop", ("--megabytes", "500", "--repeat", "2")),
    Play("compiler", "a warm start", ("--models", "gpt2", "--modes", "eager,regional")),
    Play("pipeline", "steps and plans", ("--rounds", "10", "--cases", "0", "3", "--virtual", "1"), "pipeline_overhead"),
    Play("data_parallel", "DDP over slow links", ("--only", "4x1:200:24", "2x2:500:24")),
    Play("rules", "a look at gradients", ("--steps", "5")),
)


def main() -> int:
    """Plays, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[play.name for play in PLAYS], metavar="NAME", help="these alone")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--record", action="store_true", help=f"write {LAST.relative_to(FOLDER.parent)} anew")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{play.name:16} {play.claims}" for play in PLAYS))
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    plays = [play for play in PLAYS if options.only is None or play.name in options.only]
    last = json.loads(LAST.read_text()) if LAST.exists() else {"claims": []}
    found: dict[str, list[Claim]] = {}
    failed = []
    began = time.monotonic()
    for play in plays:
        since = time.monotonic()
        print(f"{play.name}: {play.claims} ...", end=" ", file=sys.stderr, flush=True)
        status = run(play)
        found[play.name] = told(play)
        words = f"status {status}" if status and not found[play.name] else f"{len(found[play.name])} numbers"
        if status and not found[play.name]:
            failed.append(play.name)
        print(f"{words}, {time.monotonic() - since:.0f} s", file=sys.stderr)
    claims = [claim for several in found.values() for claim in several]
    print(about(time.monotonic() - began))
    print(table(claims, {each["name"]: each["ours"] for each in last["claims"]}))
    if failed:
        print(f"\nfailed: {', '.join(failed)}; see {LOGS}")
    if options.record:
        kept = [each for each in last["claims"] if each["name"] not in {claim.name for claim in claims}]
        made = {**machine(), "claims": [*kept, *(claim._asdict() for claim in claims)]}
        LAST.parent.mkdir(exist_ok=True)
        LAST.write_text(json.dumps(made, indent=1) + "\n")
    return int(bool(failed))


def run(play: Play) -> int:
    """The exit status of a script; 124 where it ran out of time."""
    path = LOGS / f"{play.name}.claims"
    path.unlink(missing_ok=True)
    command = [sys.executable, str(FOLDER / f"{play.script or play.name}.py"), *play.words]
    environ = {**os.environ, "BENCH_CLAIMS": str(path)}
    with (LOGS / f"{play.name}.log").open("wb") as log:
        try:
            done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return 124
    return done.returncode


def told(play: Play) -> list[Claim]:
    """What a script has claimed."""
    path = LOGS / f"{play.name}.claims"
    return [Claim(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def machine() -> dict[str, Any]:
    """Where and when."""
    model = next(
        (line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ""
    )
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} x {model}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def about(seconds: float) -> str:
    """The line above the table."""
    here = machine()
    load = f"load at the end {here['load']}"
    return f"{here['date']}, {here['machine']}, Python {here['python']}, {load}, {seconds / 60:.0f} min\n"


def table(claims: Sequence[Claim], last: dict[str, float]) -> str:
    """Markdown: a row a claim."""
    lines = ["| claim | ours | peer | limit | | to the last |", "|---|---|---|---|---|---|"]
    for claim in claims:
        peer = "" if claim.peer is None else f"{claim.peer_name} {number(claim.peer)}"
        before = last.get(claim.name)
        ratio = claim.ours / before if before else 1.0
        beside = f"{ratio:.2f}x" if not 1 / CHANGED <= ratio <= CHANGED else ""
        cells = [claim.name, f"{number(claim.ours)} {claim.unit}".rstrip(), peer, claim.goal, claim.verdict, beside]
        lines.append(f"| {' | '.join(cells)} |")
    met = [claim.met for claim in claims if claim.met is not None]
    return "\n".join([*lines, "", f"{sum(met)} of {len(met)} met"])


if __name__ == "__main__":
    sys.exit(main())
