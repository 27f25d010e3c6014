"""The pages for people who come from another tool: what they are told to write is read by this version."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.command_line import options_of
from support.offenders import check_each
from support.paths import DOCS
from trainshed.cli.commands import all_commands
from trainshed.runner.job import schema_json

PAGES = sorted((DOCS / "from").glob("*.md"))
NEW = re.compile(r"^\|.*\|([^|]*)\|$", re.MULTILINE)  # the last column: what to write now


def told(page: Path) -> Iterator[list[str]]:
    """The words of each command and flag in the last column of a page's tables; flags are those of `trainshed run`."""
    for cell in NEW.findall(page.read_text()):
        for text in re.findall(r"`((?:trainshed |--)[^`]+)`", cell):
            words = shlex.split(text)
            yield words[1:] if words[0] == "trainshed" else ["run", *words]


def test_every_command_and_flag_of_the_tables_is_read() -> None:
    def check(words: list[str]) -> None:
        assert words[0] in all_commands()
        if len(words) > 1:  # else a family is named
            options_of(words[0], words[1:])

    every = [words for page in PAGES for words in told(page)]
    assert len(every) > 15
    check_each(every, check)


def test_every_job_file_is_one() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = yaml.safe_load(schema_json.text())
    blocks = [
        text for page in PAGES for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    lines = re.findall(r"`((?:distribution|resources|slurm): \{[^`]+)`", "".join(page.read_text() for page in PAGES))

    assert blocks and lines
    check_each([*blocks, *lines], lambda text: jsonschema.validate({"program": "train.py", **yaml.safe_load(text)}, schema))
