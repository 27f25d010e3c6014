"""What MLflow has, asked in a process of its own: its import is slow, and keeps threads."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

CODE = """\
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
def below(run, path):
    held = client.list_artifacts(run, path)
    return [file for one in held for file in (below(run, one.path) if one.is_dir else [one.path])]
found = []
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"]):
        own, data = run.info.run_id, run.data
        history = {name: [(m.step, m.value) for m in client.get_metric_history(own, name)] for name in data.metrics}
        files = [*below(own, "model"), *below(own, "media")] if "files" in sys.argv else []
        told = {"experiment": experiment.name, "status": run.info.status, "name": run.info.run_name, "id": own}
        found.append({**told, "params": data.params, "tags": data.tags, "history": history, "files": files})
print("FOUND" + json.dumps(found))
"""


def in_mlflow(address: str, *, files: bool = True) -> list[dict[str, Any]]:
    """Its runs, oldest first. files: also those of the artifacts `model` and `media`."""
    words = [address, *(["files"] if files else [])]
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE, *words], capture_output=True, text=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND")] or [done.stderr]
    return list(json.loads(line.removeprefix("FOUND")))
