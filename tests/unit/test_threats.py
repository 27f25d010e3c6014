"""Pages that name tests name ones that exist: the threat model, and the differences from Amazon's toolkit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.paths import DOCS, ROOT
from support.peer_differences import DIFFERENCES

TEST = re.compile(r"([\w/]+\.py)::(test_\w+)")
HEAD = "## Each threat, and its test\n"


def threats() -> list[str]:
    """The rows of the threat model's table."""
    table = (DOCS / "threat-model.md").read_text().partition(HEAD)[2].partition("\n## ")[0]
    return [line for line in table.splitlines() if line.startswith("|")][2:]


def exists(file: str, function: str) -> bool:
    """Whether a test is there, its file named from below tests/."""
    path = Path(ROOT, "tests", file)
    return path.exists() and re.search(rf"^(async )?def {function}\(", path.read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize("row", threats(), ids=lambda row: row.split("|")[2].strip()[:60])
def test_every_threat_names_tests_that_exist(row: str) -> None:
    who, reaches, holds, tests = (cell.strip() for cell in row.strip("|").split("|"))

    assert who and reaches and holds
    named = TEST.findall(tests)
    assert named and [test for test in named if not exists(*test)] == []


def test_every_finding_names_tests_that_exist() -> None:
    named = TEST.findall((DOCS / "evidence" / "findings.md").read_text())

    assert len(named) > 20 and [test for test in named if not exists(*test)] == []


def test_there_are_threats() -> None:
    assert len(threats()) > 10


def test_every_test_that_the_page_names_anywhere_exists() -> None:
    named = TEST.findall((DOCS / "threat-model.md").read_text())

    assert [test for test in named if not exists(*test)] == []


def test_every_difference_from_amazons_toolkit_names_a_test_that_exists() -> None:
    assert [one.name for one in DIFFERENCES if not exists(*one.test.split("::"))] == []
