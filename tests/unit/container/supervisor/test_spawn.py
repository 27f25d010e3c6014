"""Starting one process: what it inherits, and every way in which it cannot be started."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from trainshed.container.supervisor.launch_plan import ProcessSpec, StartError
from trainshed.container.supervisor.spawn import find_executable, spawn
from trainshed.machine.processes import descendants

PATH = {"PATH": "/usr/bin:/bin"}


def run(tmp_path: Path, *argv: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Return code and output of a process started by `spawn`."""
    pid, out, err = spawn(ProcessSpec(argv=argv, env=env or PATH, cwd=str(tmp_path)))
    _, status = os.waitpid(pid, 0)
    texts = []
    for fd in (out, err):
        os.set_blocking(fd, True)
        with os.fdopen(fd, "rb") as file:
            texts.append(file.read().decode())
    return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def open_files() -> list[str]:
    """Our open descriptors."""
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]


def test_both_streams_arrive_apart_and_the_exit_status_with_them(tmp_path: Path) -> None:
    assert run(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7") == (7, "out\n", "err\n")


def test_it_gets_its_own_environment_and_folder_and_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    _, out, _ = run(tmp_path, "sh", "-c", "pwd; env; cat", env={**PATH, "ITS": "2"})
    assert out.splitlines()[0] == str(tmp_path)
    assert "ITS=2" in out and "OURS" not in out


@pytest.mark.safety
def test_of_our_pipes_it_inherits_its_two_ends_and_no_other(tmp_path: Path) -> None:
    ours = os.pipe()
    _, out, _ = run(tmp_path, "sh", "-c", "ls -l /proc/$$/fd")
    before = {os.readlink(f"/proc/self/fd/{fd}") for fd in open_files()}
    for fd in ours:
        os.close(fd)
    pipes = [line.split()[-1] for line in out.splitlines() if "pipe:" in line]
    assert len([link for link in pipes if link not in before]) == 2
    assert len(set(pipes)) == len(pipes)


def test_it_leads_a_session_of_its_own_and_starts_with_default_signals(tmp_path: Path) -> None:
    code = "import os, signal; print(os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    status = "print([l.split()[1] for l in open('/proc/self/status') if l.startswith(('SigBlk', 'SigIgn'))])"
    old = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        _, out, _ = run(tmp_path, sys.executable, "-S", "-E", "-c", f"{code}; {status}")
        _, ignored, _ = run(tmp_path, "sh", "-c", "grep SigIgn /proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        signal.signal(signal.SIGTERM, old)
    assert out.splitlines()[0] == "True True"
    assert "'0000000000000000'" in out  # no signal is blocked
    # None is ignored, SIGPIPE neither, which Python ignores; 32 and 33 are the C library's own, out of everybody's reach.
    assert int(ignored.split()[1], 16) & ~(0b11 << 31) == 0


@pytest.mark.parametrize(
    ("argv", "cwd", "stage", "number"),
    [
        (("no-such-program",), ".", "exec", errno.ENOENT),
        (("./missing",), ".", "exec", errno.ENOENT),
        (("./plain",), ".", "exec", errno.EACCES),
        (("./garbage",), ".", "exec", errno.ENOEXEC),
        (("./no-interpreter",), ".", "exec", errno.ENOENT),
        (("./folder",), ".", "exec", errno.EACCES),
        (("true", "x" * 200_000), ".", "exec", errno.E2BIG),
        (("true", "nul\0"), ".", "exec", errno.EINVAL),
        (("true",), "nowhere", "cwd", errno.ENOENT),
        (("true",), "plain", "cwd", errno.ENOTDIR),
    ],
)
def test_what_cannot_be_started_says_why_and_leaks_nothing(
    tmp_path: Path, argv: tuple[str, ...], cwd: str, stage: str, number: int
) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "garbage").write_bytes(b"\x00\x01\x02")
    (tmp_path / "no-interpreter").write_text("#!/no/such/interpreter\n")
    (tmp_path / "folder").mkdir()
    for name in ("garbage", "no-interpreter"):
        (tmp_path / name).chmod(0o755)
    before, children = open_files(), descendants()
    with pytest.raises(StartError) as caught:
        spawn(ProcessSpec(argv=argv, env=PATH, cwd=str(tmp_path / cwd)))
    assert (caught.value.stage, caught.value.error.errno) == (stage, number)
    assert set(open_files()) <= set(before)
    assert set(descendants()) <= set(children)  # others may have come to their end


def test_a_program_is_found_as_a_shell_would(tmp_path: Path) -> None:
    for name in ("one/prog", "two/prog", "two/only"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "one/only").write_text("not executable")
    path = f"{tmp_path}/none:{tmp_path}/one:{tmp_path}/two"
    assert find_executable("prog", path, "/") == f"{tmp_path}/one/prog"
    assert find_executable("only", path, "/") == f"{tmp_path}/two/only"
    assert find_executable("only", "one:two", str(tmp_path)) == f"{tmp_path}/two/only"
    assert find_executable("./one/prog", path, str(tmp_path)) == f"{tmp_path}/./one/prog"
    assert find_executable("one", f"{tmp_path}", "/") is None
    assert find_executable("nothing", path, "/") is None
