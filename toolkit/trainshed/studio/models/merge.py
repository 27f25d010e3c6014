"""Writes an adapter of the ready program fine_tune into the model that it belongs to."""

from __future__ import annotations

import os
import subprocess
import sys

from trainshed.algorithms.looking import environment_for, install
from trainshed.algorithms.shelf import find, missing
from trainshed.base.errors import TrainshedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.runner.state.stored import Stored

PROGRAM = "fine_tune"
_ADAPTER = "adapter_config.json"  # of PEFT
_WHOLE = "config.json"  # of a whole model, which the program refuses by name


def merge(adapter: str, base: str, target: str, environ: Mapping[str, str], source: str) -> int:
    """Writes the whole model to `target`, a new or an empty folder; returns the program's exit status.

    base: a folder, or a name on the hub; "" for the one that the adapter names. source: what the person calls the adapter.

    Raises:
        TrainshedError: it is no adapter, or what the program needs is not installed.
    """
    if not any(os.path.isfile(f"{adapter}/{name}") for name in (_ADAPTER, _WHOLE)):
        raise TrainshedError(f"{source} holds no adapter ({_ADAPTER})", hint="fine_tune writes one with method=lora")
    algorithm = find(PROGRAM, environ)
    if absent := missing(algorithm):
        raise TrainshedError(f"{PROGRAM} needs {', '.join(absent)}, not installed here", hint=install(algorithm))
    words = [sys.executable, algorithm.script, "--model_dir", adapter, "--merge_to", target]
    words += ["--model", base] if base else []
    return subprocess.run(words, env=environment_for(environ), check=False).returncode


def base_of(run: Stored) -> str:
    """The folder that a run had as its channel `model`, "" where it is not there."""
    channels = {one.name: one.path for one in run.run().job.channels}
    path = channels.get("model", "")
    return path if os.path.isdir(path) else ""
