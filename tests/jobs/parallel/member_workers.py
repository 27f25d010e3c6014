"""One host of a job whose hosts come and go: what it agreed on with the others, and what it said."""

from __future__ import annotations

import io
import os
import signal
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainshed.parallel import data
from trainshed.parallel.data.host_lines import Line, Stages


def host(job: str, name: str, place: str, how: str, begin: int, last: int) -> dict[str, Any]:
    """Trains to step `last`; `how` says what becomes of it in its second exchange, after step 8, or before that.

    "awaits NAME": after step 11 it writes the file `JOB/NAME.at11`, and waits until that host has come.
    """
    torch.manual_seed(ord(name))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1 if how != "other" else 2))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    sums, agreed, said, error = 0, {}, io.StringIO(), ""
    few = how == "few" or how == "leaves few"
    members = data.Members(
        place, name=name, job=job, begin=begin, least=1 + few, lost_after=2.5, timeout=5 if how == "few" else 120
    )
    local = data.LocalSteps(model, optimizer, every=4, bits=4, outer_momentum=0.6, members=members)
    plain = Line.gathered

    def gathered(self: Line, told: torch.Tensor) -> Stages[list[torch.Tensor]]:
        nonlocal sums
        sums += told.dtype == torch.uint8
        if told.dtype == torch.uint8 and sums == 2 and how in ("killed", "stopped"):
            os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        lines = yield from plain(self, told)
        if told.dtype == torch.uint8 and sums == 2 and how in ("killed after", "stopped after"):
            os.kill(os.getpid(), signal.SIGKILL if how == "killed after" else signal.SIGSTOP)
        return lines

    Line.gathered = gathered  # type: ignore[method-assign]
    try:
        with redirect_stderr(said):
            if how != "no join":
                local.join()
            while local.steps < last:
                if "leaves" in how and local.steps == 4:
                    members.leave()
                    break
                if "awaits" in how and local.steps == 11:
                    Path(job, f"{name}.at11").touch()
                    _await(members, how.split()[-1])
                if how == "nan" and local.steps == 6:
                    with torch.no_grad():
                        next(model.parameters())[0, 0] = float("nan")
                x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1000 * local.steps + ord(name)))
                optimizer.zero_grad()
                (model(x) - x[:, :1]).pow(2).mean().backward()
                optimizer.step()
                if local.steps % 4 == 0:
                    agreed[local.steps] = [one.clone() for one in local.outer.state_dict().values()]
            else:
                local.finish()
    except RuntimeError as failed:
        error = f"{type(failed).__name__}: {failed}"
    return {"agreed": agreed, "said": said.getvalue(), "error": error}


def _await(members: Any, name: str) -> None:
    """Until this host has come to the next exchange."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if f'"name": "{name}"' in (members._read(f"{members._number + 1}/here") or ""):
            return
        time.sleep(0.02)
    raise RuntimeError("nobody comes")


def refused(place: str) -> list[str]:
    """What cannot be had with hosts that come and go, on two ranks of one job."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    members = data.Members(place, job="refused")
    said = []
    for options in ({"fragments": 2}, {"overlap": 1}, {"hosts": [0, 1]}, {}):
        model = nn.Linear(2, 2)
        try:
            data.LocalSteps(model, torch.optim.SGD(model.parameters()), members=members, **options)  # type: ignore[arg-type]
        except ValueError as error:
            said.append(str(error))
    members.leave()
    return said
