"""`run`: starts the user's script."""

from __future__ import annotations

import sys
from typing import Any

from . import environment, files, runner


def run(
    uri: str,
    user_entry_point: str,
    args: list[str],
    env_vars: dict[str, str] | None = None,
    wait: bool = True,
    capture_error: bool = False,
    runner_type: Any = runner.ProcessRunnerType,
    extra_opts: dict[str, Any] | None = None,
) -> Any:
    """Starts the user's script with arguments and variables; returns its process.

    Args:
        uri: where the code is; `train` has brought it already.
        wait: whether to wait for its end.
        capture_error: whether an exception is to hold what it wrote to stderr.
        runner_type: one process; distributions are `train`'s to start.

    Raises:
        errors.ExecuteUserScriptError: the script failed.
        errors.ClientError: the code is not there, or a distribution is asked for.
    """
    files.download_and_extract(uri, environment.code_dir)
    install(user_entry_point)
    return runner.get(runner_type, user_entry_point, args, env_vars, extra_opts).run(wait, capture_error)


def install(name: str, path: str = environment.code_dir, capture_error: bool = False) -> None:
    """Adds the code to this process's module path; its requirements are already installed."""
    if path not in sys.path:
        sys.path.insert(0, path)
