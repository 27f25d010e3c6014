"""The failure table, row by row: `train` as a process of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Case, check, named, run_process
from .process_cases import CASES

pytestmark = pytest.mark.safety
SPINE = (
    *("exception in a module of the user's", "killed by SIGKILL", "exception in rank 1 of 2"),
    *("SIGTERM and a handler that ends well", "second SIGINT ends the grace"),
    *("grandchild that holds stdout and ignores SIGTERM", "twenty orphans are ended", "several bad files at once"),
    *("missing script with a near name", "secret in an index variable", "stdout and stderr of 2 ranks in one pipe"),
)


@pytest.mark.parametrize("case", named(CASES, SPINE, pytest.mark.spine))
def test_train_ends_as_the_failure_table_says(case: Case, tmp_path: Path) -> None:
    check(case, run_process(case, tmp_path / "ml"))
