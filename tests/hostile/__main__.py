"""Trains models and loops that nothing here was tuned to, on ranks and in one process, and compares; hours, on two cores.

    PYTHONPATH=toolkit:tests python -m hostile [--only WORDS] [--on 2-1f1b ...] [--seed 1] [--minutes 60] [--evidence]

What was played before with this seed (build/zoo) is not played again, except with --again: of the outcomes named, or all.
The seed decides data, configurations and where the models are cut. Exit status 1 where a case was wrong, hung or crashed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from hostile import table
from hostile.combinations import ALONE, COMBINATIONS, Combination
from hostile.judge import judge
from hostile.player import play
from hostile.results import OUTCOMES, Results
from hostile.results import table as table_of
from support import evidence
from support.paths import ROOT


def main() -> int:
    """Plays, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names have one of these words")
    parser.add_argument("--on", nargs="*", default=list(COMBINATIONS), choices=list(COMBINATIONS), help="combinations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="end earlier, with what has been played by then")
    parser.add_argument("--again", nargs="*", choices=[*OUTCOMES, "broken", "all"], default=[])
    parser.add_argument("--evidence", action="store_true", help="write the table to docs/evidence/zoo.md")
    parser.add_argument("--list", action="store_true", help="the names alone")
    options = parser.parse_args()
    table.set_seed(options.seed)
    cases = [name for name in table.cases() if not options.only or any(word in name for word in options.only)]
    if options.list:
        print("\n".join(cases))
        return 0
    results = Results(Path(ROOT, "build", "zoo", str(options.seed)))
    deadline = time.monotonic() + options.minutes * 60
    for name in options.on:
        todo = [case for case in cases if _wanted(results, case, name, options.again)]
        _play(results, todo, COMBINATIONS[name], options.seed, deadline, bool(options.again))
    found = table_of(results, cases, table.MISUSE)
    if table.ABSENT:
        found = f"Not installed, and so not played: the models of {' and '.join(table.ABSENT)}.\n\n{found}"
    print(found)
    if options.evidence:
        evidence.write("zoo", f"Seed {options.seed}.\n\n{found}")
    bad = {"wrong", "hang", "crash", "broken"}
    return int(any(results.verdicts[key].outcome in bad for key in results.verdicts if key[0] in cases))


def _wanted(results: Results, case: str, combination: str, again: list[str]) -> bool:
    verdict = results.verdicts.get((case, combination))
    return verdict is None or "all" in again or verdict.outcome in again


def _play(results: Results, names: list[str], combination: Combination, seed: int, deadline: float, anew: bool) -> None:
    """Plays cases on a combination of ranks, in slices: one process first."""
    while names and time.monotonic() < deadline:
        names, now = names[SLICE:], names[:SLICE]
        unknown = [name for name in now if anew or results.expected(name) is None]
        for played in play(unknown, ALONE, seed):
            results.expect(played)
        for played in play(now, combination, seed):
            expected = results.expected(played.name)
            assert expected is not None
            verdict = judge(played, expected, played.name in table.MISUSE)
            results.put(played, combination.name, verdict)
            print(f"{combination.name} {played.seconds:6.1f} s {verdict.outcome:8} {played.name}", flush=True)
            if verdict.outcome not in ("exact", "close"):
                print("    " + verdict.why.replace("\n", "\n    ")[-1500:], flush=True)


SLICE = 60

if __name__ == "__main__":
    sys.exit(main())
