"""Packages that stay for the next run: what a requirements.txt has installed in a folder that outlives this container.

    <TRAINSHED_PACKAGES>/<digest>/
        prefix/         what the installer was given as its prefix
        whole.json      written when it was done: each file with its size and the time of its last change

The digest is of all that decides what gets installed and that can be seen here: the requirements with the files that they
name, the installer's settings, the interpreter and the packages that it has already. What an index has got since then
cannot be seen.

Where the interpreter's own packages outlive the job (a process of the user's machine, which may write to them), it gets the
requirements as ever, and whole.json lists the packages that it had then: pip would take one that it is to replace away from
there, wherever the new one goes.

A folder counts only while its files are as the installer left them: a script that has written to its packages gets new ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys

from trainshed.base.files import write_atomic
from trainshed.contract.wire.variables import OWN_PACKAGES_STAY, PACKAGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

WHOLE = "whole.json"
MOST_DEPTH = 5  # of requirements that name other files
# A name with versions, or an option that is about an index or about all packages. All else (a path, a URL, a branch of a
# repository, an editable folder) can change under the same words.
_FIXED = re.compile(
    r"(?:(?!\S+\.(?:whl|zip|tar|tgz|tbz|txz|tlz|gz|bz2|xz)\b)[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[^\]]*\])?\s*(?:[=<>!~(][^/@]*)?(?:;[^/@]*)?"
    r"|(?:-i|--index-url|--extra-index-url|-f|--find-links)[\s=]+https?://\S+"
    r"|--(?:no-index|pre|prefer-binary|require-hashes)|--(?:no-binary|only-binary)[\s=]+\S+)"
    r"(?:\s+--hash[\s=]\S+)*"
)
_OTHER_FILE = re.compile(r"(?:-r|-c|--requirement|--constraint)(?:\s+|=|)(\S+)")
_DISTRIBUTIONS = (".dist-info", ".egg-info", ".egg-link", ".pth")


class KeptPackages:
    """The packages of one requirements.txt. Use within a `Turn` for `place`.

    place: the folder for all that is kept; prefix: where this one's packages are, or are to be, "" for the interpreter's
    own folder.
    """

    def __init__(self, place: str, digest: str, *, own: bool) -> None:
        self.place = place
        self._folder = f"{place}/{digest}"
        self.prefix = "" if own else f"{self._folder}/prefix"

    def is_whole(self) -> bool:
        """Returns whether an installer has ended well here, and nobody has changed what it left. Notes the use."""
        try:
            with open(f"{self._folder}/{WHOLE}", encoding="utf-8") as file:
                listed = json.load(file)
            if listed != self._listed():
                return False
            os.utime(self._folder)  # by which the runner sees which ones are in use
            return True
        except (OSError, ValueError):
            return False

    def begin(self) -> bool:
        """Makes an empty prefix; whether that was possible."""
        try:
            self.drop()
            os.makedirs(self.prefix or self._folder)
        except OSError:
            return False
        return True

    def drop(self) -> None:
        """Leaves nothing of what has come so far. Never raises."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def finish(self, say: Callable[[str], None]) -> None:
        """Notes that all is installed; a folder that cannot be noted serves this run alone."""
        try:
            write_atomic(f"{self._folder}/{WHOLE}", json.dumps(self._listed()))
        except OSError as error:
            say(f"warning: the packages are not kept for the next run: {error.filename or self.place}: {error.strerror}")

    def _listed(self) -> dict[str, list[int]]:
        """Each file but compiled ones, which come and go, by its path in the prefix. Raises OSError."""
        if not self.prefix:
            return {name: [] for name in _distributions()}
        found = {}
        pending = [self.prefix]
        while pending:
            folder = pending.pop()
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        pending.append(entry.path)
                    continue
                status = entry.stat(follow_symlinks=False)
                found[entry.path[len(self.prefix) + 1 :]] = [status.st_size, status.st_mtime_ns]
        return found


def find(
    requirements: str, environ: Mapping[str, str], settings: Iterable[str], writable: bool, say: Callable[[str], None]
) -> KeptPackages | None:
    """Finds the kept packages of a requirements file; None where nothing is to be kept, or cannot be.

    Args:
        settings: files with the installer's settings, which may be missing.
        writable: whether the interpreter's own packages can be changed.
    """
    place = environ.get(PACKAGES, "")
    if not place:
        return None
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):
        say(f"warning: requirements.txt is installed for this run alone: {place} cannot be written to by this user")
        return None
    try:
        texts = _texts(requirements)
    except OSError:  # the installer reports it
        return None
    if texts is None:
        say("requirements.txt is installed for this run alone: it names files or addresses, whose content may change")
        return None
    own = writable and environ.get(OWN_PACKAGES_STAY) == "1"
    decides = [texts, _settings(environ, settings), sys.version, sys.executable, os.uname().machine]
    decides.append("own" if own else _distributions())
    return KeptPackages(place, hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:40], own=own)


def _texts(path: str, depth: int = 0) -> list[str] | None:
    """The lines that decide, of a requirements file and those that it names; None where one can change its meaning.

    Raises:
        OSError: a file cannot be read.
    """
    with open(path, encoding="utf-8", errors="backslashreplace") as file:
        text = file.read()
    found: list[str] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = re.sub(r"(^|\s+)#.*", "", line).strip()
        if not line:
            continue
        other = _OTHER_FILE.fullmatch(line)
        if other is not None and "://" not in other[1] and "$" not in other[1] and depth < MOST_DEPTH:
            more = _texts(os.path.join(os.path.dirname(path), other[1]), depth + 1)
            if more is None:
                return None
            found += [line.split()[0][:3], *more]
        elif _FIXED.fullmatch(line):
            found.append(line)
        else:
            return None
    return found


def _settings(environ: Mapping[str, str], files: Iterable[str]) -> list[str]:
    found = [f"{name}={environ[name]}" for name in sorted(environ) if name.startswith(("PIP_", "UV_")) and environ[name]]
    for path in files:
        try:
            with open(path, encoding="utf-8", errors="backslashreplace") as file:
                found.append(file.read())
        except OSError:
            pass
    return found


def _distributions() -> list[str]:
    """The packages that this Python has: what an installer need not install."""
    names: set[str] = set()
    for folder in sys.path:
        try:
            names.update(f"{folder}/{name}" for name in os.listdir(folder or ".") if name.endswith(_DISTRIBUTIONS))
        except OSError:
            pass
    return sorted(names)
