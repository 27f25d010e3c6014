"""What the ranks and the one process of `trainshed verify` find."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch


def test_the_one_process_does_not_go_on_from_the_ranks_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainshed.parallel.verify import play

    found: list[list[str]] = []

    def played(commands: Any, environ: dict[str, str], limit: float) -> str:
        folder = Path(environ["SM_CHECKPOINT_DIR"])
        found.append(os.listdir(folder))
        (folder / "step-3").touch()
        return ""

    monkeypatch.setattr(play, "_played", played)
    monkeypatch.setattr(play, "evidence_of", lambda folder: [SimpleNamespace(updates=[1], error="")] * 2)
    monkeypatch.setattr(play, "compare", lambda folder: None)
    play.verify("train.py", [], 2, 3, {}, 1.0)

    assert found == [[], []]
