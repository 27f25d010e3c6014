"""Wheels: made by hand, so that tests of requirements need no package index, and that of this checkout; where they go."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from support.paths import ROOT

# Folders of unit tests that pass with the core's wheel alone. Not cli: its tests are about the commands of all wings.
CORE_TESTS = ("algorithms", "base", "checkpoint", "container", "contract", "data", "machine", "metrics", "observe", "runner")


def make_wheel(folder: Path, name: str, version: str) -> None:
    """A wheel of one module, whose VERSION says which it is."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def make_venv(folder: Path) -> Path:
    """A virtual environment with a copy of our own pip, which costs a tenth of installing one; its site-packages."""
    import pip

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    ours = Path(pip.__file__).parents[1]
    for part in (ours / "pip", *ours.glob("pip-*.dist-info")):
        shutil.copytree(part, packages / part.name)
    return packages


def own_wheel(folder: Path, without: Iterable[str] = ()) -> str:
    """Builds trainshed's wheel into `folder`; its file name.

    Of a copy: setuptools works in the sources' folder, where two builds at a time take each other's files.

    Args:
        without: folders of the package to leave out.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, "trainshed")
        copy.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        for name in ("toolkit", "entrypoints"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for name in without:
            shutil.rmtree(copy / "toolkit/trainshed" / name)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(copy)]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("trainshed-*.whl")).name
