"""A real torch_xla (2.9.0, PJRT on the CPU) under the `pytorchxla` contract; `.ci/xla` makes its environment."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from jobs.compiler.jobs import Job, run
from support.paths import ENTRYPOINTS
from trainshed.contract.choices import DISTRIBUTION_FLAGS

PYTHON = f"{os.environ.get('TRAINSHED_TEST_XLA', '')}/bin/python"
pytestmark = [
    pytest.mark.skipif(not os.path.exists(PYTHON), reason="TRAINSHED_TEST_XLA names no environment"),
    pytest.mark.matrix,
]

CONTRACT = {"sagemaker_training_compiler_enabled": "true", "sagemaker_pytorch_xla_multi_worker_enabled": "true"}
MODEL = {
    **{"max_steps": 20, "batch_size": 4, "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16},
    **{"log_interval": 1, "validation_fraction": 0, "demo_data": "topics", "lr_schedule": "constant"},
}


def language_model(folder: Path, **asked: object) -> Job:
    env = {"TRAINSHED_ENTRYPOINTS": str(ENTRYPOINTS)}
    return run(folder, "", folder / "tmp", env=env, python=PYTHON, program="language_model.py", **MODEL, **asked)


def losses(job: Job) -> list[float]:
    return [float(text) for text in re.findall(r"metric train_loss=(\S+)", job.output)]


@pytest.mark.exact
def test_the_ready_language_model_trains_on_xla_as_it_does_without(tmp_path: Path) -> None:
    eager = language_model(tmp_path / "eager")
    xla = language_model(tmp_path / "xla", **CONTRACT)

    assert (eager.status, xla.status) == (0, 0), eager.output + xla.output
    assert "1 rank on cpu" in eager.output  # torch_xla is installed there too, and nobody asked for it
    assert "1 rank on xla" in xla.output and "Found configuration for Training Compiler" in xla.output
    assert len(losses(eager)) == 20 and losses(xla) == pytest.approx(losses(eager), rel=1e-5, abs=1e-5)
    assert (xla.folder / "model/model.safetensors").exists()
    assert xla.record["compiler"]["choice"].startswith("xla: ")
    assert xla.report()["compiles"] > 0 and xla.record["plan"]["launcher"] == "xla"


def test_two_processes_are_refused_with_the_reason(tmp_path: Path) -> None:
    job = language_model(tmp_path, **CONTRACT, trainshed_processes_per_host=2)

    assert job.status == 1
    assert "cannot train with 2 processes: they cannot communicate" in job.output and "metric" not in job.output
    assert "they cannot communicate" in (job.folder / "output/failure").read_text()
    assert dict(DISTRIBUTION_FLAGS)["sagemaker_pytorch_xla_multi_worker_enabled"] == "xla"


SCRIPT = """
import json, sys
import torch, torch_xla

def _mp_fn(index):
    torch.manual_seed(0)
    device = torch_xla.device()
    model = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for step in range(3):
        loss = model(torch.ones(3, 4, device=device)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
    print("RESULT " + json.dumps([index, device.type, loss.item(), sys.argv[1:]]), flush=True)

if __name__ == "__main__":
    raise SystemExit("the contract calls _mp_fn")
"""


def test_mp_fn_is_called_and_a_fused_optimizer_is_mended_and_announced(tmp_path: Path) -> None:
    job = run(tmp_path, SCRIPT, tmp_path / "tmp", python=PYTHON, lr="0.5", **CONTRACT)

    assert job.status == 0, job.output
    (line,) = [line for line in job.output.splitlines() if line.startswith("RESULT ")]
    index, device, loss, arguments = json.loads(line.removeprefix("RESULT "))
    assert (index, device, arguments) == (0, "xla", ["--lr", "0.5"]) and loss > 0
    assert "XLA has no fused AdamW: the plain one takes its place" in job.output
