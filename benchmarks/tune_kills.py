"""Tunes the ready programs for real: 30 trials of a grid, two beside each other, killed twice; beside the same, left alone.

    python benchmarks/tune_kills.py                     # digits, then the language model: about 20 minutes on two cores
    python benchmarks/tune_kills.py --only digits

`kill -9` hits the tuner after its 8th trial, which is then started again, and the runner of a trial after the 16th. Printed:
the trials of each job, their runs, and the best; the best of both must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {
    "digits": """
job:
  program: PROGRAMS/image_classification.py
  hyperparameters: {demo_data: digits, epochs: 1, device: cpu}
  retries: 2
search:
  learning_rate: [0.0003, 0.001, 0.003, 0.01, 0.03]
  width: [8, 16]
  augment: [none, shift, flip]
objective: maximize validation_accuracy
""",
    "language-model": """
job:
  program: PROGRAMS/language_model.py
  hyperparameters: {demo_data: topics, max_steps: 20, device: cpu, n_layer: 1}
  retries: 2
search:
  learning_rate: [0.0003, 0.001, 0.003, 0.01, 0.03]
  n_embd: [32, 64]
  lr_schedule: [cosine, linear, constant]
objective: minimize validation_loss
""",
}
LIMITS = "strategy: grid\nmax_parallel_jobs: 2\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(PROGRAMS))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainshed-tune-") as made:
        for name in (asked.only,) if asked.only else PROGRAMS:
            alone, killed = tuned(Path(made), name, ()), tuned(Path(made), f"{name}-killed", (8, 16))
            for what, found in (("left alone", alone), ("killed", killed)):
                best = f"{found['best']['FinalHyperParameterTuningJobObjectiveMetric']['Value']:.6g}"
                print(
                    f"{name}, {what}: {found['counts']}, {found['runs']} runs, best {best} of {found['values']}", flush=True
                )
            if (alone["values"], alone["counts"]) != (killed["values"], killed["counts"]) or killed["runs"] != 30:
                sys.exit(f"{name}: what was killed is not what was left alone")


def tuned(folder: Path, name: str, kills: tuple[int, ...]) -> dict[str, Any]:
    """What a tuning job says of itself at its end."""
    (folder / f"{name}.yaml").write_text(
        f"name: {name}{PROGRAMS[name.removesuffix('-killed')].replace('PROGRAMS', str(ROOT / 'entrypoints'))}{LIMITS}"
    )
    tuner, left = start(folder, name), list(kills)
    while tuner.poll() is None or left:
        time.sleep(0.1)
        if left and len(over(folder, name)) >= left[0]:
            if left.pop(0) == kills[0]:
                tuner.kill()
                tuner.wait()
                tuner = start(folder, name)
            else:
                kill_a_trial(folder, name)
    if tuner.returncode:
        sys.exit(f"{name}: the tuner ended with {tuner.returncode}: {(folder / f'{name}.log').read_text()[-2000:]}")
    said = subprocess.run(
        command("status", f"tunes/{name}", "--json"), cwd=folder, env=variables(), capture_output=True, check=True
    )
    status = json.loads(said.stdout)
    best = status["BestTrainingJob"]
    return {
        "best": best,
        "values": best["TunedHyperParameters"],
        "counts": status["TrainingJobStatusCounters"],
        "runs": len(list((folder / "tunes" / name / "trials").glob("*/status.json"))),
    }


def over(folder: Path, name: str) -> list[Path]:
    """The trials that have an objective."""
    return [path for path in (folder / "tunes" / name / "trials").glob("*.json") if '"Completed"' in path.read_text()]


def kill_a_trial(folder: Path, name: str) -> None:
    """kill -9 of the runner of a running trial."""
    while True:
        for path in (folder / "tunes" / name / "trials").glob("*/status.json"):
            told = json.loads(path.read_text())
            if told["TrainingJobStatus"] == "InProgress":
                os.kill(told["Trainshed"]["Runner"]["Pid"], signal.SIGKILL)
                return
        time.sleep(0.05)


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    """A tuner."""
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command(f"{name}.yaml"), cwd=folder, env=variables(), stdout=log, stderr=log)


def command(*words: str) -> list[str]:
    """A command line of `trainshed tune`."""
    return [sys.executable, "-m", "trainshed", "tune", *words]


def variables() -> dict[str, str]:
    """The environment, with this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "toolkit")}


if __name__ == "__main__":
    main()
