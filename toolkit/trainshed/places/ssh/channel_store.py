"""Channels that have been sent before: rsync brings a machine's copy up to date, and runs get hard links to it.

The copies lie in `data/` of trainshed's folder there, one for each folder of a machine here. Their files cannot be written:
what a script would change in its run would change there, too. Where either side lacks rsync, `shipping` sends a tar.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import time

from trainshed.runner.files.run import HostTree, Run
from trainshed.runner.job.job import ChannelSpec

from .connection import SSH_FAILED, MachineUnreachable, SshError, in_words
from .machine import Machine
from .shipping import below
from .wishes import SshOptions

TRIES, PAUSE = 5, 5.0  # for a connection that breaks meanwhile: each goes on where the one before stopped
_LOST = (SSH_FAILED, 10, 12, 30, 35)  # rsync(1), EXIT VALUES: socket I/O, protocol stream, timeouts; and ssh's own


def stored(run: Run, host: HostTree, machine: Machine, options: SshOptions) -> list[ChannelSpec]:
    """The channels of a host that go this way: whole folders of this machine."""
    if not machine.facts.rsync or shutil.which("rsync") is None or ":" in machine.connection.address.destination:
        return []
    return [
        channel
        for channel in run.job.channels_of(host.name)
        if channel.name not in options.data and not channel.staged and os.path.isdir(channel.path)
    ]


def bring(machine: Machine, channel: ChannelSpec, there: str) -> None:
    """Has a folder there hold what a channel holds. Raises SshError."""
    source = os.path.realpath(channel.path)
    mine = f"{platform.node()}:{os.getuid()}:{source}"
    store = f"{machine.facts.folder}/data/{hashlib.sha256(mine.encode()).hexdigest()[:24]}"
    names = [name.partition("/")[2] for name, _ in below(source, ".", follow=True)]
    listed = "\0".join(filter(None, names)).encode("utf-8", "surrogateescape")
    machine.ask("store", store)
    if listed:
        for number in range(TRIES):
            try:
                _sync(machine, source, store, listed)
                break
            except MachineUnreachable:
                if number == TRIES - 1:
                    raise
                time.sleep(PAUSE)
    machine.ask("link", store, there, stdin=listed, seconds=None)


def _sync(machine: Machine, source: str, store: str, listed: bytes) -> None:
    connection = machine.connection
    ssh = connection.command("")[:-3]  # without `--`, the machine and a command, which rsync adds
    command = ["rsync", "--secluded-args", "--times", "--copy-links", "--force", "--chmod=D700,F400", "--files-from=-"]
    command += ["--from0", "--partial-dir=.trainshed-partial", f"--rsh={shlex.join(ssh)}"]
    command += [f"--rsync-path={machine.words('locked', f'{store}.lock', 'rsync')}"]
    command += [f"{source}/", f"{connection.address.destination}:{store}/"]
    done = subprocess.run(command, input=listed, capture_output=True, start_new_session=True)
    if done.returncode == 0 or done.returncode == 24:  # 24: a file here vanished meanwhile
        return
    errors = done.stderr.decode("utf-8", "replace")
    if done.returncode in _LOST:
        message, hint = in_words(connection.address, errors)
        raise MachineUnreachable(f"{machine.name}: {message}", hint=hint)
    said = next((line for line in errors.splitlines() if line.strip()), f"exit status {done.returncode}")
    raise SshError(f"{machine.name}: {said}", hint="the data of earlier runs is in " + os.path.dirname(store) + " there")
