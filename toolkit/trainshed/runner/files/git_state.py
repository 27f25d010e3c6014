"""Reads what git knows of the folder with the code: commit, branch, changes. Nothing of the repository or the user's is run.

A repository that came from elsewhere may name programs in its configuration: filters, hooks, a file system monitor, a
transport. All are switched off here, the user's own configuration is not read, and nothing is fetched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainshed.base.errors import one_line, shorten
from trainshed.base.secrets import mask_text

SECONDS = 5.0  # that git may take altogether
MOST_NAMED = 20  # changed files that are named
LONGEST = 200  # characters of a text that is kept
_OFF = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.alternateRefsCommand": "",
    "safe.directory": "*",  # only read: whose it is does not matter
}
_STATUS = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--ignore-submodules=all", "--", ".")
_FILTER = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))


def git_state(folder: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns what git says of a folder with code, for `provenance.json`.

    Args:
        environ: whose PATH leads to git.

    Returns:
        `commit`, `branch` ("" for none), `dirty` (None where that is not known), `changed` (names below the repository of
        some files that differ from the commit), `changes` (how many), `repository` (its folder), `remote` (URL, login
        masked); `note` where something is not known, and why; {} for a folder in no repository.
    """
    top = _repository(folder)
    if not top:
        return {}
    git = shutil.which("git", path=environ.get("PATH", os.defpath))
    if git is None:
        return {"repository": top, "note": "git is not installed: commit and changes are not known"}
    end = time.monotonic() + SECONDS
    environment = _environment(environ, _OFF)
    try:
        told = _ask([git, "-C", folder, "config", "--list", "-z"], environment, end)
        settings = [setting.partition("\n") for setting in told.split("\0") if setting]
        environment = _environment(environ, {**_OFF, **_without_filters([name for name, _, _ in settings])})
        remotes = {name: value for name, _, value in settings if name.startswith("remote.") and name.endswith(".url")}
        found = _read(_ask([git, "--no-optional-locks", "-C", folder, *_STATUS], environment, end))
    except subprocess.TimeoutExpired:
        return {"repository": top, "note": f"git took more than {SECONDS:g} s: commit and changes are not known"}
    except (OSError, subprocess.CalledProcessError) as error:
        said = str(getattr(error, "stderr", "") or error)
        return {"repository": top, "note": f"git cannot read the repository: {_short(said)}"}
    remote = remotes.get("remote.origin.url") or next(iter(remotes.values()), "")
    return {**found, "repository": top, **({"remote": _short(remote.partition("?")[0])} if remote else {})}


def _repository(folder: str) -> str:
    """The folder above (or at) this one that has a `.git`, "" for none."""
    place = os.path.realpath(folder)
    while not os.path.lexists(f"{place}/.git"):
        above = os.path.dirname(place)
        if above == place:
            return ""
        place = above
    return place


def _environment(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Nothing of the caller's but PATH; settings go by variables, where names may hold any character."""
    made = {
        "PATH": environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": "none",  # of a partial clone: what is missing is not fetched
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    for number, (name, value) in enumerate(settings.items()):
        made |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return made


def _without_filters(names: Sequence[str]) -> dict[str, str]:
    """Settings that switch off every filter that some setting belongs to."""
    filters = dict.fromkeys(name.rpartition(".")[0] for name in names if name.startswith("filter."))
    return {f"{one}.{key}": value for one in filters if one != "filter" for key, value in _FILTER}


def _ask(command: list[str], environment: dict[str, str], end: float) -> str:
    """What git prints. Raises OSError, CalledProcessError, TimeoutExpired."""
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="surrogateescape",
        check=True, cwd="/", timeout=max(0.01, end - time.monotonic()),
    )  # fmt: skip
    return done.stdout


def _read(status: str) -> dict[str, Any]:
    """The output of `git status --porcelain=v2 --branch -z` (git-status(1), "Porcelain Format Version 2")."""
    commit = branch = ""
    changed: list[str] = []
    entries = iter(status.split("\0"))
    for entry in entries:
        kind, _, rest = entry.partition(" ")
        if entry.startswith("# branch.oid "):
            commit = rest.split(" ")[1]
        elif entry.startswith("# branch.head "):
            branch = rest.partition(" ")[2]
        elif kind in ("1", "2", "u"):
            changed.append(rest.split(" ", {"1": 7, "2": 8, "u": 9}[kind])[-1])
            if kind == "2":
                next(entries, "")  # the name that it had
        elif kind == "?":
            changed.append(rest)
    return {
        "commit": "" if commit == "(initial)" else commit,
        "branch": "" if branch == "(detached)" else _short(branch),
        "dirty": bool(changed),
        "changes": len(changed),
        "changed": [_short(name) for name in changed[:MOST_NAMED]],
    }


def _short(text: str) -> str:
    return shorten(one_line(mask_text(text.strip())), LONGEST)
