"""Small files that are whole or not there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trainshed.base import files
from trainshed.base.files import read_bytes, remove, write_atomic

pytestmark = pytest.mark.safety


def test_text_and_bytes_are_written_and_folders_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"

    write_atomic(str(path), "Zürich \udcff")
    assert path.read_bytes() == "Zürich ?".encode()
    write_atomic(str(path), b"\0\xff")
    assert path.read_bytes() == b"\0\xff"
    assert os.listdir(path.parent) == ["file"]


def test_the_mode_is_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "secret"

    write_atomic(str(path), "x", mode=0o600)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_an_error_leaves_the_old_content_and_nothing_else(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(str(path), "new")
    monkeypatch.undo()

    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_process_killed_at_any_step_leaves_the_old_content(step: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    program = (
        "import os, signal\n"
        "from trainshed.base import files\n"
        f"files.os.{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"files.write_atomic({str(path)!r}, 'new' * 100_000)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})

    assert done.returncode == -9
    assert path.read_text() == "old"


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_write = os.write
    monkeypatch.setattr(files.os, "write", lambda fd, data: whole_write(fd, bytes(data[:3])))

    write_atomic(str(tmp_path / "file"), "0123456789")
    monkeypatch.undo()

    assert (tmp_path / "file").read_text() == "0123456789"


def test_reading_tells_absent_from_empty_and_from_too_large(tmp_path: Path) -> None:
    path = tmp_path / "file"

    assert read_bytes(str(path), 10) is None
    assert read_bytes(f"{path}/below", 10) is None
    path.write_bytes(b"")
    assert read_bytes(str(path), 10) == b""
    assert read_bytes(f"{path}/below", 10) is None
    path.write_bytes(b"0123456789")
    assert read_bytes(str(path), 10) == b"0123456789"
    path.write_bytes(b"0123456789a")
    with pytest.raises(ValueError, match="larger than"):
        read_bytes(str(path), 10)


def test_reading_a_fifo_that_nobody_writes_to_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    assert read_bytes(str(tmp_path / "fifo"), 10) == b""


def test_reading_a_folder_fails_and_leaves_no_file_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))

    for _ in range(5):
        with pytest.raises(IsADirectoryError):
            read_bytes(str(tmp_path), 10)

    assert set(os.listdir("/proc/self/fd")) <= before  # what nobody needs any more may have been closed meanwhile


def test_removing_what_is_not_there_or_may_not_be_removed_is_silent(tmp_path: Path) -> None:
    remove(str(tmp_path / "nothing"))
    remove(str(tmp_path))

    assert tmp_path.is_dir()


@pytest.mark.safety
def test_a_file_another_user_could_have_written_is_not_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "content"
    path.write_text("mine")
    files.open_own(str(path)).close()

    path.chmod(0o666)
    with pytest.raises(PermissionError, match="another user could have written it"):
        files.open_own(str(path))
    path.chmod(0o644)
    os.chown(path, 4242, -1) if os.geteuid() == 0 else None
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="another user could have written it"):
        files.open_own(str(path))
    with pytest.raises(OSError, match="not a regular file"):
        files.open_own(str(tmp_path))
