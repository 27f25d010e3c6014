"""Configuration files of Accelerate and DeepSpeed in the folder of the code, told by what is in them.

People start such scripts with `accelerate launch --config_file FILE` or `deepspeed`, and a job that starts the script itself
would silently leave the file out.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .launch import Launch

_MOST_NAMES, _MOST_FILES, _LARGEST = 1000, 50, 1 << 16  # of a folder that may hold data as well
_ACCELERATES = (b"distributed_type", b"compute_environment")
_DEEPSPEEDS = (b'"zero_optimization"',)


def candidates(folder: str) -> list[str]:
    """Such files below the folder and its direct subfolders, relative to it, in the order of their names."""
    return [name for name in _names(folder) if _looks_like_one(f"{folder}/{name}")]


def with_note(launch: Launch) -> Launch:
    """The launch, with a note where the code folder has one such file and nothing names it."""
    found = note(launch)
    return launch.replace(notes=(*launch.notes, found)) if found else launch


def note(launch: Launch) -> str:
    """One line about the only such file that there is, where nothing of the job names it; else ""."""
    folder = launch.program.folder
    found = candidates(folder)
    accelerates = [name for name in found if not name.endswith(".json") or not _is_deepspeeds(f"{folder}/{name}")]
    if len(accelerates) == 1:
        (name,) = accelerates
        return (
            f"{name} looks like a configuration of Accelerate, and has no effect; the setting trainshed_accelerate = {name} "
            "gives the ranks what `accelerate launch --config_file` would"
        )
    if accelerates or len(found) != 1 or _is_named(found[0], launch):
        return ""
    return (
        f"{found[0]} looks like a configuration of DeepSpeed, and nothing names it; the setting trainshed_accelerate = "
        f"{found[0]} hands it to Accelerate and transformers, an argument of the script to others"
    )


def _names(folder: str) -> Iterator[str]:
    looked = taken = 0
    folders = [""]
    for inner in folders:
        try:
            entries = sorted(os.scandir(f"{folder}/{inner}"), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            looked += 1
            if looked > _MOST_NAMES or taken == _MOST_FILES:
                return
            if entry.name.startswith("."):
                continue
            if not inner and os.path.isdir(entry.path):  # unlike the entry's own, it takes links in circles
                folders.append(f"{entry.name}/")
            elif entry.name.endswith((".yaml", ".yml", ".json")):
                taken += 1
                yield inner + entry.name


def _looks_like_one(path: str) -> bool:
    text = _text(path)
    return all(mark in text for mark in _ACCELERATES) or (path.endswith(".json") and _is_deepspeeds(path))


def _is_deepspeeds(path: str) -> bool:
    return all(mark in _text(path) for mark in _DEEPSPEEDS)


def _is_named(name: str, launch: Launch) -> bool:
    """Whether the script's command line or the script itself names the file."""
    base = os.path.basename(name)
    return any(base in argument for argument in launch.arguments) or base.encode() in _text(
        f"{launch.program.folder}/{launch.program.name}"
    )


def _text(path: str) -> bytes:
    """The start of a file, b"" where it cannot be read or is no regular file."""
    try:
        if not os.path.isfile(path):
            return b""
        with open(path, "rb") as stream:
            return stream.read(_LARGEST)
    except OSError:
        return b""
