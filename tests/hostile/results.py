"""Results on disk, so that what was played need not be played again; and the table of them."""

from __future__ import annotations

import collections
import json
import pickle
import re
from pathlib import Path

from hostile.combinations import COMBINATIONS
from hostile.judge import Verdict
from hostile.player import Played

OUTCOMES = ("exact", "close", "refused", "crash", "wrong", "hang")


class Results:
    """What was played with one seed.

    verdicts: (case, combination) -> its last verdict.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "expected").mkdir(parents=True, exist_ok=True)
        self._lines = folder / "results.jsonl"
        self.verdicts: dict[tuple[str, str], Verdict] = {}
        if self._lines.exists():
            for line in self._lines.read_text().splitlines():
                one = json.loads(line)
                self.verdicts[one["case"], one["combination"]] = Verdict(one["outcome"], one["why"])

    def put(self, played: Played, combination: str, verdict: Verdict) -> None:
        """Keeps a verdict."""
        self.verdicts[played.name, combination] = verdict
        line = {"case": played.name, "combination": combination, "seconds": round(played.seconds, 2), **vars(verdict)}
        with self._lines.open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def expected(self, name: str) -> Played | None:
        """What one process found, if it was asked."""
        path = self._path(name)
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def expect(self, played: Played) -> None:
        """Keeps what one process found."""
        self._path(played.name).write_bytes(pickle.dumps(played))

    def forget(self, name: str) -> None:
        """One process is asked again."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / "expected" / name.replace("/", ".")


def table(results: Results, cases: list[str], misuse: set[str]) -> str:
    """In Markdown: how many cases came to what, and each that is not right."""
    lines = []
    for kind in ("models", "loops", "architectures"):
        names = [name for name in cases if name.startswith(f"{kind}/") and name not in misuse]
        if not names:
            continue
        lines += [f"| {kind} ({len(names)}) | {' | '.join(OUTCOMES)} | not run |", f"|---|{'---|' * (len(OUTCOMES) + 1)}"]
        for combination in COMBINATIONS:
            lines.append(f"| {combination} | {_row(results, names, combination)} |")
        lines.append("")
    wrong = [name for name in cases if name in misuse]
    if wrong:
        lines += ["Misuse that must be refused:", "", "| combination | refused | other | not run |", "|---|---|---|---|"]
        for combination in COMBINATIONS:
            found = [results.verdicts.get((name, combination)) for name in wrong]
            refused = sum(one is not None and one.outcome == "refused" for one in found)
            lines.append(f"| {combination} | {refused} | {len(found) - refused - found.count(None)} | {found.count(None)} |")
        lines.append("")
    return "\n".join(lines + _not_right(results, cases, misuse))


def _row(results: Results, names: list[str], combination: str) -> str:
    found = [results.verdicts.get((name, combination)) for name in names]
    counts = collections.Counter(one.outcome if one else "not run" for one in found)
    return " | ".join(str(counts[outcome]) for outcome in (*OUTCOMES, "not run"))


def _not_right(results: Results, cases: list[str], misuse: set[str]) -> list[str]:
    """For each case that is not as in one process: each outcome, where, and the first line of why."""
    lines = []
    for name in cases:
        found: dict[str, list[str]] = {}
        why: dict[str, str] = {}
        for combination in COMBINATIONS:
            verdict = results.verdicts.get((name, combination))
            right = ("refused",) if name in misuse else ("exact", "close")
            if verdict is not None and verdict.outcome not in right:
                found.setdefault(verdict.outcome, []).append(combination)
                why.setdefault(verdict.outcome, _brief(verdict))
        lines += [f"* `{name}` ({', '.join(on)}): {outcome}: {why[outcome]}" for outcome, on in found.items()]
    return lines


def _brief(verdict: Verdict) -> str:
    lines = [line for line in verdict.why.splitlines() if line.strip()] or [""]
    text = lines[0]
    if verdict.outcome == "crash":
        text = next((line for line in lines if re.match(r"rank \d+: \w*Error|rank \d+: [A-Z]", line)), text)
    return re.sub(r"0x[0-9a-f]+", "0x...", re.sub(r"^rank \d+: (\w+: )?", "", text))[:160].replace("|", "\\|")
