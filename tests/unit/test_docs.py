"""Pages lead somewhere: every link to a file or heading of the project, and every page from the site's navigation."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import yaml

from support.offenders import no_offenders
from support.paths import DOCS, ROOT

SKIPPED = {".venv", ".venv-clients", "runs", "build", "node_modules"}
PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not SKIPPED & set(path.relative_to(ROOT).parts) and ".git" not in path.parts
)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")


@cache
def text_of(path: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", path.read_text())


@cache
def anchors(path: Path) -> set[str]:
    """The names that the headings of a page get."""
    headings = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"[\s]+", "-", heading) for heading in plain}


def leads_somewhere(link: str, page: Path) -> bool:
    """Whether a link of a page leads to a file that is there, and to a heading of it."""
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    found = {
        str(page.relative_to(ROOT)): [link for link in LINK.findall(text_of(page)) if not leads_somewhere(link, page)]
        for page in PAGES
    }

    no_offenders(found, "these links lead nowhere")


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    def pages(node: object) -> list[str]:
        if isinstance(node, str):
            return [node]
        inner = list(node.values()) if isinstance(node, dict) else node
        assert isinstance(inner, list)
        return [page for one in inner for page in pages(one)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])

    there = [*DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    there += [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    there += [ROOT / name / "README.md" for name in ("entrypoints", "images", "benchmarks")]
    assert sorted(listed) == sorted(str(path.relative_to(ROOT)) for path in there)
