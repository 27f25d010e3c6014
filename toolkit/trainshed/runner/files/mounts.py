"""Channels in FastFile mode as file systems: `rclone mount` shows the objects, read-only, and reads what is read.

Each lies at `staged/<channel>`, where the fetched files of another channel would be, and shows one folder, `all`. The folder
under it has none of that name: who does not see the mount (an engine elsewhere, a script after its end) finds no such
folder, and never an empty one.

A mount ends with its run, however that ends. A small shell waits on a pipe that the runner alone holds open; when it closes,
by the runner or by the kernel, the shell takes the mount away, lazily: what still has files of it open (containers of a
killed runner) keeps them, and rclone ends with the last of them. Where the shell is killed, too, the next start clears up.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from trainshed.base.errors import TrainshedError, exit_status, shorten, some
from trainshed.base.files import open_unfollowed
from trainshed.base.numerals import whole
from trainshed.base.secrets import mask_text
from trainshed.machine import mountpoints
from trainshed.machine.processes import stat_fields

from ..job.job import ChannelSpec
from .fetching import rclone
from .fetching.items import Item
from .run import Run

NAME = "trainshed"  # of the mounts' sources, with the runner's PID and start: mountinfo shows them to the next start
SHOWN = "all"  # what `Run.staged` calls the folder for all hosts
START_SECONDS = 60.0  # for a mount to appear, and again for its first bytes
END_SECONDS = 10.0  # for rclone to end when its mount is gone
PAUSE = 0.02  # seconds between two looks
MOST_COMPARED = 100_000  # objects that are listed again at the end
_LOG_END = 1 << 16  # bytes of rclone's messages that are searched
# A read fails after two minutes or so of errors or silence; by rclone's own defaults it would take an hour.
_PATIENCE = ("--timeout", "15s", "--contimeout", "10s", "--low-level-retries", "3")
_OPTIONS = (
    *("--read-only", "--file-perms", "0444", "--dir-perms", "0555", "--use-server-modtime", "--ask-password=false"),
    *("--dir-cache-time", "8760h", "--poll-interval", "0", "--attr-timeout", "60s"),  # as it was when it was listed
    *("--vfs-cache-mode", "off", "--vfs-read-chunk-size", "32M", "--vfs-read-chunk-size-limit", "512M"),
    *("--buffer-size", "8M", "--max-read-ahead", "1M", *_PATIENCE),
)
_GUARD = 'read -r _; exec "$1" -u -z "$2"'
_FIRST_AND_LAST = 'head -c 1 -- "$1" >/dev/null && stat -c %s -- "$2"'


class NotMounted(Exception):
    """Why a channel cannot be shown as a file system, in words."""


@dataclass(frozen=True)
class Mount:
    """One channel's file system, its rclone, and the shell that takes it away."""

    channel: ChannelSpec
    point: str
    process: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]
    log: str

    def trouble(self) -> str:
        """Says what is wrong with it, "" while it is there."""
        code = self.process.poll()
        if code is None:
            return ""
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {exit_status(code)}"
        said = last_error(self.log)
        return (
            f"the channel {self.channel.name} is gone: rclone, which reads {self.channel.path}, {how}"
            f"{f'; it said: {said}' if said else ''}"
        )

    def close(self) -> None:
        """Takes it away, whatever state it is in. Never raises."""
        for end in (self.guard.stdin, self.process.stdin):
            if end is not None:
                end.close()
        _await(self.guard)
        if mountpoints.is_mounted(self.point):  # the shell was killed
            mountpoints.unmount(self.point)
        _await(self.process)


