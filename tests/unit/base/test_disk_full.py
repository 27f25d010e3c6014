"""A disk that is full for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.obstacles import fill, small_disk
from trainshed.base.disk_full import Shortage
from trainshed.base.errors import TrainshedError


def unusable(error: OSError) -> TrainshedError:
    return TrainshedError(f"cannot write: {error.strerror}")


def test_what_ran_on_a_full_disk_is_known_after_others_have_made_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        found = Shortage(str(disk), unusable)
        found.look(["before"])
        found.refuse("before")
        fill(disk / "ballast")
        with pytest.raises(TrainshedError, match="No space left on device: 4 MiB must stay free for its own files"):
            found.refuse()
        found.look(["meanwhile"])
        (disk / "ballast").unlink()
        found.refuse("before", "after")
        assert found.has_met(["after", "meanwhile"]) and not found.has_met([])
        with pytest.raises(TrainshedError, match="No space left"):
            found.refuse("meanwhile")


def test_a_folder_that_cannot_be_looked_at_is_said(tmp_path: Path) -> None:
    found = Shortage(str(tmp_path / "gone"), unusable)
    for asks in (lambda: found.look(["one"]), found.refuse):
        with pytest.raises(TrainshedError, match="cannot write: No such file"):
            asks()
    assert found.has_met([])
