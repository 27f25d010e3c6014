"""Pages that name tests name ones that exist: the threat model, differences from Amazon's toolkit, what goes together."""

from __future__ import annotations

import re
from pathlib import Path

from support.combinations import every
from support.offenders import check_each, no_offenders
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


def test_every_threat_names_tests() -> None:
    def check(row: str) -> None:
        who, reaches, holds, tests = (cell.strip() for cell in row.strip("|").split("|"))
        assert who and reaches and holds and TEST.search(tests)

    assert len(threats()) > 10
    check_each(threats(), check)


def test_every_test_that_a_page_names_exists() -> None:
    pages = {page: TEST.findall((DOCS / page).read_text()) for page in ("threat-model.md", "evidence/findings.md")}

    assert all(len(named) > 20 for named in pages.values())
    missing = {page: ["::".join(test) for test in named if not exists(*test)] for page, named in pages.items()}
    no_offenders(missing, "these tests do not exist")


def test_every_difference_from_amazons_toolkit_names_a_test_that_exists() -> None:
    assert [one.name for one in DIFFERENCES if not exists(*one.test.split("::"))] == []


def test_every_combination_that_is_trained_names_a_test_that_exists() -> None:
    assert [name for name in every() if not exists(*name.split("::"))] == []
