"""Checks whether torch, if installed, can be imported and sees the GPUs: in a subprocess, since importing it is slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from trainshed.base.check import Check, fail, ok, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainshed.contract.cluster import Hardware

_SECONDS = 180
_ASK = """\
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda or torch.version.hip, "available": cuda,
                  "count": torch.cuda.device_count() if cuda else 0,
                  "names": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if cuda else []}))
"""


def check_torch(hardware: Hardware) -> list[Check]:
    """GPUs of the machine, and torch's view of them."""
    from importlib.util import find_spec

    gpus = f"{hardware.gpus} GPU(s)" if hardware.gpus else "none"
    if find_spec("torch") is None:
        return [ok("gpus", gpus), ok("torch", "not installed")]
    answer = _ask()
    if isinstance(answer, str):
        return [
            ok("gpus", gpus),
            fail("torch", f"installed, but cannot be imported: {answer}", "python -c 'import torch'"),
        ]
    return judge(hardware.gpus, answer)


def judge(gpus: int, torch: dict[str, Any]) -> list[Check]:
    """The two checks, from the number of GPUs and torch's answer (version, cuda, available, count, names)."""
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else "CPU only"
    text = f"{torch['version']} ({build})"
    if not gpus:
        return [ok("gpus", "none"), ok("torch", text)]
    if not torch["cuda"]:
        fix = "install torch's CUDA build, or use the gpu image"
        return [ok("gpus", f"{gpus} GPU(s)"), fail("torch", f"{text}, but there are {gpus} GPU(s)", fix)]
    if not torch["available"]:
        fix = "the driver may be too old for this CUDA: compare nvidia-smi; in a container: docker run --gpus all"
        return [ok("gpus", f"{gpus} GPU(s)"), fail("torch", f"{text} finds no usable GPU of {gpus}", fix)]
    names = ", ".join(sorted(set(torch["names"])))
    if torch["count"] != gpus:
        fix = "check CUDA_VISIBLE_DEVICES and nvidia-smi"
        return [ok("gpus", f"{gpus} GPU(s)"), warn("torch", f"{text} sees {torch['count']} of {gpus} GPU(s): {names}", fix)]
    return [ok("gpus", f"{gpus} GPU(s): {names}"), ok("torch", text)]


def _ask() -> dict[str, Any] | str:
    """torch's answer, or the last line of its error."""
    try:
        # From /, so that no file of the user's (`random.py`) stands before a module that torch needs.
        done = subprocess.run(
            [sys.executable, "-c", _ASK], cwd="/", env={**os.environ}, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_SECONDS} s"
    except OSError as error:
        return str(error.strerror)
    try:
        answer = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {done.returncode}"
    return answer if isinstance(answer, dict) else "no answer"
