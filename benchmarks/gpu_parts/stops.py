"""Ends: a stop signal, a notice in the middle of CUDA graphs, a kernel that never ends."""

from __future__ import annotations

import signal
import time

from .kit import JOBS, Machine, Row, measured, run, started, succeeded

HANG_S = 20


def rows(machine: Machine) -> list[Row]:
    """All three."""
    return [*_plain_stop(machine), *_notice(machine), *_endless(machine)]


def _plain_stop(machine: Machine) -> list[Row]:
    seconds = []
    for number in range(machine.pick(3, 1)):
        with started(machine, f"stop-{number}", JOBS / "busy.py", {"seconds": 600}) as running:
            running.wait_for("busy")
            time.sleep(1)
            sent = running.signal(signal.SIGTERM)
            done = running.finish(60)
        seconds.append(running.began + done.seconds - sent)
    goal = 2.0
    return [measured("SIGTERM to the end of train", seconds, "s", goal=f"at most {goal:g}", met=max(seconds) <= goal)]


def _notice(machine: Machine) -> list[Row]:
    """Interrupted, resumed, and once without an interruption: the losses must be the same."""
    width = {"width": machine.pick(4096, 64)}
    kept = machine.work / "notice-checkpoints"
    with started(machine, "notice", JOBS / "steps.py", width, checkpoints=kept) as running:
        running.wait_for("stepping")
        sent = running.signal(signal.SIGTERM)
        stopped = succeeded(running.finish(120))
    ended = running.began + stopped.seconds - sent
    at = stopped.result["done"]
    resumed = succeeded(run(machine, "resumed", JOBS / "steps.py", {**width, "steps": at + 20}, checkpoints=kept))
    straight = succeeded(
        run(machine, "straight", JOBS / "steps.py", {**width, "steps": 30}, checkpoints=machine.work / "none")
    )
    early = [stopped.result["losses"][step] == straight.result["losses"][step] for step in map(str, range(1, 21))]
    going_on = resumed.result["first"] == at and resumed.result["done"] == at + 20
    return [
        Row("notice in the middle of steps: to the end, with a checkpoint", ended, "s", note=f"after step {at}"),
        Row("goes on from that step", str(going_on), goal="True", met=going_on),
        Row("the first 20 losses are those of a job without a notice", str(all(early)), goal="True", met=all(early)),
    ]


def _endless(machine: Machine) -> list[Row]:
    settings = {"kind": "endless_kernel", "trainshed_hang_seconds": HANG_S, "trainshed_on_hang": "stop"}
    if not machine.gpus:
        settings["trainshed_hang_seconds"] = machine.pick(HANG_S, 4)
    done = run(machine, "endless", JOBS / "fault.py", settings, seconds=120)
    met = done.status == 124 and "fault.py" in done.failure
    waited = float(str(settings["trainshed_hang_seconds"]))
    return [
        Row("a kernel that never ends", done.said(), goal="status 124, names the line", met=met),
        Row("from its hang_seconds to the end of train", done.seconds - waited, "s", note=f"hang_seconds = {waited:g}"),
    ]
