"""Where ready programs are looked for."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from support.paths import ROOT
from trainshed.contract import ready_programs
from trainshed.contract.ready_programs import ready_folders
from trainshed.contract.wire.variables import ENTRYPOINTS


def test_a_folder_that_is_named_comes_before_the_checkouts(tmp_path: Path) -> None:
    own = ready_folders({})
    assert own and ready_folders({ENTRYPOINTS: str(tmp_path)}) == [str(tmp_path), *own]
    assert ready_folders({ENTRYPOINTS: str(tmp_path / "absent")}) == own


def test_what_pip_installs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_programs.sys, "prefix", str(tmp_path))
    place = tmp_path / "share/trainshed/entrypoints"
    place.mkdir(parents=True)

    assert str(place) in ready_folders({})
    monkeypatch.undo()
    names = {sysconfig.get_path("data", scheme) for scheme in (sysconfig.get_default_scheme(), "posix_user")}
    assert names <= set(ready_programs._bases())
    assert '"share/trainshed/entrypoints" = ' in (ROOT / "pyproject.toml").read_text()
