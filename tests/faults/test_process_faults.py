"""The failure table, row by row: `train` as a process of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Case, check, named, run_process
from .process_cases import CASES


@pytest.mark.parametrize("case", named(CASES))
def test_train_ends_as_the_failure_table_says(case: Case, tmp_path: Path) -> None:
    check(case, run_process(case, tmp_path / "ml"))
