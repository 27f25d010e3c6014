"""What the ranks and the one process of `trainshed verify` find, and how a script that is played ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.lazy import Lazy

play: Any = Lazy("trainshed.parallel.verify.play")
torch: Any = Lazy("torch")
pytestmark = pytest.mark.torch


def train(steps: int) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("code", [0, None, False])
def test_a_script_that_exits_is_as_one_that_returns(code: object, tmp_path: Path) -> None:
    with play.as_rank(tmp_path, 3):
        train(1)
        sys.exit(code)  # type: ignore[arg-type]

    [evidence] = play.evidence_of(tmp_path)
    assert evidence.error == "" and len(evidence.updates) == 1

    with play.as_one(tmp_path, 3):
        train(1)
        sys.exit(code)  # type: ignore[arg-type]

    assert play.load(tmp_path / play.ALONE).error == ""


def test_a_script_that_exits_with_a_status_has_failed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), play.as_rank(tmp_path, 3):
        sys.exit("no data")

    [evidence] = play.evidence_of(tmp_path)
    assert evidence.error == "SystemExit: no data"


def test_what_a_script_exits_with_after_all_steps_is_no_matter(tmp_path: Path) -> None:
    with play.as_rank(tmp_path, 1):
        try:
            train(2)
        finally:
            sys.exit(3)

    [evidence] = play.evidence_of(tmp_path)
    assert evidence.error == "" and len(evidence.updates) == 1


def test_the_one_process_does_not_go_on_from_the_ranks_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[str]] = []

    def played(commands: Any, environ: dict[str, str], limit: float) -> str:
        folder = Path(environ["SM_CHECKPOINT_DIR"])
        found.append(os.listdir(folder))
        (folder / "step-3").touch()
        return ""

    monkeypatch.setattr("trainshed.parallel.verify.play._played", played)
    evidence = SimpleNamespace(updates=[1], error="")
    monkeypatch.setattr("trainshed.parallel.verify.play.evidence_of", lambda folder: [evidence] * 2)
    monkeypatch.setattr("trainshed.parallel.verify.play.compare", lambda folder: None)
    play.verify("train.py", [], 2, 3, {}, 1.0)

    assert found == [[], []]
