"""The commands of docs/first-five-minutes.md do what the page shows."""

from __future__ import annotations

import difflib
import re

import pytest

from images import five_minutes
from support.docker_cli import docker as docker_cli
from support.paths import DOCS
from support.runner_project import wait_until

pytestmark = pytest.mark.docker

# How far a script came by the time it was stopped is no matter, nor how many lines that made.
NUMBERS = re.compile(r"\d+(\.\d+)?([eE][-+]?\d+)?")


def skeleton(page: str) -> list[str]:
    """The page's commands and headings: what must not differ by a letter."""
    return [line for line in page.splitlines() if line.startswith(("$ ", "#", "completed ", "stopped "))]


@pytest.mark.timeout(600)  # every command of the page, one after the other
def test_the_page_is_what_the_commands_print(docker: str, cpu_image: str) -> None:
    labelled = ["ps", "--all", "--quiet", "--filter", "label=org.trainshed.run"]
    before = set(docker_cli(*labelled).stdout.split())
    made = five_minutes.page(cpu_image)
    kept = (DOCS / "first-five-minutes.md").read_text()

    def plain(text: str) -> list[str]:
        return [NUMBERS.sub("0", line) for line in skeleton(five_minutes.evened(text))]

    difference = "\n".join(difflib.unified_diff(plain(kept), plain(made), "docs/first-five-minutes.md", "now", lineterm=""))
    assert not difference, f"{difference}\npython tests/images/five_minutes.py > docs/first-five-minutes.md"
    assert "Traceback" not in made and "trainshed itself failed" not in made
    left = set(docker_cli(*labelled).stdout.split()) - before
    # Those of another test that runs at the same time go away with it.
    wait_until(lambda: not left & set(docker_cli(*labelled).stdout.split()), "no container is left")
