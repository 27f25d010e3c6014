"""Saves of libraries that are not whole."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainshed.checkpoint import manifest as manifests


def newer_but_damaged(good: Path, name: str) -> Path:
    """Leaves beside `checkpoint-<step>` one of the next step, sealed as that, with a flipped bit in its file `name`."""
    (path,) = good.glob(f"*{manifests.SUFFIX}")
    sealed = manifests.read(str(path))
    copy = good.with_name(f"checkpoint-{sealed.step + 1}")
    shutil.copytree(good, copy)
    manifests.write(str(copy), sealed.replace(step=sealed.step + 1))
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 4
    (copy / name).write_bytes(data)
    return copy
