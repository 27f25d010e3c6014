"""The tables in docs/ say what the code says."""

from __future__ import annotations

from pathlib import Path

from support.doc_tables import BLOCK, TABLES, pages, refreshed
from support.offenders import check_each


def test_the_pages_tables_are_up_to_date() -> None:
    def check(page: Path) -> None:
        text = page.read_text()
        assert text == refreshed(text), "run: python tests/support/doc_tables.py"

    check_each(pages(), check)


def test_every_table_is_in_a_page() -> None:
    shown = [match[2] for page in pages() for match in BLOCK.finditer(page.read_text())]

    assert sorted(shown) == sorted(TABLES)
