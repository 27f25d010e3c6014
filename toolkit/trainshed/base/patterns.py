"""Regular expressions of users."""

from __future__ import annotations

import re
import warnings


def compiled(regex: str) -> re.Pattern[str]:
    """The expression, without what Python would print about its style (`[[a]`: a FutureWarning).

    Raises:
        re.error, RecursionError, OverflowError: it is not a regular expression that Python can compile.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.compile(regex)
