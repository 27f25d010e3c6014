"""Tests that run and are shown, and turn nothing red for a few days: tests/quarantine.toml."""

from __future__ import annotations

import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it along

FILE = "tests/quarantine.toml"  # below the root of the tests
FIELDS = {"test": str, "first_seen": date, "why": str, "expires": date}
LONGEST = timedelta(days=14)
MOST = 8


def entries(file: Path) -> list[dict[str, Any]]:
    """The file's `[[quarantined]]` tables, none where there is no file."""
    return tomllib.loads(file.read_text()).get("quarantined", []) if file.exists() else []


def faults(listed: list[dict[str, Any]], today: date) -> list[str]:
    """What is wrong with them, a line each."""
    found = [f"{len(listed)} tests are in quarantine, at most {MOST} may be"] if len(listed) > MOST else []
    for entry in listed:
        name = entry.get("test", "an entry without `test`")
        wrong = [field for field, kind in FIELDS.items() if type(entry.get(field)) is not kind]
        if wrong or entry.keys() - FIELDS:
            found.append(f"{name}: has to have {', '.join(FIELDS)} and nothing else")
        elif not (ROOT / name.partition("::")[0]).is_file():
            found.append(f"{name}: there is no such file")
        elif entry["expires"] < today:
            found.append(f"{name}: has expired on {entry['expires']}: mend the test or what it tests")
        elif entry["expires"] - entry["first_seen"] > LONGEST:
            found.append(f"{name}: expires more than {LONGEST.days} days after it was first seen")
    return found
