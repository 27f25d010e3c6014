"""`demo`: trains a small model here, offline, in about ten seconds, to show what a job looks like.

Where torch and scikit-learn are: a network on the handwritten digits of scikit-learn. Elsewhere a line through points, in
plain Python. In a container the job is laid out in /opt/ml; on a machine of a person's own nothing is written there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from trainshed.base.errors import EXIT_SUCCESS, TrainshedError
from trainshed.contract.paths import DEFAULT_BASE
from trainshed.contract.ready_programs import ready_folders
from trainshed.contract.wire.variables import ENTRYPOINTS
from trainshed.machine.console import say

from .main import train

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

EPOCHS = "6"
LINE = """\
import json, os, random

source = random.Random(0)
points = [(x, 2 * x + 1 + source.gauss(0, 0.05)) for x in (source.uniform(-1, 1) for _ in range(2000))]
slope = offset = 0.0
for epoch in range(int(os.environ["SM_HP_EPOCHS"])):
    loss = 0.0
    for x, y in points:
        error = slope * x + offset - y
        loss += error * error / len(points)
        slope -= 0.001 * error * x
        offset -= 0.001 * error
    print(f"metric loss={loss:.5f} epoch={epoch}", flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "line.json"), "w") as file:
    json.dump({"slope": slope, "offset": offset}, file)
"""


def demo(environ: Mapping[str, str]) -> int:
    """Trains something small; returns the job's exit status. Raises TrainshedError: it cannot be laid out."""
    base = environ.get("SAGEMAKER_BASE_DIR") or (DEFAULT_BASE if _in_container(DEFAULT_BASE, environ) else "")
    if base and os.path.isdir(f"{base}/input/config") and os.listdir(f"{base}/input/config"):
        raise TrainshedError(
            f"{base} already holds a job", hint="run it with `train`, or mount an empty folder for the demo"
        )
    if base and _writable(base):
        return _demo(base, base, environ)
    with tempfile.TemporaryDirectory(prefix="trainshed-demo-") as folder:
        code = _demo(folder, "", environ)
    say("demo: its folder is gone now, with the model and the report; SAGEMAKER_BASE_DIR=FOLDER keeps them")
    return code


def _demo(base: str, kept: str, environ: Mapping[str, str]) -> int:
    """kept: the folder that outlives the demo, "" for none."""
    ready = _ready_programs(environ)
    try:
        os.makedirs(f"{base}/input/config", exist_ok=True)
        os.makedirs(f"{base}/checkpoints", exist_ok=True)
        hyperparameters = {"epochs": EPOCHS}
        if ready:
            hyperparameters["sagemaker_program"] = f"{ready}/image_classification.py"
            command = [sys.executable, f"{ready}/demo_data.py", "digits", f"{base}/input/data"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode != 0:
                raise TrainshedError("the demo's data cannot be written", details=done.stderr[-2000:])
        else:
            os.makedirs(f"{base}/code", exist_ok=True)
            with open(f"{base}/code/train.py", "w") as file:
                file.write(LINE)
            hyperparameters["sagemaker_program"] = "train.py"
        with open(f"{base}/input/config/hyperparameters.json", "w") as file:
            json.dump(hyperparameters, file)
    except OSError as error:
        raise TrainshedError(f"the files of the demo cannot be written: {error.filename}: {error.strerror}") from error
    say(f"demo: {'a network on handwritten digits' if ready else 'a line through points'}, {EPOCHS} epochs, in {base}")
    code = train({**environ, "SAGEMAKER_BASE_DIR": base})
    if code == EXIT_SUCCESS and kept:
        say(f"demo: the model is in {kept}/model, measurements and the run's record in {kept}/output/data")
    return code


def _ready_programs(environ: Mapping[str, str]) -> str:
    """The folder of trainshed's ready programs, "" where they or what they need are missing; says what torch alone lacks."""
    from importlib.util import find_spec

    places = [environ[ENTRYPOINTS]] if environ.get(ENTRYPOINTS) else ready_folders(environ)
    needed = ("demo_data.py", "image_classification.py")
    folder = next((one for one in places if all(os.path.isfile(f"{one}/{name}") for name in needed)), "")
    missing = [package for module, package in _PACKAGES.items() if not find_spec(module)]
    if folder and missing and "torch" not in missing:
        say(f"demo: a network needs {' and '.join(missing)} as well: pip install {' '.join(missing)}")
    return "" if missing else folder


_PACKAGES = {"torch": "torch", "sklearn": "scikit-learn", "numpy": "numpy", "PIL": "pillow"}
_CONTAINERS = ("/.dockerenv", "/run/.containerenv")  # what Docker and Podman put there


def _in_container(base: str, environ: Mapping[str, str]) -> bool:
    """Whether a folder belongs to a container: an image has it, or it has been mounted into one. It is never made."""
    contained = "KUBERNETES_SERVICE_HOST" in environ or any(map(os.path.exists, _CONTAINERS))
    return os.path.isdir(base) and (contained or os.path.ismount(base))


def _writable(base: str) -> bool:
    try:
        os.makedirs(base, exist_ok=True)
    except OSError:
        return False
    return os.access(base, os.W_OK | os.X_OK)
