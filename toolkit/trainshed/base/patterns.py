"""Regular expressions of users."""

from __future__ import annotations

import re
import warnings


def needed_by(pattern: re.Pattern[str]) -> str:
    """A text that is in every text in which an expression is found, the longest that is easily told; "" where none is."""
    if pattern.flags & re.IGNORECASE:
        return ""
    try:
        from re import _parser  # type: ignore[attr-defined]
    except ImportError:  # Python 3.10
        import sre_parse as _parser
    runs = [""]
    for kind, value in _parser.parse(pattern.pattern, pattern.flags & re.VERBOSE):
        if str(kind) == "LITERAL":
            runs[-1] += chr(value)
        else:
            runs.append("")
    return max(runs, key=len)


def compiled(regex: str) -> re.Pattern[str]:
    """The expression, without what Python would print about its style (`[[a]`: a FutureWarning).

    Raises:
        re.error, RecursionError, OverflowError: it is not a regular expression that Python can compile.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.compile(regex)
