"""Manifests that a right checksum makes no better."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from trainshed.checkpoint import folder as folders
from trainshed.checkpoint import manifest as manifests
from trainshed.checkpoint.manifest import Damaged, FileEntry, Manifest

pytestmark = pytest.mark.safety


def written(folder: Path, file: str) -> Path:
    """A checkpoint whose manifest, with a right checksum, names one file, which is not there."""
    entry = FileEntry(name=file, size=3, crc32=(1,), block=1 << 20)
    made = Manifest(
        step=5,
        save="a",
        part=0,
        parts=1,
        complete=True,
        world_size=1,
        ranks=(0,),
        host="algo-1",
        created=1.0,
        files=(entry,),
    )
    line = json.dumps({"format": manifests.FORMAT, **made.plain()}).encode()
    path = folder / "step-000000000005" / "algo-1.part0.manifest"
    path.parent.mkdir()
    path.write_bytes(line + b"\n%08x\n" % zlib.crc32(line))
    return path


@pytest.mark.parametrize("file", ["\ud800", "a\udfffb"])
def test_a_file_name_that_no_file_can_have_is_not_a_manifest(file: str, tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="is not a manifest of a checkpoint"):
        manifests.read(str(written(tmp_path, file)))
    found, (skipped,) = folders.scan(str(tmp_path))

    assert found == [] and skipped.why == "algo-1.part0.manifest is not a manifest of a checkpoint"


@pytest.mark.parametrize(
    ("file", "shown"), [("\ufeff", "\\ufeff"), ("a\nb", "a\\nb"), ("\x1b[2J", "\\x1b[2J"), ("\udce9", "\\udce9")]
)
def test_a_file_name_is_told_without_what_it_would_do_to_a_terminal(file: str, shown: str, tmp_path: Path) -> None:
    written(tmp_path, file)
    _, (skipped,) = folders.scan(str(tmp_path))

    assert skipped.line() == f"step-000000000005 passed over: {shown} is missing"
