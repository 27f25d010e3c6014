"""Seconds and bytes as people read them."""

from __future__ import annotations

_SIZE = r"(?ia)(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)(i?b)?"
_TIME = r"(?a)(\d{1,9}(?:\.\d{1,6})?)([smhd]?)"
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def duration(seconds: float) -> str:
    """`0.42 s`, `12 s`, `1 min 05 s`, `2 h 03 min`."""
    if not abs(seconds) < 1e15:  # no number, or none that anybody means
        return f"{seconds} s"
    if seconds < 9.95:
        return f"{seconds:.2g} s" if seconds >= 0.01 else "0 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def seconds_of(text: str) -> float | None:
    """Seconds: `90`, `90s`, `1.5m`, `8h`, `2d`, else None."""
    import re

    match = re.fullmatch(_TIME, text.strip())
    return float(match[1]) * _SECONDS[match[2]] if match else None


def size(count: float) -> str:
    """`12 B`, `3.4 kB`, `1.1 MB`, `2.0 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def bytes_of(text: str) -> int | None:
    """Bytes: `2g`, `512m`, `1.5 GiB` or a plain number, else None; units are powers of 1024, as Docker reads them."""
    import re

    match = re.fullmatch(_SIZE, text.strip())
    return int(float(match[1]) * (1 << _POWERS[match[2].lower()])) if match else None
