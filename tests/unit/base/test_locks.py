"""Locks that end with whoever holds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import TOOLKIT
from trainshed.base.locks import hold, is_held

pytestmark = pytest.mark.safety


def test_a_lock_has_one_holder_and_is_free_when_that_one_lets_go(tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    assert not is_held(path) and not os.path.exists(path)

    fd = hold(path)

    assert fd is not None and is_held(path) and hold(path) is None
    os.close(fd)
    assert not is_held(path)


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    code = f"import os, signal\nfrom trainshed.base.locks import hold\nhold({path!r})\nos.kill(os.getpid(), signal.SIGKILL)"

    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(TOOLKIT)}, check=False)

    assert done.returncode == -9 and os.path.exists(path) and not is_held(path)


def test_where_no_lock_can_be_made_the_system_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hold(f"{tmp_path}/nowhere/lock")
