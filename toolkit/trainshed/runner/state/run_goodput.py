"""The goodput of a run (`trainshed.observe.goodput`): as its runner noted it at the end, else from the run's files now."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from trainshed.base.files import leads_away, read_object
from trainshed.observe.goodput import told
from trainshed.observe.job_marks import HostFiles, job_ledger

from ..files.run import Run
from .outputs import attempts_of
from .records import in_shape
from .status import StatusFile
from .stored import LARGEST, Stored


def goodput_of(run: Stored) -> dict[str, Any] | None:
    """The goodput of a run, live ones included; None where nothing is known."""
    noted = run.ours.get("Goodput")
    if run.ended and isinstance(noted, dict):
        return noted
    return measured(run.folder, run.status, price_of(run.about.get("job")), time.time() if run.standing() else 0.0)


def measured(folder: str, status: Mapping[str, Any], price: float = 0.0, now: float = 0.0) -> dict[str, Any] | None:
    """The goodput by a run's files; None where they do not tell when it began.

    Args:
        status: what `status.json` holds.
        price: of a host's hour.
        now: seconds since 1970; 0 for a run that does not go on.
    """
    attempts = [[_host(folder, output, data) for output, data in hosts] for hosts in attempts_of(folder)]
    try:
        ledger = job_ledger(status, attempts, now)
    except (ArithmeticError, ValueError):  # numbers that nobody measured
        return None
    resources = status.get("ResourceConfig")
    hosts = resources.get("InstanceCount") if isinstance(resources, dict) else 0
    return None if ledger is None else told(ledger, price, hosts if type(hosts) is int else 0)


def note_goodput(status: StatusFile, run: Run) -> None:
    """Notes the goodput of a run that is about to end; costs that note at worst, never the run."""
    try:
        found = measured(run.folder, status.data, run.job.host_price, time.time())
    except Exception as error:  # of files that the hosts have written: how the run ended does not depend on them
        found = {"Problem": f"{type(error).__name__}: {error}"[:200]}
    if found is not None:
        status.data["Trainshed"]["Goodput"] = found


def price_of(job: object) -> float:
    """What a job says that an hour of a host costs, 0 where it says nothing."""
    price = job.get("host_price") if isinstance(job, dict) else None
    return float(price) if isinstance(price, (int, float)) and 0 < price < 1e9 else 0.0


def _host(folder: str, output: str, data: str) -> HostFiles:
    name = os.path.basename(os.path.dirname(output))
    path = f"{data}/run/{name}.json"
    record = {} if leads_away(folder, path) else in_shape(read_object(path, LARGEST, links=False))
    return HostFiles(name, output, record)
