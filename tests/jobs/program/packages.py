"""A throw-away Python environment, and packages to install into it without any index."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

# A build backend that needs nothing but Python, so that packages can be built without an index.
BACKEND = """
import os, zipfile

NAME, VERSION = {name!r}, {version!r}
INFO = f"{{NAME}}-{{VERSION}}.dist-info"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    files = {{
        f"{{INFO}}/METADATA": f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n",
        f"{{INFO}}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    for root, _, names in os.walk("src"):
        for name in names:
            path = os.path.join(root, name)
            files[os.path.relpath(path, "src")] = open(path).read()
    files[f"{{INFO}}/RECORD"] = "".join(f"{{name}},,\\n" for name in files) + f"{{INFO}}/RECORD,,\\n"
    wheel = f"{{NAME}}-{{VERSION}}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def package_files(name: str, version: str = "1.0", **modules: str) -> dict[str, str]:
    """The sources of a package that can be built offline; `modules` are files below src/, `__` in a name is `/`."""
    files = {"pyproject.toml": PYPROJECT, "backend.py": BACKEND.format(name=name, version=version)}
    files.update({f"src/{module.replace('__', '/')}.py": text for module, text in modules.items()})
    return files


class Packages:
    """A folder of packages, as `pip --find-links` takes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wheel(self, name: str, version: str = "1.0", text: str = "", script: str = "", requires: str = "") -> None:
        """A wheel with one module of its own name, which has `VERSION`, and a console script if one is named."""
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files = {
            f"{name}.py": f"VERSION = {version!r}\n{text}\n",
            f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        if script:
            files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script} = {name}:main\n"
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
        with zipfile.ZipFile(self.folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
            for path, content in files.items():
                archive.writestr(path, content)

    def sdist(self, name: str, version: str = "1.0", **modules: str) -> None:
        """A source distribution that builds with its own backend."""
        root = self.folder / f"{name}-{version}"
        for path, text in package_files(name, version, **modules).items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        (root / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        with tarfile.open(self.folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
            archive.add(root, arcname=root.name)

    def environ(self) -> dict[str, str]:
        """Variables by which pip uses this folder and nothing else, whatever the machine's configuration."""
        return {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder)}


class Environment:
    """A virtual environment with pip in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "bin/python")

    @property
    def site_packages(self) -> Path:
        (path,) = self.folder.glob("lib/python3*/site-packages")
        return path

    def run(self, program: str) -> str:
        """What a program prints that runs with this environment's Python."""
        done = subprocess.run([self.python, "-c", program], check=True, capture_output=True, text=True)
        return done.stdout.strip()
