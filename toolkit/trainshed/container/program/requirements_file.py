"""Leaves packages out of a requirements file that trainshed stands in for, and that are slow to build from source."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

# On PyPI these are sources only: they need a compiler and minutes. `compat/sagemaker_training_api` serves their modules.
STAND_INS = {"sagemaker-training": "sagemaker_training", "sagemaker-containers": "sagemaker_containers"}
_NAME = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\]\s*)?(?:[=<>!~;@#\\(].*)?$")
_PATH_OPTION = re.compile(
    r"(?P<option>-r|-c|-f|--requirement|--constraint|--find-links)(?P<between>\s+|=|)(?P<path>\S+)(?P<rest>.*)"
)


def without(names: Container[str], text: str, folder: str) -> tuple[str, tuple[str, ...]]:
    """A requirements file without some packages, and the names of those left out.

    Args:
        names: normalized names of packages: lower case, with hyphens.
        text: the file's content.
        folder: where it lies; relative paths of its options are made absolute, so that the result may lie elsewhere.
    """
    kept: list[str] = []
    left_out: list[str] = []
    dropping = False  # the continuation lines of a requirement that is left out
    for line in text.splitlines():
        if dropping:
            dropping = line.rstrip().endswith("\\")
            continue
        match = _NAME.match(line)
        name = re.sub(r"[-_.]+", "-", match["name"]).lower() if match else ""
        if name in names:
            left_out.append(name)
            dropping = line.rstrip().endswith("\\")
            continue
        kept.append(_absolute(line, folder))
    return "\n".join(kept) + "\n", tuple(dict.fromkeys(left_out))


def _absolute(line: str, folder: str) -> str:
    match = _PATH_OPTION.match(line)
    if not match or not os.path.exists(f"{folder}/{match['path']}"):
        return line
    return f"{match['option']}{match['between']}{folder}/{match['path']}{match['rest']}"
