"""The tables in docs/ say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.doc_tables import BLOCK, TABLES, pages, refreshed


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_pages_tables_are_up_to_date(page: Path) -> None:
    assert page.read_text() == refreshed(page.read_text()), "run: python tests/support/doc_tables.py"


def test_every_table_is_in_a_page() -> None:
    shown = [match[2] for page in pages() for match in BLOCK.finditer(page.read_text())]

    assert sorted(shown) == sorted(TABLES)
