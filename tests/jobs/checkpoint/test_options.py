"""Whose learning rate holds when a training is restored: the checkpoint's, or the one that the script gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.lazy import Lazy
from trainshed import checkpoint
from trainshed.contract.settings import OPTIONS_VARIABLE

torch = Lazy("torch")
pytestmark = [pytest.mark.torch, pytest.mark.exact]


def trained(folder: Path, steps: int, scheduled: str = "", **options: Any) -> dict[str, Any]:
    """Trains from the newest checkpoint up to a step and saves; the optimizer's group, and the step it began at."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})
    made = torch.optim.lr_scheduler
    scheduler = None
    if scheduled == "exponential":
        scheduler = made.ExponentialLR(optimizer, 0.5)
    elif scheduled == "warm-up":
        parts = [made.LinearLR(optimizer, 0.5, total_iters=2), made.ExponentialLR(optimizer, 0.5)]
        scheduler = made.SequentialLR(optimizer, parts, milestones=[2])
    with checkpoint.Checkpointer(folder, model=model, optimizer=optimizer, scheduler=scheduler) as checkpoints:
        began = checkpoints.restore()
        restored = {**optimizer.param_groups[0]}
        for _ in range(began, steps):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
        checkpoints.save(steps)
    return {**optimizer.param_groups[0], "began": began, "restored": restored}


def test_by_default_a_checkpoint_brings_its_options_back(tmp_path: Path) -> None:
    trained(tmp_path, 2)

    again = trained(tmp_path, 3, lr=0.05, momentum=0.5)
    assert again["began"] == 2 and (again["lr"], again["momentum"]) == (0.1, 0.9)


def test_what_the_script_gives_holds_where_the_job_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, 2)
    monkeypatch.setenv(OPTIONS_VARIABLE, "given")

    again = trained(tmp_path, 3, lr=0.05, momentum=0.5, nesterov=True)
    assert again["began"] == 2 and (again["lr"], again["momentum"], again["nesterov"]) == (0.05, 0.5, True)
    said = capfd.readouterr().err
    assert (
        "as the script gives it: optimizer group 0: lr 0.05 instead of 0.1" in said and "momentum 0.5 instead of 0.9" in said
    )


@pytest.mark.parametrize("scheduled", ["exponential", "warm-up"])
def test_a_rate_that_a_scheduler_has_changed_stays_as_much_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduled: str
) -> None:
    half = trained(tmp_path / "a", 6, scheduled, lr=0.05)
    trained(tmp_path / "b", 3, scheduled)
    monkeypatch.setenv(OPTIONS_VARIABLE, "given")

    again = trained(tmp_path / "b", 6, scheduled, lr=0.05)
    assert again["began"] == 3 and again["lr"] == pytest.approx(half["lr"]) and again["initial_lr"] == 0.05


def test_nothing_is_other_where_the_script_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 3, "exponential")
    monkeypatch.setenv(OPTIONS_VARIABLE, "given")

    again = trained(tmp_path, 4, "exponential")
    assert again["restored"]["lr"] == 0.1 * 0.5**3 and again["lr"] == 0.1 * 0.5**4
