"""Which packages an interpreter has, from the names of their metadata folders: importlib.metadata would read every one.

Sources: the folders `NAME-VERSION.dist-info` of PEP 376 and `direct_url.json` of PEP 610, which installers write for what
came from no index; `NAME-VERSION[-pyX.Y].egg-info` of setuptools and of Linux distributions.
"""

from __future__ import annotations

import os
import sys

from trainshed.base.files import read_object
from trainshed.base.secrets import mask_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

EDITABLE, LOCAL, VCS, ARCHIVE = "editable", "local", "vcs", "archive"
MOST = 5_000  # packages
_LARGEST = 64 << 10  # bytes of direct_url.json


def environment() -> dict[str, Any]:
    """Describes what a script started by this interpreter finds, for the run record.

    Returns:
        `python` (version), `executable`, `platform` (`Linux x86_64`), `packages` (version by name), and `sources`: of
        packages that came from no index by name, `{"kind": editable|local|vcs|archive, "url", "commit"}`, logins in
        URLs masked.
    """
    system = os.uname()
    packages, sources = installed(sys.path)
    return {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "platform": f"{system.sysname} {system.machine}",
        "packages": packages,
        "sources": sources,
    }


def installed(folders: Iterable[str]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """(versions, sources) by normalized name (PEP 503), as `environment` has them; the first folder that has one wins.

    Args:
        folders: as `sys.path` has them; what is not a folder, or cannot be read, holds nothing.
    """
    versions: dict[str, str] = {}
    sources: dict[str, dict[str, str]] = {}
    for folder in folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in sorted(names):
            stem, dot, kind = entry.rpartition(".")
            if not dot or kind not in ("dist-info", "egg-info"):
                continue
            name, _, version = stem.partition("-")
            name = normalized(name)
            if not name or not version or name in versions or len(versions) >= MOST:
                continue
            versions[name] = version.partition("-py")[0] if kind == "egg-info" else version
            if kind == "dist-info" and (source := _source(f"{folder or '.'}/{entry}/direct_url.json")):
                sources[name] = source
    return dict(sorted(versions.items())), sources


def normalized(name: str) -> str:
    """A package's name as all spellings of it are compared (PEP 503)."""
    name = name.replace("_", "-").replace(".", "-")
    while "--" in name:
        name = name.replace("--", "-")
    return name.lower()


def _source(path: str) -> dict[str, str]:
    """Where a package that came from no index came from; {} for one from an index."""
    if not os.path.exists(path):
        return {}
    told = read_object(path, _LARGEST)
    url = told.get("url")
    if not isinstance(url, str):
        return {}
    version_control, folder = told.get("vcs_info"), told.get("dir_info")
    if isinstance(version_control, dict):
        commit = str(version_control.get("commit_id") or "")
        return {"kind": VCS, "url": mask_text(f"{version_control.get('vcs') or 'git'}+{url}"), "commit": commit}
    if isinstance(folder, dict):
        return {"kind": EDITABLE if folder.get("editable") else LOCAL, "url": mask_text(url)}
    return {"kind": ARCHIVE, "url": mask_text(url)}
