"""Runs a plan with the real supervisor in a process of its own, which becomes the parent of every orphan below it.

    python drive.py PLAN.json RESULT.json

PLAN.json: the fields of a LaunchPlan; `settles`, the seconds until the others are stopped once one has failed; `gate`,
files that have to be there before the loop has its first turn. RESULT.json: what came of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from trainshed.container.supervisor import loop, output, stopping
from trainshed.container.supervisor.launch_plan import LaunchPlan, ProcessSpec, StartError


def main() -> None:
    with open(sys.argv[1]) as file:
        fields = json.load(file)
    stopping.FAILURE_SETTLES = fields.pop("settles", stopping.FAILURE_SETTLES)
    stopping.FAILURE_GRACE = output.CONSOLE_GRACE = 300.0  # on a machine that stalls for a while nobody is given up
    gate = fields.pop("gate", [])
    processes = tuple(ProcessSpec(**{**spec, "argv": tuple(spec["argv"])}) for spec in fields.pop("processes"))
    said: list[str] = []
    started: list[int] = []
    before = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
    files = sorted(os.listdir("/proc/self/fd"))
    result: dict[str, object] = {}

    def begin() -> None:
        started.append(1)
        while not all(map(os.path.exists, gate)):
            time.sleep(0.01)

    try:
        outcome = loop.run(LaunchPlan(processes=processes, **fields), say=said.append, started=begin)
        result = {
            "returncodes": [one.returncode for one in outcome.results],
            "stopped": [one.stopped for one in outcome.results],
            "tails": [one.tail.decode("utf-8", "replace") for one in outcome.results],
            "traceback": [one.traceback_at is not None for one in outcome.results],
            "stop_signal": outcome.stop_signal,
            "killed": outcome.killed,
            "left_behind": outcome.left_behind,
            "timed_out": outcome.timed_out,
            "log_problem": outcome.log_problem,
        }
    except StartError as error:
        result = {"start_error": error.stage}
    result |= {
        "said": said,
        "started": len(started),
        "handlers_restored": before == [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "files_closed": files == sorted(os.listdir("/proc/self/fd")),
    }
    with open(sys.argv[2], "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
