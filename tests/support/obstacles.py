"""A disk of a few MiB that tests may fill, and files that cannot be read, for root either."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CAPABILITY_VERSION_3 = 0x20080522  # <linux/capability.h>


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of its own at `folder`, which must be empty; skips where nothing can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=755", "none", str(folder)], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"needs to mount a tmpfs: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Writes a file until the disk is full."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


@contextmanager
def read_only_disk(folder: Path) -> Iterator[Path]:
    """A file system at `folder` that nobody may write to; skips where nothing can be mounted."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)], capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def without_rights() -> Iterator[None]:
    """In the block mode bits hold for this thread even if it is root's: capabilities(7), CAP_DAC_OVERRIDE and the like."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    before = (ctypes.c_uint32 * 6)()
    assert libc.capget(head, before) == 0
    fewer = (ctypes.c_uint32 * 6)(*before)
    fewer[0] &= ~0b110  # effective: CAP_DAC_OVERRIDE (1), CAP_DAC_READ_SEARCH (2)
    assert libc.capset(head, fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(head, before) == 0
