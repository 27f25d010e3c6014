"""Pages lead somewhere: every link to a file or heading of the project, and every page from the site's navigation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from support.paths import DOCS, ROOT

SKIPPED = {".venv", ".venv-clients", "runs", "build", "node_modules"}
PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not SKIPPED & set(path.relative_to(ROOT).parts) and ".git" not in path.parts
)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")


def text_of(path: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """The names that the headings of a page get."""
    headings = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"[\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong = []
    for link in LINK.findall(text_of(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)

    assert wrong == []


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    def pages(node: object) -> list[str]:
        if isinstance(node, str):
            return [node]
        inner = list(node.values()) if isinstance(node, dict) else node
        assert isinstance(inner, list)
        return [page for one in inner for page in pages(one)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])

    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
