"""Hints end to end: a job that really fails, and the advice in its failure file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from faults.harness import Case, check, run_process

from .provocations import AGENT, PLAIN, TORCH


def named(cases: list[Case]) -> list[Any]:
    """The cases as pytest parameters."""
    return [pytest.param(case, id=case.name.replace(" ", "-")) for case in cases]


@pytest.mark.parametrize("case", named([case for cases in PLAIN.values() for case in cases]))
def test_a_job_that_fails_this_way_is_told_what_to_do(case: Case, tmp_path: Path) -> None:
    check(case, run_process(case, tmp_path / "ml"))


@pytest.mark.torch
@pytest.mark.parametrize("case", named([case for cases in TORCH.values() for case in cases]))
def test_a_torch_job_that_fails_this_way_is_told_what_to_do(case: Case, tmp_path: Path) -> None:
    check(case, run_process(case, tmp_path / "ml"))


@pytest.mark.spine
@pytest.mark.torch
@pytest.mark.parametrize("case", named(AGENT))
def test_a_rank_below_torchs_agent_is_named_with_its_own_reason_and_status(case: Case, tmp_path: Path) -> None:
    check(case, run_process(case, tmp_path / "ml"))
