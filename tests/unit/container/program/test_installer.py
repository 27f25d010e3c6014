"""Who installs what the user's code needs, pip or uv, and into which folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trainshed.container.program import requirements
from trainshed.container.program.requirements import _installer, _site_packages
from trainshed.machine.isolation import isolated


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An executable of that name on PATH, on a machine without any configuration of pip."""
    path = tmp_path / "bin/uv"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setattr(requirements, "_pip_files", lambda environ: [])
    return str(path)


def test_uv_is_used_where_it_is_installed(uv: str) -> None:
    environ = {"PATH": f"/nowhere:{os.path.dirname(uv)}", "PIP_NO_CACHE_DIR": "1", "PIP_INDEX_URL": ""}

    assert _installer(environ) == [uv, "pip", "install", "--no-progress", "--python", sys.executable]


def test_pip_is_used_without_uv(uv: str) -> None:
    assert _installer({"PATH": "/nowhere"}) == [*isolated("pip"), "install", "--progress-bar", "off"]


@pytest.mark.parametrize(
    "name",
    [
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CERT", "PIP_CONFIG_FILE"),
        *("PIP_PROXY", "PIP_CONSTRAINT", "PIP_TRUSTED_HOST", "PIP_PRE", "PIP_ONLY_BINARY", "PIP_CLIENT_CERT"),
    ],
)
def test_pip_is_used_where_a_variable_configures_it(name: str, uv: str) -> None:
    assert "uv" not in os.path.basename(_installer({"PATH": os.path.dirname(uv), name: "x"})[0])


@pytest.mark.parametrize("place", ["home/.config/pip", "home/.pip", "xdg/pip", "shared/pip"])
def test_pip_is_used_where_a_file_configures_it(place: str, tmp_path: Path) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "pip.conf").touch()
    environ = {"HOME": f"{tmp_path}/home", "XDG_CONFIG_DIRS": f"/nowhere:{tmp_path}/shared"}
    if place.startswith("xdg"):
        environ["XDG_CONFIG_HOME"] = f"{tmp_path}/xdg"

    files = requirements._pip_files(environ)

    assert [file for file in files if file.startswith(str(tmp_path)) and os.path.exists(file)] == [
        f"{tmp_path}/{place}/pip.conf"
    ]
    assert "/etc/pip.conf" in files and f"{sys.prefix}/pip.conf" in files


@pytest.mark.parametrize("layout", ["lib/python{v}/site-packages", "lib64/python{v}/site-packages", "nothing"])
def test_the_folders_below_a_prefix_are_those_that_exist(layout: str, tmp_path: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    folder = tmp_path / layout.replace("{v}", version)
    folder.mkdir(parents=True)

    found = _site_packages(str(tmp_path))

    assert found == ("" if layout == "nothing" or (layout.startswith("lib64") and sys.platlibdir == "lib") else str(folder))
