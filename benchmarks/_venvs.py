"""The launchers to compare, each installed the way its users get it: into a virtual environment of its own."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from _measure import ARGUMENTS, JOBS, BenchError, Launcher

REPOSITORY = Path(__file__).parent.parent
PACKAGED = ("pyproject.toml", "README.md", "LICENSE", "toolkit")
PEER = "sagemaker-training==5.1.4"
# Given to both launchers of two ranks, so that both do the same work.
TWO_RANKS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def say(text: str) -> None:
    """A line of progress; results are all that goes to stdout."""
    print(text, file=sys.stderr, flush=True)


class Venvs:
    """Virtual environments in a cache folder; each is made once and found again by its name.

    Args:
        workdir: the cache folder.
        python: the interpreter they are made with.
    """

    def __init__(self, workdir: Path, python: str) -> None:
        self.workdir = workdir
        self.python = python
        out = _output([python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"])
        self.version = out.strip()
        workdir.mkdir(parents=True, exist_ok=True)

    def bare(self) -> Launcher:
        """The script itself, in an environment with nothing installed."""
        python = self._make(f"bare-py{self.version}", []) / "bin" / "python"
        return Launcher("bare exec", (str(python), "train.py", *ARGUMENTS), relays=False)

    def trainshed(self) -> Launcher:
        return Launcher("trainshed", (str(self._trainshed() / "bin" / "train"),))

    def peer(self) -> Launcher:
        return Launcher("sagemaker-training", (str(self._peer() / "bin" / "train"),))

    def peer_capturing(self) -> Launcher:
        """The peer in the mode its framework containers use."""
        module = {"SAGEMAKER_TRAINING_MODULE": "capturing_peer:main", "PYTHONPATH": str(JOBS)}
        return Launcher("sagemaker-training, capturing", (str(self._peer() / "bin" / "train"),), module)

    def torchrun(self, torch_python: str) -> Launcher:
        python = str(self._borrow_torch(self._make(f"torch-py{self.version}", []), torch_python) / "bin" / "python")
        run = ("-m", "torch.distributed.run", "--standalone", "--nnodes", "1", "--nproc_per_node", "2")
        return Launcher("torchrun", (python, *run, "train.py", *ARGUMENTS), TWO_RANKS)

    def trainshed_with_torch(self, torch_python: str) -> Launcher:
        venv = self._borrow_torch(self._trainshed("-torch"), torch_python)
        return Launcher("trainshed", (str(venv / "bin" / "train"),), TWO_RANKS)

    def with_torch(self, name: str, requirements: tuple[str, ...]) -> str:
        """The interpreter of an environment with some packages and the torch of this one. Raises BenchError."""
        venv = self._make(f"{name}-torch-py{self.version}", list(requirements))
        return str(self._borrow_torch(venv, self.python) / "bin" / "python")

    def _borrow_torch(self, venv: Path, torch_python: str) -> Path:
        """Lets `venv` see the torch `torch_python` has, which is too large to install again and again.

        Raises:
            BenchError: `torch_python` has no torch, or is another Python version.
        """
        find = "import os, sys, torch; print(*sys.version_info[:2], sep='.'); print(os.path.dirname(torch.__path__[0]))"
        try:
            version, site = _output([torch_python, "-c", find]).splitlines()
        except (subprocess.CalledProcessError, FileNotFoundError):
            raise BenchError(
                f"{torch_python} cannot import torch: name a Python that can with --torch-python, or say --no-torch"
            ) from None
        if version != self.version:
            raise BenchError(f"{torch_python} is Python {version}, --python is {self.version}: they must be the same")
        (venv / "lib" / f"python{version}" / "site-packages" / "borrowed-torch.pth").write_text(f"{site}\n")
        return venv

    def _peer(self) -> Path:
        return self._make(f"sagemaker-training-py{self.version}", [PEER])

    def _trainshed(self, suffix: str = "") -> Path:
        """trainshed from this repository, not editable; made anew whenever a packaged file has changed."""
        kind = f"trainshed{suffix}-py{self.version}-"
        name = kind + _fingerprint()
        for old in self.workdir.glob(kind + "*"):
            if old.name != name:
                shutil.rmtree(old)
        # Built from a copy: a build leaves its folders beside the sources.
        copy = self.workdir / f"{name}.source"
        try:
            if not (self.workdir / name).exists():
                _copy_sources(copy)
            return self._make(name, [str(copy)])
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _make(self, name: str, requirements: list[str]) -> Path:
        venv = self.workdir / name
        if venv.exists():
            return venv
        say(f"making {venv} with {' '.join(requirements) or 'nothing'}")
        try:
            _output([self.python, "-m", "venv", str(venv)])
            if requirements:
                _output([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements])
        except BaseException as error:
            shutil.rmtree(venv, ignore_errors=True)  # half of an environment must not be found next time
            if isinstance(error, subprocess.CalledProcessError):
                raise BenchError(f"could not install {' '.join(requirements)}:\n{error.stderr[-2000:]}") from None
            raise
        return venv


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def _sources() -> list[Path]:
    """The files that make up the package, without what running it leaves behind."""
    found = []
    for name in PACKAGED:
        path = REPOSITORY / name
        found += [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return [p for p in found if "__pycache__" not in p.parts and ".egg-info" not in str(p.parent)]


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.relative_to(REPOSITORY)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _copy_sources(target: Path) -> None:
    for path in _sources():
        copy = target / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
