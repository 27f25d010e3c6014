"""The place of a host's profiler files, for whoever has its output folder alone."""

from __future__ import annotations

import os

from trainshed.base import quick_json
from trainshed.base.files import read_object

_BASE = "/opt/ml"  # what the host itself may call its tree
_MOST_BYTES = 1 << 20


def profiler_folder(output: str) -> str:
    """`<output>/profiler`, or the `LocalPath` of the host's profilerconfig.json where that is in the same tree.

    A path elsewhere is not followed: in a container it is out of reach, and anybody may have written the file.

    Args:
        output: the host's output folder, `output` in its tree.
    """
    usual = f"{output}/profiler"
    base = os.path.dirname(os.path.abspath(output))
    path = _local_path(f"{base}/input/config/profilerconfig.json")
    if path == _BASE or path.startswith(f"{_BASE}/"):
        path = base + path[len(_BASE) :]
    inside = os.path.realpath(path).startswith(os.path.realpath(base) + "/") if path.startswith("/") else False
    return path if inside else usual


def _local_path(path: str) -> str:
    parameters = _lower(read_object(path, _MOST_BYTES)).get("profilingparameters")
    if isinstance(parameters, str):
        try:
            parameters = quick_json.loads(parameters)
        except (ValueError, RecursionError):
            return ""
    found = _lower(parameters).get("localpath")
    return found if isinstance(found, str) and "\0" not in found else ""


def _lower(value: object) -> dict[str, object]:
    return {str(name).lower(): field for name, field in value.items()} if isinstance(value, dict) else {}
