"""Reads what a job says of machines that one can ssh to: its field `ssh`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from trainshed.contract.config import CHANNEL_NAME
from trainshed.runner.job.job import Job
from trainshed.runner.job.places import SSH, refused

from ..target import PlaceFields

FOLDER = "~/.trainshed"
TOOLKITS = ("auto", "there", "send")
ENGINES = ("docker", "podman")
PATIENCE = 1800.0  # seconds


@dataclass(frozen=True)
class SshOptions:
    """How a job uses its machines.

    python: interpreter there, "" for that of the `train` on the PATH, else python3.
    folder: of all runs there; `~` is the user's home there.
    toolkit: whose trainshed runs there: `there` (what the interpreter has), `send` (ours), or auto: what it has if it is
        of our version, else ours.
    config: a configuration file for ssh instead of the user's, "" for that.
    addresses: by which the machines reach each other, one for each; () to find out.
    data: folders that are there already, by channel; nothing is sent of these.
    patience: seconds that a machine may be out of reach before it counts as lost.
    engine: what runs the job's image there.
    """

    python: str = ""
    folder: str = FOLDER
    toolkit: str = "auto"
    config: str = ""
    addresses: tuple[str, ...] = ()
    data: dict[str, str] = field(default_factory=dict)
    patience: float = PATIENCE
    engine: str = ""


def read_options(job: Job) -> SshOptions:
    """Reads what the job's `ssh` says, checked. Raises JobError with everything that is wrong."""
    place = PlaceFields(job, SSH, SSH.known)
    if not job.machines:
        place.problem("job.hosts", "is missing: which machines?", "hosts: [user@machine], or --hosts user@a,user@b")
    options = SshOptions(
        python=place.get("python", str, ""),
        folder=str(place.get("folder", str, FOLDER)).rstrip("/"),
        toolkit=place.get("toolkit", str, "auto"),
        config=os.path.expanduser(place.get("config", str, "")),
        addresses=tuple(str(one) for one in place.get("addresses", list, [])),
        data={name: str(path).removeprefix("file://") for name, path in place.get("data", dict, {}).items()},
        patience=_seconds(place),
        engine=place.get("engine", str, ""),
    )
    if not options.folder.startswith(("/", "~/")) or "\n" in options.folder or options.folder == "~":
        place.problem("folder", "must be an absolute path there, or begin with ~/")
    if options.toolkit not in TOOLKITS:
        place.problem("toolkit", f"must be one of {', '.join(TOOLKITS)}")
    if options.engine and options.engine not in ENGINES:
        place.problem("engine", f"must be one of {', '.join(ENGINES)}")
    if options.config and not os.path.isfile(options.config):
        place.problem("config", f"there is no {options.config}")
    if options.addresses and len(options.addresses) != len(job.machines):
        place.problem("addresses", f"are {len(options.addresses)}, and the job has {len(job.machines)} hosts")
    for name, path in options.data.items():
        if not re.fullmatch(CHANNEL_NAME, name):
            place.problem(f"data.{name}", "is not a valid channel name")
        if not path.startswith("/") or "\n" in path:
            place.problem(f"data.{name}", "must be an absolute path on the hosts")
    place.problems += refused(SSH, job, apart=options.data)
    place.done()
    return options


def _seconds(place: PlaceFields) -> float:
    value = place.values.get("patience", PATIENCE)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 86_400 * 28:
        place.problem("patience", "must be seconds, from 1")
        return PATIENCE
    return float(value)
