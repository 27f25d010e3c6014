"""What the compiler gives: GPT-2 and a ResNet as jobs of `train`, without it and in each mode, cold and warm.

    python benchmarks/compiler.py                      # on a GPU: GPT-2 of 124M parameters and ResNet-50
    python benchmarks/compiler.py --modes default,regional --models gpt2 --json rows.jsonl
    python benchmarks/compiler.py --show rows.jsonl    # the table again

Each row is a job of its own: a plain training script (`compiler_jobs/train.py`) that knows nothing of the compiler, run by
`train`. Cold jobs begin with an empty cache. Warm ones are what a new container is: another TMPDIR, and of the cold job only
its checkpoint folder. The claim that is checked: a warm start costs at most a fifth of the CPU seconds of the cold one.

Without CUDA the models are smaller (`--shape small`), and the table is about mechanics: what is compiled, how long that
takes, what the cache saves. Speed on a CPU says nothing about a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _claims import claim

HERE = Path(__file__).resolve().parent
TOOLKIT = HERE.parent / "toolkit"
GOAL = 0.2
# Name in the table -> settings; regional and default are both torch.compile's default mode.
MODES: dict[str, dict[str, str]] = {
    "eager": {"trainshed_compiler": "off"},
    "default": {"trainshed_compiler": "inductor", "trainshed_compiler_regional": "off"},
    "regional": {"trainshed_compiler": "inductor", "trainshed_compiler_regional": "on"},
    **{
        mode: {"trainshed_compiler": "inductor", "trainshed_compiler_regional": "off", "trainshed_compiler_mode": mode}
        for mode in ("reduce-overhead", "max-autotune")
    },
}
COLUMNS = {
    "model": "model",
    "mode": "mode",
    "start": "cache",
    "batch": "batch",
    "first_cpu_s": "first compiled step, CPU s",
    "first_s": "wall s",
    "ms": "ms a step",
    "items_per_s": "items/s",
    "gain": "to eager",
    "peak_mib": "peak MiB",
    "largest": "largest batch",
    "graphs": "graphs",
    "breaks": "breaks",
    "hits": "cache hits",
    "misses": "misses",
    "loss": "last loss",
}


def job(folder: Path, mode: str, model: str, options: argparse.Namespace, checkpoints: Path) -> dict[str, Any]:
    """Runs one job and gives its row; a job that fails gives a row that says why."""
    code, tmp = folder / "code", folder / "tmp"
    for path in (code, tmp, folder / "input/config"):
        path.mkdir(parents=True)
    shutil.copy(HERE / "compiler_jobs/train.py", code / "train.py")
    checkpoints.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints").symlink_to(checkpoints)
    hyperparameters = {
        "sagemaker_program": "train.py",
        "model": model,
        "shape": options.shape,
        "batch": options.batch or "",
        "steps": options.steps,
        "precision": options.precision,
        "largest": int(options.largest),
        **MODES[mode],
    }
    (folder / "input/config/hyperparameters.json").write_text(
        json.dumps({name: str(value) for name, value in hyperparameters.items()})
    )
    environ = {
        **os.environ,
        "PYTHONPATH": str(TOOLKIT),
        "TMPDIR": str(tmp),
        "SAGEMAKER_BASE_DIR": str(folder),
        "TORCHINDUCTOR_COMPILE_THREADS": str(options.compile_threads),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "trainshed.container.main"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=options.timeout,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not over after {options.timeout} s"}
    told = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not told:
        return {"error": (done.stderr.strip().splitlines() or ["no result"])[-1][:200]}
    row = json.loads(told[-1])
    (record,) = (folder / "output/data/run").iterdir()
    report = json.loads(record.read_text()).get("compiler", {}).get("ranks", {}).get("0", {})
    if report:
        first = report["second_step"]  # the first one is eager
        row.update(first_s=first["seconds"], first_cpu_s=first["cpu_seconds"])
        row.update(graphs=report["graphs"], breaks=report["graph_breaks"])
        row.update(hits=report["fx_cache"]["hit"], misses=report["fx_cache"]["miss"])
        row.update(stepped_back=report.get("stepped_back", []))
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    used = [(key, title) for key, title in COLUMNS.items() if any(key in row for row in rows)]
    lines = ["| " + " | ".join(title for _, title in used) + " |", "|" + "---|" * len(used)]
    for row in rows:
        cells = [str(row.get(key, "")) for key, _ in used]
        if "error" in row:
            cells[-1] = row["error"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def with_gains(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds each row's throughput as a multiple of the same model's without the compiler."""
    base = {row["model"]: row["items_per_s"] for row in rows if row["mode"] == "eager" and "items_per_s" in row}
    return [
        {**row, "gain": f"{row['items_per_s'] / base[row['model']]:.2f}x"}
        if row["mode"] != "eager" and row.get("model") in base and "items_per_s" in row
        else row
        for row in rows
    ]


def claims(rows: list[dict[str, Any]]) -> bool:
    """Prints what a warm start costs beside the cold one of the same model and mode; whether all are within the goal."""
    cold = {(row["model"], row["mode"]): row for row in rows if row.get("start") == "cold" and "first_cpu_s" in row}
    good = True
    for row in rows:
        before = cold.get((row["model"], row["mode"]))
        if row.get("start") != "warm" or "first_cpu_s" not in row or before is None:
            continue
        what = f"compiler: warm start of {row['model']}, {row['mode']}"
        good &= claim(what, row["first_cpu_s"], "CPU s", times=GOAL, peer=before["first_cpu_s"], peer_name="cold")
    return good


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default="gpt2,resnet")
    parser.add_argument("--modes", help=f"of {', '.join(MODES)} (default: all on a GPU, the first three on a CPU)")
    parser.add_argument("--shape", choices=("full", "small"), help="default: full on a GPU, small on a CPU")
    parser.add_argument("--batch", type=int, help="default: the shape's own")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", choices=("fp32", "bf16"), help="default: bf16 on a GPU")
    parser.add_argument("--largest", action="store_true", help="find the largest batch too")
    parser.add_argument("--compile-threads", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=1200, help="seconds a job")
    parser.add_argument("--json", type=Path, help="add each row to this file as a line")
    parser.add_argument("--show", type=Path, help="only print the table of such a file")
    options = parser.parse_args()
    if options.show:
        rows = [json.loads(line) for line in options.show.read_text().splitlines()]
        print(table(with_gains(rows)))
        return 0 if claims(rows) else 1
    import torch

    cuda = torch.cuda.is_available()
    options.shape = options.shape or ("full" if cuda else "small")
    options.precision = options.precision or ("bf16" if cuda else "fp32")
    modes = options.modes.split(",") if options.modes else list(MODES)[: None if cuda else 3]
    device = torch.cuda.get_device_name(0) if cuda else f"{os.cpu_count()} CPUs"
    print(f"torch {torch.__version__}, {device}, shape {options.shape}, {options.precision}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="trainshed-benchmark-") as work:
        for model in options.models.split(","):
            for mode in modes:
                kept = Path(work, f"{model}-{mode}-checkpoints")
                for start in ("cold", "warm") if mode != "eager" else ("",):
                    row = {"model": model, "mode": mode, "start": start, "device": device, "torch": torch.__version__}
                    row.update(job(Path(work, f"{model}-{mode}-{start}"), mode, model, options, kept))
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    if options.json:
                        with options.json.open("a") as file:
                            file.write(json.dumps(row) + "\n")
    print(table(with_gains(rows)))
    return 0 if claims(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
