"""Room that is kept for the report: there while it is held, gone afterwards, never a file that stays."""

from __future__ import annotations

import os
from pathlib import Path

from trainshed.base.disk_reserve import ROOM_BYTES, Room


def test_it_holds_disk_but_no_name_and_gives_it_back(tmp_path: Path) -> None:
    room = Room(str(tmp_path))
    assert os.fstat(room.fd).st_size == ROOM_BYTES
    assert os.fstat(room.fd).st_blocks * 512 >= ROOM_BYTES or os.fstat(room.fd).st_blocks == 0  # not yet allocated
    assert list(tmp_path.iterdir()) == []
    room.free()
    room.free()
    assert room.fd == -1


def test_the_script_does_not_inherit_it(tmp_path: Path) -> None:
    room = Room(str(tmp_path))
    assert not os.get_inheritable(room.fd)
    room.free()


def test_where_nothing_can_be_written_it_keeps_quiet(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Room(f"{tmp_path}/file").free()
    Room(f"{tmp_path}/missing/folder").free()
