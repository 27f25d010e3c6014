"""What is said of a script in the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .agreement import Compared, compared
from .evidence import Evidence
from .likely_causes import Cause, causes, notes

_KINDS = {"losses": "losses", "taken": "gradients", "norms": "clipped norm", "moved": "weights"}


@dataclass(frozen=True)
class Verdict:
    """ranks, steps: that were compared. rows: of what was compared -> how it went. why_not: the one process says nothing."""

    ranks: int
    steps: int
    causes: list[Cause]
    rows: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    why_not: str = ""

    @property
    def status(self) -> int:
        """0: they agree; 1: they do not; 3: nothing is wrong, and not all was compared."""
        return 1 if any(not one.mild for one in self.causes) else 3 if self.why_not else 0

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "status": self.status}


def judge(ranks: list[Evidence], alone: Evidence | None) -> Verdict:
    """Compares what ranks and one process have left."""
    found = compared(ranks, alone)
    steps = min((len(one.updates) for one in ranks), default=0)
    wrong = causes(found)
    if not wrong and "taken" in found.apart:
        found.why_not = "the script weighs its loss by batches that it makes itself; let a DataLoader give them"
        found.apart.clear()
        found.checked.clear()
    return Verdict(len(ranks), steps, wrong, _rows(found), notes(found), found.why_not)


def _rows(found: Compared) -> dict[str, str]:
    rows: dict[str, str] = {}
    if found.divided_by_hand or found.in_stages:
        return rows
    scaled = {"weights"} if notes(found) else set()
    for kind, words in _KINDS.items():
        apart = found.among.get(kind) or found.apart.get(kind)
        if apart is not None and words not in scaled:
            rows[words] = f"differ in step {apart.step + 1}"
        elif words in found.checked:
            rows[words] = "agree" if words not in scaled else "agree but for the learning rate"
    return rows


def told(verdict: Verdict) -> str:
    """A few lines for a person."""
    lines = [f"verify: {verdict.ranks} ranks and one process, {verdict.steps} steps"]
    lines += [f"  {words:<14}{how}" for words, how in verdict.rows.items()]
    for cause in verdict.causes:
        lines += [f"  {'warning' if cause.mild else 'wrong'}: {cause.text}", f"    hint: {cause.hint}"]
    lines += [f"  note: {one}" for one in verdict.notes]
    if verdict.why_not:
        lines.append(f"  not compared with one process: {verdict.why_not}")
    elif not verdict.status:
        lines.append("  it trains as one process does")
    return "\n".join(lines)
