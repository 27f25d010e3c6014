"""Compares what ranks found with what one process found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hostile.player import Played

# Relative to the norm of a tensor; sums of shared parameters are added in another order.
CLOSE = 2e-4
# A tensor whose elements are smaller than this is a sum that cancels out, in another order.
NOTHING = 2e-6


@dataclass
class Verdict:
    """outcome: exact, close, refused, crash, wrong, hang or broken (the case fails in one process, too)."""

    outcome: str
    why: str = ""


def judge(played: Played, expected: Played, misuse: bool = False) -> Verdict:
    """What a case came to."""
    if expected.hung or expected.died or expected.found[0][0] != "done":
        return Verdict("broken", expected.hung or expected.died or _failure(expected.found))
    if played.hung:
        return Verdict("hang", _failure(played.found) + played.hung)
    # A rank that is gone has found nothing.
    if any(found and found[0] != "done" and "Timed out waiting" in found[4] for found in played.found):
        return Verdict("hang", "a rank waited until its time was over: " + _failure(played.found))
    if played.died:
        return Verdict("crash", _failure(played.found) + played.died)
    kinds = {found[0] for found in played.found}
    if "crashed" in kinds:
        # An error that a PipelineError on another rank tells of is told on the rank that met it.
        return Verdict("crash", _failure(played.found))
    if any("call init() first" in str(found[3]) for found in played.found if found[0] == "refused"):
        return Verdict("broken", _failure(played.found))  # the case itself
    if "refused" in kinds:
        hints = [found[3] for found in played.found if found[0] == "refused"]
        if kinds != {"refused"}:
            return Verdict("crash", "not refused on all ranks: " + _failure(played.found))
        why = _failure(played.found)
        return Verdict("refused", why) if any(hints) else Verdict("refused", f"WITHOUT A WAY OVER: {why}")
    if misuse:
        return Verdict("wrong", "misuse that nothing refused")
    wrong, exact = differences(played.found, expected.found[0])
    if wrong:
        return Verdict("wrong", "; ".join(wrong[:6]) + (f"; and {len(wrong) - 6} more" if len(wrong) > 6 else ""))
    return Verdict("exact" if exact else "close")


def _failure(found: list[Any]) -> str:
    told = []
    for rank, one in enumerate(found):
        if one is not None and one[0] != "done":
            text = f"{one[1]}: {one[2]}" + (f" ({one[3]})" if one[3] else "")
            told.append(f"rank {rank}: {text}" + (f"\n{one[4]}" if one[0] == "crashed" else ""))
    return "\n".join(told)


def differences(found: list[Any], expected: Any) -> tuple[list[str], bool]:
    """Where ranks differ from one process, and whether all is equal to the last bit."""
    wrong: list[str] = []
    exact = True
    for rank, (_, notes, _) in enumerate(found):
        if notes.keys() != expected[1].keys():
            wrong.append(f"rank {rank} noted {sorted(notes.keys() ^ expected[1].keys())} more or less")
            continue
        for name, want in expected[1].items():
            exact &= _compare(f"{name}", f"rank {rank}", notes[name], want, wrong)
    for name, wants in expected[2].items():
        have: dict[str, Any] = {}
        for rank, (_, _, parts) in enumerate(found):
            for key, value in parts.get(name, {}).items():
                if key in have and not torch.equal(have[key], value):
                    if _compare(f"{name} {key}", f"rank {rank} and another", value, have[key], wrong):
                        continue
                    exact = False
                have[key] = value
        if have.keys() != wants.keys():
            wrong.append(
                f"{name}: of {sorted(have.keys() ^ wants.keys())[:4]} only the ranks, or only one process, have some"
            )
            continue
        for key, want in wants.items():
            exact &= _compare(f"{name} {key}", "ranks", have[key], want, wrong)
    return wrong, exact


def _compare(name: str, where: str, have: Any, want: Any, wrong: list[str]) -> bool:
    """Whether the two are equal; adds to `wrong` where they are not even close."""
    if isinstance(want, dict):
        if not isinstance(have, dict) or have.keys() != want.keys():
            other = sorted(have.keys() ^ want.keys())[:4] if isinstance(have, dict) else have
            wrong.append(f"{name}: other names on {where}: {other}")
            return False
        return all([_compare(f"{name} {key}", where, have[key], want[key], wrong) for key in want])
    if isinstance(want, list):
        if not isinstance(have, list) or len(have) != len(want):
            wrong.append(f"{name}: {have!r:.80} on {where}, {want!r:.80} in one process")
            return False
        return all([_compare(f"{name}[{n}]", where, h, w, wrong) for n, (h, w) in enumerate(zip(have, want, strict=True))])
    if isinstance(want, torch.Tensor):
        return _compare_tensors(name, where, have, want, wrong)
    if isinstance(want, float) and isinstance(have, float):
        return _compare_tensors(name, where, torch.tensor(have), torch.tensor(want), wrong)
    if have != want:
        wrong.append(f"{name}: {have!r:.80} on {where}, {want!r:.80} in one process")
    return bool(have == want)


def _compare_tensors(name: str, where: str, have: Any, want: torch.Tensor, wrong: list[str]) -> bool:
    if not isinstance(have, torch.Tensor) or have.shape != want.shape or have.dtype != want.dtype:
        wrong.append(f"{name}: {getattr(have, 'shape', have)!s:.80} on {where}, {want.shape} {want.dtype} in one process")
        return False
    have, want = (value.to_dense() if value.layout != torch.strided else value for value in (have, want))
    if torch.equal(have, want):
        return True
    kind = torch.complex128 if want.is_complex() else torch.float64
    a, b = have.to(kind), want.to(kind)
    same = torch.isfinite(a) == torch.isfinite(b)
    if not bool(same.all()):
        wrong.append(f"{name}: other elements are finite on {where}")
        return False
    finite = torch.isfinite(a)
    if torch.equal(have[finite], want[finite]) and torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return True
    distance = float((a[finite] - b[finite]).norm())
    if distance > CLOSE * float(b[finite].norm()) and float((a[finite] - b[finite]).abs().max()) > NOTHING:
        wrong.append(f"{name}: relative distance {distance / (float(b[finite].norm()) + 1e-30):.1e} on {where}")
    return False
