"""fine_tune.py in bfloat16 beside TRL: the same model, data and settings."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from .kit import ENTRYPOINTS, JOBS, TOOLKIT, JobError, Machine, Row, run, skipped, succeeded

APART = 0.05  # of the mean of the last ten losses
SLOWER = 0.9  # examples a second, ours / TRL's


def rows(machine: Machine) -> list[Row]:
    """All weights, then an adapter."""
    missing = [name for name in ("transformers", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        return [skipped("fine_tune", f"without {', '.join(missing)}")]
    folder = machine.work / "tuning"
    folder.mkdir()
    width, layers, characters = machine.pick(("1024", "12", "1600"), ("64", "2", "200"))
    _script(machine, folder, "--make", "--width", width, "--layers", layers, "--characters", characters)
    found = []
    for method, needs, rate in (("full", (), 1e-4), ("lora", ("peft",), 1e-3)):
        if any(importlib.util.find_spec(name) is None for name in needs):
            found.append(skipped(f"fine_tune, {method}", f"without {', '.join(needs)}"))
            continue
        found += _method(machine, folder, method, rate)
    return found


def _method(machine: Machine, folder: Path, method: str, rate: float) -> list[Row]:
    shared = {
        "max_steps": machine.pick(40, 3), "batch_size": machine.pick(16, 2), "max_length": machine.pick(512, 64),
        "learning_rate": rate, "method": method,
    }  # fmt: skip
    own = {"bf16": str(machine.gpus > 0).lower(), "lora_dropout": 0, "warmup_ratio": 0, "log_interval": 1}
    done = succeeded(
        run(
            machine, f"tuning-{method}", ENTRYPOINTS / "fine_tune.py", {**shared, **own},
            channels={name: folder / name for name in ("train", "validation", "model")},
        )
    )  # fmt: skip
    losses = [float(loss) for loss in re.findall(r"train_loss=(\S+)", done.output)]
    metrics = json.loads((done.folder / "output/data/metrics.json").read_text())
    ours = metrics.get("metrics", metrics)
    note = f"first {losses[0]:.4f}, last ten {statistics.mean(losses[-10:]):.4f}"
    found = [Row(f"fine_tune, {method}", ours["examples_per_second"], "examples/s", note=note)]
    if any(importlib.util.find_spec(name) is None for name in ("trl", "datasets", "peft")):
        return [*found, skipped(f"TRL, {method}", "without trl, datasets, peft")]
    peer = _script(machine, folder, *(part for name, value in shared.items() for part in (f"--{name}", str(value))))
    theirs = statistics.mean(peer["losses"][-10:])
    apart = abs(statistics.mean(losses[-10:]) - theirs) / theirs
    ratio = ours["examples_per_second"] / peer["rate"]
    note = f"first {peer['losses'][0]:.4f}, last ten {theirs:.4f}, peak {peer['peak_mib']:.0f} MiB"
    return [
        *found,
        Row(f"TRL, {method}", peer["rate"], "examples/s", note=note),
        machine.judged(f"{method}: speed beside TRL", ratio, "x", f"at least {SLOWER}", ratio >= SLOWER),
        machine.judged(f"{method}: last ten losses, apart", apart, "", f"at most {APART}", apart <= APART, "of TRL's"),
    ]


def _script(machine: Machine, folder: Path, *arguments: str) -> dict[str, Any]:
    path = os.pathsep.join(filter(None, (str(TOOLKIT), str(ENTRYPOINTS), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(machine.work / "datasets")}
    if not machine.gpus:
        environ["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, str(JOBS / "tuning_peer.py"), str(folder), *arguments]
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise JobError(f"{' '.join(command[1:])}: {done.stderr.strip()[-600:]}")
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return dict(json.loads(told[-1].removeprefix("RESULT "))) if told else {}
