"""Tests of the catalogue ask it as a person does, in a folder of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainshed.cli import main

Told = Callable[..., "Answer"]


class Answer:
    """What a command has said. out, err: its streams; status: its exit status."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def rows(self) -> Any:
        """Its JSON."""
        assert self.status == 0, self.err
        return json.loads(self.out)

    @property
    def names(self) -> list[str]:
        """Names of the runs in its JSON."""
        return [row["name"] for row in self.rows]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands are called in; state/ is where the user's state is."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trainshed(place: Path, capsys: pytest.CaptureFixture[str]) -> Told:
    """Calls a command in this process."""

    def call(*words: str) -> Answer:
        capsys.readouterr()
        try:
            status = main([*words])
        except SystemExit as error:
            status = int(error.code or 0)
        told = capsys.readouterr()
        return Answer(status, told.out, told.err)

    return call
