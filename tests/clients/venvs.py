"""Virtual environments for tests/clients, tests/jobs/ray and tests/jobs/kubernetes: each SDK, moto, ray, the Kubernetes
client and Amazon's toolkit in one of its own, made once and kept.

`python tests/clients/venvs.py` makes them all by hand, with a line for each. They lie in .venv-clients, or where
TRAINSHED_TEST_CLIENTS says, each under the hash of its pins; older ones of the same name are removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = Path(os.environ.get("TRAINSHED_TEST_CLIENTS") or HERE.parent.parent / ".venv-clients").resolve()
# What the pins were made from: installed with pip's own choice of the rest under another Python than the pins'.
PACKAGES = {
    "moto": ["moto[s3]", "flask", "flask-cors"],
    "sdk2": ["sagemaker==2.257.7", "docker"],
    "sdk3": ["sagemaker==3.27.0"],
    "peer": ["sagemaker-training==5.1.4"],
    # What `mlflow server` imports with a database, without the rest of mlflow.
    "mlflow": [
        *("mlflow-skinny==3.17.2", "flask", "flask-cors", "sqlalchemy", "alembic", "graphene", "aiohttp", "numpy", "pandas"),
    ],
    # Its own requirements forget the last four.
    "smdebug": ["smdebug==1.0.34", "pandas", "psutil", "requests", "setuptools"],
    "ray": ["ray[client]==2.60.0", "psutil", "pyyaml"],
    "kubernetes": ["kubernetes==37.0.2", "psutil", "pyyaml"],
}
PINNED_FOR = (3, 11)


class VenvError(Exception):
    """An environment could not be made; the message ends with pip's last lines."""


def make(name: str) -> Path:
    """The environment's Python, made if need be. Raises VenvError."""
    pins = HERE / "pins" / f"{name}.txt"
    version = f"py{sys.version_info[0]}.{sys.version_info[1]}"
    digest = hashlib.sha256(pins.read_bytes() + repr(PACKAGES[name]).encode()).hexdigest()[:8]
    venv = FOLDER / f"{name}-{version}-{digest}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (venv / "made").exists():
            for old in FOLDER.glob(f"{name}-{version}-*"):
                shutil.rmtree(old)
            start = time.monotonic()
            print(f"making {venv} ({', '.join(PACKAGES[name])})", file=sys.stderr, flush=True)
            _install(venv, ["--no-deps", "-r", str(pins)] if sys.version_info[:2] == PINNED_FOR else PACKAGES[name])
            (venv / "made").touch()
            print(f"made in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return venv / "bin" / "python"


def _install(venv: Path, what: list[str]) -> None:
    # Our own pip: putting one into each environment costs as much as a small package. Bytecode of the modules that are
    # imported comes with their first import; most of these never are.
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install"]
    options = ["--quiet", "--no-compile", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", "--without-pip", str(venv)], [*pip, *options, *what]):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            shutil.rmtree(venv, ignore_errors=True)
            raise VenvError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")


if __name__ == "__main__":
    try:
        for each in PACKAGES:
            make(each)
    except VenvError as error:
        sys.exit(str(error))
