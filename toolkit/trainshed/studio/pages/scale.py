"""Numbers and times as people read them."""

from __future__ import annotations


def clock(seconds: float, step: float = 1) -> str:
    """`45 s`, `2:30`, `1:02:00`; with days beyond that. step: the distance of marks."""
    whole = round(seconds)
    if not whole:
        return "0"
    if whole >= 86400 and step >= 3600:
        return f"{whole // 86400} d {whole % 86400 // 3600} h" if whole % 86400 else f"{whole // 86400} d"
    if step >= 3600:
        return f"{whole // 3600} h"
    if whole >= 3600:
        return (
            f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"
            if step < 60
            else f"{whole // 3600}:{whole % 3600 // 60:02d} h"
        )
    if whole >= 60 or step >= 60:
        return f"{whole // 60}:{whole % 60:02d}" if step < 60 else f"{whole // 60} min"
    return f"{whole} s"


def short(value: float) -> str:
    """A number for a legend: four digits that count."""
    if value != value:
        return "NaN"
    if value - value != 0:
        return "inf" if value > 0 else "-inf"
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e+")
    return f"{value:.4g}"
