"""One host of a job whose hosts come and go: what it agreed on with the others, and what it said."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainshed.checkpoint import Checkpointer
from trainshed.parallel import data
from trainshed.parallel.data.host_lines import Line, Stages
from trainshed.parallel.data.members import Members
from trainshed.parallel.data.rendezvous import Meeting


def host(job: str, name: str, place: str, how: str, begin: int, last: int) -> dict[str, Any]:
    """Trains to step `last`; `how` says what becomes of it in its second exchange, after step 8, or before that.

    "awaits NAME": after step 11 it writes the file `JOB/NAME.at11`, and waits until that host has come.
    """
    return _trained(job, name, place, how, begin, last, keeps=False)


def kept(job: str, name: str, place: str, how: str, begin: int, last: int) -> dict[str, Any]:
    """The same with a checkpoint after each step, from which it goes on if there is one.

    "keeps, killed at 10": it is killed there. "keeps, waits at 6": until the file `JOB/go` is there. "keeps, ends PID": it
    kills that process in its second exchange; "keeps, ends PID late": when it has written that this exchange counts.
    """
    return _trained(job, name, place, how, begin, last, keeps=True)


def _trained(job: str, name: str, place: str, how: str, begin: int, last: int, keeps: bool) -> dict[str, Any]:
    torch.manual_seed(ord(name))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1 if how != "other" else 2))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    agreed, began, said, error = {}, 0, io.StringIO(), ""
    few = how == "few" or how == "leaves few"
    members = data.Members(
        place, name=name, job=job, begin=begin, least=1 + few, lost_after=2.5, timeout=5 if how == "few" else 120
    )
    local = data.LocalSteps(model, optimizer, every=4, bits=4, outer_momentum=0.6, members=members)
    _break(how)
    folder = f"{job}/{name}.checkpoints" if keeps else None
    try:
        with (
            redirect_stderr(said),
            Checkpointer(folder, model=local.outer, extra={"local": local}, every_steps=1000) as checkpoints,
        ):
            checkpoints.restore()
            if how != "no join":
                local.join()
            began = local.steps
            while local.steps < last:
                if "leaves" in how and local.steps == 4:
                    members.leave()
                    break
                if "awaits" in how and local.steps == 11:
                    Path(job, f"{name}.at11").touch()
                    _until(lambda: f'"name": "{how.split()[-1]}"' in (members._read(f"{members._number + 1}/here") or ""))
                if "waits at 6" in how and local.steps == 6:
                    Path(job, f"{name}.at6").touch()
                    _until(Path(job, "go").exists)
                if "killed at 10" in how and local.steps == 10:
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "nan" and local.steps == 6:
                    with torch.no_grad():
                        next(model.parameters())[0, 0] = float("nan")
                x = torch.randn(16, 6, generator=torch.Generator().manual_seed(1000 * local.steps + ord(name)))
                optimizer.zero_grad()
                (model(x) - x[:, :1]).pow(2).mean().backward()
                optimizer.step()
                if local.steps % 4 == 0:
                    agreed[local.steps] = [one.clone() for one in local.outer.state_dict().values()]
                if keeps:
                    checkpoints.save(local.steps)
            else:
                local.finish()
    except RuntimeError as failed:
        error = f"{type(failed).__name__}: {failed}"
    return {"agreed": agreed, "began": began, "said": said.getvalue(), "error": error}


def _break(how: str) -> None:
    """Has happen what `how` says of the second exchange."""
    sums, plain, decide = 0, Line.gathered, Members._decide
    me = os.getpid()
    whom, what = {
        "killed": (me, signal.SIGKILL), "stopped": (me, signal.SIGSTOP),
        "killed after": (me, signal.SIGKILL), "stopped after": (me, signal.SIGSTOP),
    }.get(how, (int(how.split()[2]) if "ends" in how else 0, signal.SIGKILL))  # fmt: skip

    def gathered(self: Line, told: torch.Tensor) -> Stages[list[torch.Tensor]]:
        nonlocal sums
        sums += told.dtype == torch.uint8
        second = told.dtype == torch.uint8 and sums == 2 and whom != 0 and not how.endswith("late")
        if second and not how.endswith("after"):
            os.kill(whom, what)
        lines = yield from plain(self, told)
        if second and how.endswith("after"):
            os.kill(whom, what)
        return lines

    def decided(self: Members, meeting: Meeting, go: bool) -> None:
        decide(self, meeting, go)
        if how.endswith("late") and sums == 2 and go:
            os.kill(whom, what)

    Line.gathered = gathered  # type: ignore[method-assign]
    Members._decide = decided  # type: ignore[method-assign]


def _until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not there():
        assert time.monotonic() < deadline, "nobody comes"
        time.sleep(0.02)


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
