"""Packages of an interpreter, from the names of their metadata."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

from trainshed.machine.installed import environment, installed


def test_versions_are_those_that_importlib_tells() -> None:
    found = environment()

    told = {name.lower(): importlib.metadata.version(name) for name in ("torch", "psutil", "pytest")}
    assert {name: found["packages"][name] for name in told} == told
    assert found["python"] == sys.version.split()[0]


def test_sources_names_and_folders_as_they_come(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    def put(folder: Path, name: str, told: object = None) -> None:
        (folder / name).mkdir(parents=True)
        if told is not None:
            (folder / name / "direct_url.json").write_text(told if isinstance(told, str) else json.dumps(told))

    put(first, "Ab.Cd_e-1.0+cpu.dist-info")
    put(first, "ours-0.1.dist-info", {"url": "file:///src/ours", "dir_info": {"editable": True}})
    put(first, "theirs-2.dist-info", {
        "url": "https://me:secretpassword@example.org/theirs", "vcs_info": {"vcs": "git", "commit_id": "abc"},
    })  # fmt: skip
    put(first, "wheel_of_mine-3.dist-info", {"url": "file:///w.whl", "archive_info": {}})
    put(first, "damaged-4.dist-info", "{")
    put(first, "old-5.0-py3.11.egg-info")
    put(first, "nothing.dist-info")
    put(second, "ab_cd_e-9.dist-info")

    versions, sources = installed([str(tmp_path / "absent"), str(first), str(second), str(tmp_path / "x.zip")])

    assert versions == {
        "ab-cd-e": "1.0+cpu", "damaged": "4", "old": "5.0", "ours": "0.1", "theirs": "2", "wheel-of-mine": "3",
    }  # fmt: skip
    assert sources == {
        "ours": {"kind": "editable", "url": "file:///src/ours"},
        "theirs": {"kind": "vcs", "url": "git+https://******@example.org/theirs", "commit": "abc"},
        "wheel-of-mine": {"kind": "archive", "url": "file:///w.whl"},
    }
