"""What plans predict for the ways of three_d.py: one process times the model, and ranks say what they have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TIMEOUT_S = 900


def measuring_process() -> None:
    """One of the ranks that find out how much slower they are together and how fast they sum; the first one prints it."""
    import torch

    from trainshed.contract.wire.pipeline import PipelineSettings
    from trainshed.parallel.ground.grid import join
    from trainshed.parallel.resources import measure

    settings, device = PipelineSettings(), torch.device("cpu")
    joined = join(settings, device)
    how = measure(joined, settings, device)
    if joined.rank == 0:
        print(json.dumps({"seconds": [], "how": how.text()}), flush=True)


def considered(script: str, arguments: list[str], how: dict[str, Any], environment: dict[str, str]) -> list[dict[str, Any]]:
    """All ways that a plan looks at, each with what it predicts.

    Args:
        script, arguments: run up to their first step, whose forward and backward are timed.
        how: what `measuring_process` printed.

    Raises:
        SystemExit: no plan was made.
    """
    timed = {**how, "count": False, "slower": 1.0, "limit_mib": 0}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")
        command = [sys.executable, "-m", "trainshed.parallel.plan", script, *arguments]
        given = {
            **{"TRAINSHED_PLAN_ONLY": path, "TRAINSHED_PLAN_HOW": json.dumps(timed)},
            "TRAINSHED_PIPELINE": json.dumps({"degrees": "auto", "pipeline": "interleaved"}),
        }
        done = subprocess.run(command, env={**environment, **given}, capture_output=True, text=True, timeout=TIMEOUT_S)
        if done.returncode or not os.path.exists(path):
            raise SystemExit(f"no plan was made: {done.stderr[-2000:]}")
        found: list[dict[str, Any]] = json.loads(Path(path).read_text())["considered"]
    return found


def entry_of(settings: dict[str, Any], rows: int, ranks: int, ways: list[dict[str, Any]]) -> dict[str, Any]:
    """The entry of a job with these settings, and microbatches of one row; empty where nothing is predicted for it.

    Args:
        rows: of all replicas in a step.
    """
    stages, tensor = settings["partitions"], settings.get("tensor_parallel_degree", 1)
    replicas = ranks // stages // tensor
    wanted = {
        "stages": stages,
        "tensor": tensor,
        "replicas": replicas,
        "sharded": settings.get("sharded_data_parallel_degree", 1),
        "shard_optimizer_state": settings.get("shard_optimizer_state", False),
        "microbatches": rows // replicas,
    }
    return next((one for one in ways if "step_ms" in one and all(one[name] == value for name, value in wanted.items())), {})
