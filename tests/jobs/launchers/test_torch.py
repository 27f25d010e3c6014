"""Ranks for real: what torchrun sets, what torch, Accelerate and torch's own agent make of our ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

# What torchrun sets and we do not, and why.
NOT_OURS = {
    "TORCHELASTIC_USE_AGENT_STORE": "rank 0 would expect torchrun's agent to serve the store; ours serves it itself",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "for torchrun's agent alone, which passes its own configuration on",
}
# One write a rank: torchrun's ranks share a pipe, and `print` without a buffer writes text and line end apart.
SHOW = "import json, os\nos.write(1, ('ENV' + json.dumps(dict(os.environ)) + '\\n').encode())\n"
TWO_RANKS = {"trainshed_distribution": "torchrun", "trainshed_processes_per_host": "2", "sagemaker_program": "train.py"}


def shown(output: str) -> list[dict[str, str]]:
    """The environments that ranks printed."""
    return [json.loads(line[line.index("ENV") + 3 :]) for line in output.splitlines() if "ENV{" in line]


def test_every_variable_that_torchrun_sets_is_set_by_us_and_says_the_same(job_tree: Any, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    torchrun = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(tmp_path / "show.py")],
        env=base,
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = sorted(shown(torchrun.stdout), key=lambda env: env["RANK"])
    job_tree.code("train.py", SHOW)
    job_tree.configure(hyperparameters=TWO_RANKS)
    done = job_tree.train()
    ours = sorted(shown(done.stdout), key=lambda env: env["RANK"])

    assert len(theirs) == len(ours) == 2, done.output
    for their, our in zip(theirs, ours, strict=True):
        names = {name for name in their if base.get(name) != their[name]} - {"LC_CTYPE"}
        assert names - our.keys() == NOT_OURS.keys()
        same = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        same += ("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
        same += ("TORCH_NCCL_ASYNC_ERROR_HANDLING",)
        assert {name: our[name] for name in same} == {name: their[name] for name in same}
        assert (
            set(same)
            | NOT_OURS.keys()
            | {"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"}
            | {
                "TORCHELASTIC_RUN_ID",
                "TORCHELASTIC_ERROR_FILE",
            }
            >= names
        ), "a variable of torchrun's that this test does not know"


ALL_REDUCE = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
# At once: under torchrun's agent the ranks share a pipe.
sys.stdout.write(f"SUM {int(value)} of {dist.get_world_size()} {sys.argv[1:]}\\n")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("engine", [pytest.param("trainshed", marks=pytest.mark.spine), "torchrun"])
def test_two_ranks_reduce_a_tensor_under_either_engine(engine: str, job_tree: Any) -> None:
    """With our engine also where somebody else has the port, which does not stop a job on one host."""
    job_tree.code("train.py", ALL_REDUCE)
    settings = {**TWO_RANKS, "trainshed_engine": engine, "epochs": "3"}
    with socket.socket() as other:
        if engine == "trainshed":
            other.bind(("", 0))
            other.listen()
            settings["trainshed_master_port"] = str(other.getsockname()[1])
        job_tree.configure(hyperparameters=settings)
        done = job_tree.train(OMP_NUM_THREADS="1")

    assert done.status == 0 and job_tree.success == "", done.output
    sums = [line[line.index("SUM") :] for line in done.stdout.splitlines() if "SUM" in line]
    assert sums == ["SUM 3 of 2 ['--epochs', '3']"] * 2


ACCELERATE = """
from accelerate import PartialState
from transformers import TrainingArguments

state = PartialState(cpu=True)
arguments = TrainingArguments(output_dir="/tmp/unused", use_cpu=True, report_to=[])
print(
    "STATE", state.distributed_type.value, state.num_processes, state.process_index, state.local_process_index,
    state.is_main_process, arguments.world_size, arguments.process_index, arguments.local_process_index, flush=True,
)
state.destroy_process_group()
"""


@pytest.mark.heavy
@pytest.mark.skipif(not find_spec("transformers") or not find_spec("accelerate"), reason="needs transformers and accelerate")
def test_accelerate_and_transformers_see_the_ranks_that_we_started(job_tree: Any) -> None:
    job_tree.code("train.py", ACCELERATE)
    job_tree.configure(hyperparameters=TWO_RANKS)

    done = job_tree.train(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")

    assert done.status == 0, done.output
    states = sorted(line[line.index("STATE") :] for line in done.stdout.splitlines() if "STATE" in line)
    assert states == ["STATE MULTI_CPU 2 0 0 True 2 0 0", "STATE MULTI_CPU 2 1 1 False 2 1 1"]