class Mounts:
    """The mounts of a run. `close` takes all of them away.

    Args:
        others: whether other users (a container engine's) must see them.
    """

    def __init__(self, run: Run, environ: Mapping[str, str], *, others: bool = False) -> None:
        self.run, self.environ, self.others = run, environ, others
        self.mounts: list[Mount] = []
        self.shown: dict[str, list[Item]] = {}  # what there is of each channel, by its name

    def obstacle(self) -> str:
        """Why this machine cannot show a channel as a file system, "" if it can."""
        if not rclone.program():
            return "rclone is not installed (Debian's packages rclone and fuse3)"
        return mountpoints.obstacle(others=self.others)

    def show(self, channel: ChannelSpec, reach: rclone.Reach, items: list[Item], beginning: str) -> None:
        """Shows a folder of a storage as a channel.

        Args:
            items: what is there, at least one. beginning: what the names of all have in common, and no others.

        Raises:
            NotMounted: it cannot be done.
        """
        names = [item.name for item in items]
        if reason := self.obstacle() or reach.obstacle or rclone.why_not_shown(names):
            raise NotMounted(reason)
        mount = self._start(channel, reach, beginning)
        try:
            _await_mount(mount)
            _read(mount, items)
        except BaseException:
            mount.close()
            raise
        self.mounts.append(mount)
        self.shown[channel.name] = items

    def _start(self, channel: ChannelSpec, reach: rclone.Reach, beginning: str) -> Mount:
        point = f"{self.run.folder}/staged/{channel.name}"
        log = f"{self.run.folder}/logs/channel-{channel.name}.rclone"
        options = [*_OPTIONS, "--devname", _source(), *rclone.only(SHOWN, beginning)]
        if self.others or os.geteuid() == 0:
            options.append("--allow-other")
        variables = {**reach.variables, **rclone.one_folder(reach, SHOWN)}
        try:
            os.makedirs(point, exist_ok=True)
            point = os.path.realpath(point)  # as the kernel will call it
            with open(log, "ab", opener=open_unfollowed) as said:
                # Sessions of their own: Ctrl-C is for the runner. Its end is what they wait for.
                process = subprocess.Popen(
                    [rclone.program(), "mount", *options, "--", f"{rclone.SHOWN}:", point],
                    env=rclone.environment(self.environ, variables),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            raise NotMounted(f"{error.filename}: {error.strerror}") from error
        try:
            guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "trainshed-unmount", mountpoints.unmount_command(), point],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            process.kill()
            process.wait()
            raise
        return Mount(channel, point, process, guard, log)

    def trouble(self) -> str:
        """Says what is wrong with a mount, "" while all are there."""
        return next((said for mount in self.mounts if (said := mount.trouble())), "")

    def errors(self) -> str:
        """Says what could not be read of the channels, "" where all could."""
        said = [(mount.channel.name, last_error(mount.log)) for mount in self.mounts]
        return "; ".join(f"the channel {name} could not be read: {text}" for name, text in said if text)

    def changes(self) -> list[str]:
        """Lists what has changed of the objects since they were listed: a script may have read the new for the old."""
        from .fetching.sources import listed

        said = []
        for mount in self.mounts:
            before = {item.name: item.etag for item in self.shown[mount.channel.name]}
            if len(before) > MOST_COMPARED:
                continue
            try:
                after = {item.name: item.etag for item in listed(mount.channel, self.environ)[1]}
            except TrainshedError:  # then its script has noticed, or does not care
                continue
            if names := [name for name, etag in before.items() if after.get(name) != etag]:
                what = some([repr(name) for name in names], 3)
                said.append(f"the channel {mount.channel.name}: changed in the storage while the job ran: {what}")
        return said

    def close(self) -> None:
        """Takes all mounts away. Never raises."""
        while self.mounts:
            self.mounts.pop().close()


def clear_stale() -> None:
    """Takes away mounts whose runner and whose shell have been killed."""
    for one in mountpoints.mount_points():
        name, _, runner = one.source.partition("-")
        pid, _, start = runner.partition("-")
        if one.kind.startswith("fuse") and name == NAME and start and not _lives(whole(pid), start):
            mountpoints.unmount(one.point)


def clear(folder: str) -> None:
    """Takes away the mounts below a run's folder; for runs whose runner is dead."""
    for point in ours_below(folder):
        mountpoints.unmount(point)


def ours_below(folder: str) -> set[str]:
    """Finds where a run's folder has mounts of ours, by the kernel's table: a dead one would not answer."""
    staged = f"{os.path.realpath(folder)}/staged/"
    found = mountpoints.mount_points()
    return {one.point for one in found if one.source.startswith(f"{NAME}-") and one.point.startswith(staged)}


def last_error(log: str) -> str:
    """The last error that rclone has written, without its time; "" where there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - _LOG_END))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    lines.sort(key=lambda line: "mount failed" in line)  # its reason, which a line without one follows
    for line in reversed(lines):
        for mark in ("ERROR :", "CRITICAL:", "mount failed", "Failed to", "Fatal error:"):
            if mark in line:
                text = line[line.index(mark) :].removeprefix("ERROR :")
                return mask_text(shorten(text, 300))
    return ""


def _source() -> str:
    return f"{NAME}-{os.getpid()}-{_start_of(os.getpid())}"


def _start_of(pid: int) -> str:
    """Ticks from the machine's start to the process's: field 22 of /proc/PID/stat."""
    fields = stat_fields(pid)
    return fields[19] if len(fields) > 19 else ""


def _lives(pid: int | None, start: str) -> bool:
    return pid is not None and _start_of(pid) == start


def _await_mount(mount: Mount) -> None:
    end = time.monotonic() + START_SECONDS
    while not mountpoints.is_mounted(mount.point):
        if mount.process.poll() is not None:
            raise NotMounted(f"rclone: {last_error(mount.log) or 'it ended without a word'}")
        if time.monotonic() > end:
            raise NotMounted(f"rclone did not mount it in {START_SECONDS:g} s")
        time.sleep(PAUSE)


def _read(mount: Mount, items: list[Item]) -> None:
    """Reads the first item's first byte and looks at the last one. In another process: what hangs can be ended."""
    first, last = (f"{mount.point}/{SHOWN}/{item.name}" for item in (items[0], items[-1]))
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", _FIRST_AND_LAST, "sh", first, last],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise NotMounted(f"nothing could be read in {START_SECONDS:g} s") from None
    if done.returncode != 0:
        raise NotMounted(last_error(mount.log) or shorten(done.stderr, 200))
    if items[-1].size >= 0 and done.stdout.strip() != str(items[-1].size):
        raise NotMounted(f"rclone shows {items[-1].name!r} with another size")


def _await(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
