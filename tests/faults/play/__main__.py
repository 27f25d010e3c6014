"""Plays random schedules for as long as one likes, several at once, and tells which ended wrong.

    python tests/faults/play [--minutes 5 | --cases N] [--seed X] [--at-once N] [--keep FOLDER] [--again]
    python tests/faults/play --only X.17 [--cases 10]

Without a seed one is drawn and printed; the same seed plays the same schedules. A case that ends wrong prints the command
that plays it again, and its folder stays. Needs root and Linux: every case has namespaces of its own, in which nothing else
runs. Exit status 1 where a case ended wrong, 2 where nothing can be played here.

With --again, a case that ended wrong is played once more when all others are over, alone, and counts only if it ends wrong
again: for a machine so busy that a host may not get to run for as long as it may be silent. Both ends are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

tests = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(tests), str(tests.parent / "toolkit")]

from faults.play.schedule import Schedule, draw  # noqa: E402 (after the path is set)
from faults.play.tally import Tally  # noqa: E402

ALONE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
LIMIT = 400.0  # seconds; a case that takes longer is broken itself


def play(schedule: Schedule, folder: Path) -> dict[str, Any]:
    """Plays one schedule in namespaces of its own; what came of it."""
    folder.mkdir(parents=True)
    command = [*ALONE, sys.executable, str(Path(__file__).parent), "--inside", schedule.name, "--keep", str(folder)]
    with (folder / "player").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    result = folder / "result.json"
    if result.exists():
        return dict(json.loads(result.read_text()))
    text = (folder / "player").read_text(errors="replace")[-2000:]
    return {"problems": [f"the player itself failed: {text}"], "ends": [], "said": [], "seconds": 0.0}


def possible() -> str:
    """Why nothing can be played here, "" where all is there."""
    missing = [name for name in ("unshare", "nsenter", "ip", "bridge", "tc", "iptables") if shutil.which(name) is None]
    if missing:
        return f"these programs are missing: {', '.join(missing)} (iproute2, iptables, util-linux)"
    done = subprocess.run([*ALONE, "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True, text=True)
    return f"no namespaces can be made here: {done.stderr.strip()}" if done.returncode else ""


def main() -> int:
    """Plays cases; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python tests/faults/play", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=0.0, help="how long to begin new cases")
    parser.add_argument("--seed", default="", help="letters and digits; one is drawn without")
    parser.add_argument("--cases", type=int, default=0, help="how many, instead of --minutes")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--at-once", type=int, default=4 * (os.cpu_count() or 1))
    parser.add_argument("--only", default="", metavar="SEED.NUMBER", help="plays one case, --cases times")
    parser.add_argument("--again", action="store_true", help="a case that ended wrong counts if it does so again, alone")
    parser.add_argument("--keep", default="", metavar="FOLDER", help="for the folders of cases that end wrong")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    parser.add_argument("--evidence", action="store_true", help="writes docs/evidence/faults.md anew")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # a shell may have us ignore them, and children inherit it
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if options.inside:
        from faults.play import case

        case.main(_drawn(options.inside), Path(options.keep))
        return 0
    if why := possible():
        print(why, file=sys.stderr)
        return 2
    folder = Path(options.keep or tempfile.mkdtemp(prefix="faults-"))
    tally, began = Tally(folder, play), time.monotonic()
    if options.only:
        schedule = _drawn(options.only)
        print(schedule)
        for number in range(options.cases or 1):
            tally.one(schedule, f"{schedule.name}-{number}")
    else:
        seed = options.seed or uuid.uuid4().hex[:6]
        print(f"seed {seed}", flush=True)
        _play_many(tally, seed, options)
    if options.again:
        tally.again()
    if not tally.failed and not tally.passed and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    total = tally.summary((time.monotonic() - began) / 60)
    print(total)
    if options.evidence:
        from support import evidence

        wrong = "".join(f"\n* `{one.name}` ({one}): {problem}" for one, problem in tally.failed)
        evidence.write("faults", f"Seed `{options.seed}`: {total}\n{wrong}\n\n{tally.faults()}")
    return 1 if tally.failed else 0


def _play_many(tally: Tally, seed: str, options: argparse.Namespace) -> None:
    end = time.monotonic() + 60 * options.minutes
    numbers = iter(range(options.first, options.first + options.cases) if options.cases else range(options.first, 1 << 30))
    lock = threading.Lock()

    def worker() -> None:
        while options.cases or time.monotonic() < end:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            tally.one(draw(seed, number), str(number))

    with ThreadPoolExecutor(options.at_once) as pool:
        for done in [pool.submit(worker) for _ in range(options.at_once)]:
            done.result()


def _drawn(name: str) -> Schedule:
    seed, _, number = name.rpartition(".")
    return draw(seed, int(number))


if __name__ == "__main__":
    sys.exit(main())
