"""The truth on a GPU, in one command: real jobs of `train` on this machine, one JSON and one Markdown table.

    python3 benchmarks/gpu.py                    # on a machine with a GPU, in less than 9 minutes
    python3 benchmarks/gpu.py                    # again: goes on with the parts that are left
    python3 benchmarks/gpu.py --smoke            # the same code on CPUs, everything small, in a minute or two
    python3 benchmarks/gpu.py --parts faults stops --again

Needs torch >= 2.9, psutil and pyyaml; transformers and accelerate for the parts that name them. No network. Each part is
run once: results are kept in `--out` after each, and a part whose result is there is not run again (`--again` does). A part
that would not be over within `--minutes` is left for the next call.

The exit status is 1 if a goal was missed or a part failed, 3 if parts are left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpu_parts import checkpoints, compiling, faults, halves, programs, stages, stops, tuning, watching
from gpu_parts.kit import Machine, Row

ALL_MODES = "eager,default,reduce-overhead,max-autotune"


@dataclass(frozen=True)
class Part:
    """Some rows of the table.

    Attributes:
        title: its heading.
        rows: measures them.
        seconds: how long that may take on a GPU, as an H200 took; a guess for models that no GPU has run.
    """

    title: str
    rows: Callable[[Machine], list[Row]]
    seconds: int


PARTS = {
    "faults": Part("What failures say", faults.rows, 60),
    "stops": Part("Stops and hangs", stops.rows, 90),
    "checkpoint": Part("Checkpoints", checkpoints.rows, 110),
    "programs": Part("Ready programs in bfloat16", programs.rows, 60),
    "tuning": Part("fine_tune.py beside TRL", tuning.rows, 110),
    "watching": Part("Watching a job, and placing it", watching.rows, 110),
    "pipeline": Part("Pipeline", stages.rows, 100),
    "halves": Part("Half precision, and states on the CPU", halves.rows, 100),
    "gpt2": Part("torch.compile: GPT-2, 124M", partial(compiling.rows, model="gpt2", modes=ALL_MODES), 300),
    "resnet": Part("torch.compile: ResNet-50", partial(compiling.rows, model="resnet", modes=ALL_MODES), 300),
    "llama": Part("torch.compile: Llama-like, 350M", partial(compiling.rows, model="llama", modes=ALL_MODES), 400),
    "bert": Part("torch.compile: BERT-large", partial(compiling.rows, model="bert", modes=ALL_MODES), 400),
}
SMOKE_MODES = {"gpt2": "eager,default", "resnet": "eager", "llama": "eager", "bert": "eager"}


def hardware(gpus: int) -> dict[str, str]:
    """What the numbers belong to."""
    import torch

    found = {
        "GPU": ", ".join(torch.cuda.get_device_name(number) for number in range(gpus)) or "none",
        "CPUs": f"{os.cpu_count()}",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "kernel": platform.release(),
    }
    if gpus:
        found["CUDA"] = str(torch.version.cuda)
        found["GPU memory"] = f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB"
        found["driver"] = _driver()
        if torch.distributed.is_nccl_available():
            found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    for name in ("transformers", "triton"):
        try:
            found[name] = str(__import__(name).__version__)
        except ImportError:
            found[name] = "none"
    return found


def _driver() -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except OSError:
        return "unknown"
    return (done.stdout.strip().splitlines() or ["unknown"])[0]


def commit() -> str:
    """Of this checkout."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def number(value: float | str) -> str:
    """As people read it."""
    if isinstance(value, str):
        return value.replace("|", "\\|")
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(result: dict[str, Any]) -> str:
    """All parts as Markdown."""
    about = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    lines = [f"Commit {result['commit']}; {about}."]
    for name, kept in result["parts"].items():
        lines += ["", f"## {PARTS[name].title}", "", f"{kept['seconds']:.0f} s.", ""]
        if kept.get("error"):
            lines += ["**Failed:** " + kept["error"], ""]
        if not kept["rows"]:
            continue
        lines += ["| | | spread | goal | |", "|---|---|---|---|---|"]
        for row in kept["rows"]:
            spread = " to ".join(map(number, row["spread"])) if row["spread"] else ""
            goal = f"{row['goal']}: {'met' if row['met'] else '**not met**'}" if row["met"] is not None else row["goal"]
            value = f"{number(row['value'])} {row['unit']}".strip()
            lines.append(f"| {row['what']} | {value} | {spread} | {goal} | {number(row['note'])} |")
    return "\n".join(lines) + "\n"


def keep(result: dict[str, Any], folder: Path) -> None:
    """Writes both files."""
    for name, text in (("gpu.json", json.dumps(result, indent=1)), ("gpu.md", table(result))):
        new = folder / f".{name}"
        new.write_text(text)
        new.replace(folder / name)


def measure(part: Part, machine: Machine) -> dict[str, Any]:
    """One part; one that fails says why, and the others go on."""
    began = time.monotonic()
    error = ""
    rows: list[Row] = []
    try:
        rows = part.rows(machine)
    except Exception as problem:
        traceback.print_exc()
        error = f"{type(problem).__name__}: {problem}"[:500]
    return {"seconds": time.monotonic() - began, "rows": [asdict(row) for row in rows], "error": error}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="everything small, on CPUs")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--again", action="store_true", help="also parts whose results are there")
    parser.add_argument("--minutes", type=float, default=8.5, help="begin no part that might last longer (default: 8.5)")
    parser.add_argument("--out", type=Path, help="folder of gpu.json and gpu.md (default: build/gpu)")
    options = parser.parse_args()
    began = time.monotonic()
    import torch

    gpus = 0 if options.smoke else torch.cuda.device_count()
    if not gpus and not options.smoke:
        parser.error("torch sees no GPU here; --smoke runs the same jobs on CPUs")
    out = options.out or Path(__file__).resolve().parent.parent / "build" / ("gpu-smoke" if options.smoke else "gpu")
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"commit": commit(), "machine": hardware(gpus), "smoke": options.smoke, "parts": {}}
    kept = out / "gpu.json"
    if kept.exists():
        before = json.loads(kept.read_text())
        if (before["commit"], before["machine"]) == (result["commit"], result["machine"]):
            result["parts"] = before["parts"]
    left = []
    for name in options.parts:
        part = PARTS[name]
        if name in result["parts"] and not options.again:
            print(f"{name}: its result is in {kept}", flush=True)
            continue
        if options.smoke and name in SMOKE_MODES:
            part = Part(part.title, partial(compiling.rows, model=name, modes=SMOKE_MODES[name]), part.seconds)
        elif not options.smoke and time.monotonic() - began + part.seconds > 60 * options.minutes:
            left.append(name)
            continue
        print(f"{name} ...", flush=True)
        work = Path(tempfile.mkdtemp(prefix="trainshed-gpu-"))
        try:
            result["parts"][name] = measure(part, Machine(gpus, options.smoke, work))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        keep(result, out)
        print(f"{name}: {result['parts'][name]['seconds']:.0f} s", flush=True)
    print(f"\n{table(result)}\nin {out / 'gpu.md'} and {kept.name}")
    parts = [result["parts"][name] for name in options.parts if name in result["parts"]]
    missed = sum(row["met"] is False for part in parts for row in part["rows"])
    failed = sum(bool(part["error"]) for part in parts)
    if missed or failed:
        print(f"{missed} goals were not met, {failed} parts failed")
    if left:
        print(f"left for the next call: {', '.join(left)}")
    return 1 if missed or failed else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
