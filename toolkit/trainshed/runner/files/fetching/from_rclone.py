"""Files of any storage that rclone knows, by the remotes of the user's own configuration: `gs://` is the remote `gs`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from trainshed.base.errors import TrainshedError, shorten
from trainshed.base.secrets import mask_text

from . import rclone
from .items import Item, Passing

LIMIT = 600.0  # seconds for a range, and without output for a list
_OPTIONS = ("--retries", "1", "--low-level-retries", "3", "--timeout", "30s", "--contimeout", "10s", "--ask-password=false")
_MISSING = (3, 4)  # exit statuses of rclone: there is no such folder, no such file


class RcloneRemote:
    """The source: one folder of a remote.

    Args:
        address: `gs://bucket/prefix` or `rclone://remote/prefix`: every file whose path begins with it.

    Raises:
        TrainshedError: rclone is not installed.
    """

    def __init__(self, address: str, environ: Mapping[str, str]) -> None:
        if not rclone.program():
            raise TrainshedError(f"{address}: rclone is not installed", hint="apt-get install rclone, or rclone.org")
        self.address = address
        self._environment = rclone.environment(environ, {})
        scheme, _, path = address.partition("://")
        self.remote, path = (scheme, path) if scheme != "rclone" else _halves(path)
        parent, _, self.beginning = path.rpartition("/")
        self.root = f"{self.remote}:{parent}"
        self._hash: list[str] = []
        self._start = address[: len(address) - len(self.beginning)]

    def reach(self) -> rclone.Reach:
        """The folder, for a mount."""
        return rclone.Reach(self.root)

    def items(self) -> list[Item]:
        """All files, sorted by name. Raises Passing, TrainshedError."""
        features = json.loads(self._asked("backend", "features", self.root, what=self.address)).get("Features") or {}
        if not features.get("SlowHash", True):  # else the storage would read every file for it
            self._hash = ["--hash"]
        words = ["--recursive", "--files-only", *self._hash, "--no-mimetype", *rclone.only("", self.beginning)]
        listed: list[dict[str, Any]] = json.loads(self._asked("lsjson", *words, "--", self.root, what=self.address))
        found = [Item(one["Path"], f"{self._start}{one['Path']}", int(one["Size"]), _identity(one)) for one in listed]
        if not found:
            raise TrainshedError(f"{self.address}: no file has this prefix")
        return sorted(found, key=lambda item: item.name)

    def known(self, item: Item) -> Item:
        """By listing it."""
        text = self._asked("lsjson", "--stat", *self._hash, "--no-mimetype", "--", self._path(item), what=item.url)
        one = json.loads(text)
        return Item(item.name, item.url, int(one["Size"]), _identity(one))

    def read(self, item: Item, start: int, end: int) -> bytes:
        """By `rclone cat`."""
        words = ["--offset", str(start), "--count", str(end - start), "--", self._path(item)]
        data = self._asked("cat", *words, what=item.url)
        if len(data) != end - start:
            raise Passing(f"{len(data)} of {end - start} bytes came")
        return data

    def at_once(self, item: Item) -> None:
        """rclone gives ranges."""

    def parts(self, item: Item) -> list[int]:
        """An identity that is an MD5 is one of all bytes."""
        return [item.size]

    def _path(self, item: Item) -> str:
        return f"{self.root}{'' if self.root.endswith(':') else '/'}{item.name}"

    def _asked(self, command: str, *words: str, what: str) -> bytes:
        try:
            done = subprocess.run(
                [rclone.program(), command, *_OPTIONS, *words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT,
                cwd="/",
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise Passing(f"rclone did not end in {LIMIT:g} s") from None
        except OSError as error:
            raise TrainshedError(f"{what}: rclone: {error.strerror}") from error
        if done.returncode == 0:
            return done.stdout
        said = mask_text(shorten(done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2], 200))
        if "didn't find section in config file" in said:
            hint = f"`rclone config create {self.remote} ...` makes it; `rclone listremotes` lists those that there are"
            raise TrainshedError(f"{what}: rclone has no remote {self.remote!r}", hint=hint)
        if done.returncode in _MISSING or "not found" in said:
            raise TrainshedError(f"{what}: {said}")
        raise Passing(said or f"rclone ended with {done.returncode}")


def _halves(path: str) -> tuple[str, str]:
    remote, _, rest = path.partition("/")
    return remote, rest


def _identity(one: dict[str, Any]) -> str:
    """Its MD5 where the storage knows it, else its time."""
    return str((one.get("Hashes") or {}).get("md5") or f"modified {one.get('ModTime', '')}")
