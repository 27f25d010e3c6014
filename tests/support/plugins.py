"""The example packages of `examples/plugins`, installed as a user installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT, TOOLKIT


def search_path(name: str, folder: Path) -> str:
    """PYTHONPATH with the toolkit and an example package, which is installed below a folder, without a network."""
    shutil.copytree(ROOT / "examples/plugins" / name, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--target", folder / "packages", folder / "source"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return os.pathsep.join((str(TOOLKIT), str(folder / "packages")))
