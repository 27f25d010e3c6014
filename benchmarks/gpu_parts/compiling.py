"""torch.compile through a setting: speed, memory, and what a warm start costs; one model a part."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from .kit import HERE, Machine, Row, skipped

FASTER = {"gpt2": 1.5}  # goals for the best mode
WARM = 0.2  # of the cold start's CPU seconds


def rows(machine: Machine, model: str, modes: str) -> list[Row]:
    """What `benchmarks/compiler.py` measures for one model."""
    log = machine.work / f"{model}.jsonl"
    command = [
        sys.executable, str(HERE / "compiler.py"), "--models", model, "--modes", modes, "--json", str(log),
        "--shape", machine.pick("full", "small"), "--precision", machine.pick("bf16", "fp32"),
        "--steps", str(machine.pick(20, 2)), "--compile-threads", str(min(16, os.cpu_count() or 1)),
    ]  # fmt: skip
    if not machine.smoke and model == "gpt2":
        command.append("--largest")
    environ = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ""} if not machine.gpus else {})}
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if not found:
        return [skipped(model, (done.stderr.strip().splitlines() or ["nothing was said"])[-1][:300])]
    return [*_speeds(machine, model, found), *_warm(machine, model, found)]


def _speeds(machine: Machine, model: str, found: list[dict[str, object]]) -> list[Row]:
    rows = []
    speeds = {}
    for one in found:
        name = f"{model}, {one['mode']}{' ' + str(one['start']) if one['start'] else ''}"
        if "error" in one:
            rows.append(Row(name, "failed", goal="runs", met=False, note=str(one["error"])))
            continue
        speeds[name] = float(str(one["items_per_s"]))
        note = f"{one['ms']} ms a step of {one['batch']}, peak {one['peak_mib']} MiB, loss {one['loss']}"
        if "largest" in one:
            note += f", largest batch {one['largest']}"
        if "first_s" in one:
            note += f", first compiled step {float(str(one['first_s'])):.1f} s"
        rows.append(Row(name, speeds[name], "items/s", note=note))
    plain = speeds.pop(f"{model}, eager", 0.0)
    if plain and speeds:
        best = max(speeds.values()) / plain
        goal = FASTER.get(model) if not machine.smoke else None
        said = f"at least {goal}" if goal else ""
        rows.append(Row(f"{model}: the best beside eager", best, "x", goal=said, met=best >= goal if goal else None))
    return rows


def _warm(machine: Machine, model: str, found: list[dict[str, object]]) -> list[Row]:
    cost = {(one["mode"], one["start"]): float(str(one["first_cpu_s"])) for one in found if "first_cpu_s" in one}
    rows = []
    for (mode, start), seconds in cost.items():
        cold = cost.get((mode, "cold"))
        if start == "warm" and cold:
            share = seconds / cold
            what = f"{model}, {mode}: warm start / cold start, CPU"
            rows.append(Row(what, share, "x", goal=f"at most {WARM}", met=share <= WARM))
    return rows
