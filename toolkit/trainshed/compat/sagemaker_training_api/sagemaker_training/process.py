"""Starts the user's script from the image's own launcher."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

from . import environment, errors

_TAIL_BYTES = 1 << 16


def python_executable() -> str:
    """This interpreter."""
    if not sys.executable:
        raise RuntimeError("Failed to retrieve the real path for the Python executable binary")
    return sys.executable


def command(user_entry_point: str, args: list[str], folder: str) -> list[str]:
    """The command line: a shell's for `.sh` and unknown files, `-m` where the folder is a package, else the file."""
    if not user_entry_point.endswith(".sh") and os.path.exists(os.path.join(folder, "setup.py")):
        return [python_executable(), "-m", re.sub(r"\.py$", "", user_entry_point), *args]
    if user_entry_point.endswith(".py"):
        script = f"./{user_entry_point}" if user_entry_point.startswith("-") else user_entry_point
        return [python_executable(), script, *args]
    return ["/bin/sh", "-c", shlex.join([f"./{user_entry_point}", *args])]


class ProcessRunner:
    """One process for the user's script, in its folder."""

    def __init__(self, user_entry_point: str, args: list[str], env_vars: dict[str, str], processes_per_host: int) -> None:
        self._user_entry_point, self._args, self._env_vars = user_entry_point, args, env_vars

    def run(self, wait: bool = True, capture_error: bool = False) -> subprocess.Popen[bytes]:
        """Starts the script, and waits for it unless told otherwise.

        Args:
            capture_error: whether the exception is to hold what the script wrote to stderr; it is passed on all the same.

        Raises:
            errors.ExecuteUserScriptError: it failed.
        """
        folder = environment.code_dir
        argv = command(self._user_entry_point, self._args, folder)
        if argv[0] == "/bin/sh":
            os.chmod(os.path.join(folder, self._user_entry_point), 0o755)

        def start() -> subprocess.Popen[bytes]:
            stderr = subprocess.PIPE if capture_error else None
            return subprocess.Popen(argv, cwd=folder, env={**os.environ, **self._env_vars}, stderr=stderr)

        if not wait:
            return start()
        with _unstopped():
            running = start()
            tail = _wait(running)
        if running.returncode != 0:
            raise errors.ExecuteUserScriptError(" ".join(argv), running.returncode, tail)
        return running


@contextlib.contextmanager
def _unstopped() -> Iterator[None]:
    """Ignores stop signals within the block; `train` also sends them to the script."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda _signal, _frame: None)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _wait(running: subprocess.Popen[bytes]) -> bytes:
    """Waits for the script; the end of its stderr if that is a pipe."""
    tail = b""
    if running.stderr is not None:
        while block := running.stderr.read1(_TAIL_BYTES):  # type: ignore[attr-defined]
            os.write(2, block)
            tail = (tail + block)[-_TAIL_BYTES:]
    running.wait()
    return tail
