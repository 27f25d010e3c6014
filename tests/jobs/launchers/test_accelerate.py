"""Accelerate's and DeepSpeed's configuration files: ranks get what `accelerate launch` gives, held against it itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed"),
]

ELSEWHERE = """\
distributed_type: MULTI_GPU
mixed_precision: bf16
num_processes: 8
num_machines: 4
main_process_ip: 10.0.0.1
main_process_port: 29500
"""
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
SHOW = "import json, os\nos.write(1, ('ENV' + json.dumps(dict(os.environ)) + '\\n').encode())\n"
FSDP = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: true
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_version: 2
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_mode: max-autotune
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
use_cpu: false
"""
SIMPLE = "distributed_type: 'NO'\nmixed_precision: 'no'\nuse_cpu: true\nnum_processes: 1\ndebug: true\n"
DEEPSPEED = """\
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: none
  zero3_init_flag: true
  zero_stage: 3
mixed_precision: bf16
num_processes: 2
num_machines: 1
main_process_port: 0
"""
FOR_ZERO = ["--use_deepspeed", "--deepspeed_config_file", "zero.json", "--num_processes=2"]
ZERO = json.dumps({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}})
# Where ranks meet and who they are; what torchrun sets has a test of its own (test_torch.py).
NOT_COMPARED = (
    "_",
    "MASTER_",
    "TORCHELASTIC_",
    "TORCH_NCCL_",
    "PYTHONPATH",
    "LC_CTYPE",
    "RANK",
    "LOCAL_",
    "ROLE_",
    "GROUP_",
    "WORLD",
)
MARKS = ("ACCELERATE_", "FSDP_", "MEGATRON_", "PARALLELISM_", "NCCL_P2P", "KMP_", "CUDA_VISIBLE")


def job(name: str, processes: int = 2, **more: str) -> dict[str, str]:
    return {
        "sagemaker_program": "train.py",
        "trainshed_accelerate": name,
        "trainshed_processes_per_host": str(processes),
        **more,
    }


def shown(output: str) -> list[dict[str, str]]:
    """The environments that ranks printed."""
    return [json.loads(line[line.index("ENV") + 3 :]) for line in output.splitlines() if "ENV{" in line]


def launched(arguments: list[str], folder: Path) -> list[dict[str, str]]:
    """What Accelerate's own launcher gives its ranks."""
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *arguments, "train.py"],
        cwd=folder,
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return shown(done.stdout)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "text", "arguments", "processes"),
    [
        ("fsdp.yaml", FSDP, [], 2),
        ("configs/simple.yaml", SIMPLE, [], 1),
        pytest.param("ds.yaml", DEEPSPEED, [], 2, marks=needs_deepspeed),
        pytest.param("zero.json", ZERO, FOR_ZERO, 2, marks=needs_deepspeed),
    ],
)
def test_ranks_have_every_variable_of_accelerate_launch(
    job_tree: Any, tmp_path: Path, name: str, text: str, arguments: list[str], processes: int
) -> None:
    folder = tmp_path / "theirs"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(text)
    (folder / "train.py").write_text(SHOW)
    theirs = launched(arguments or ["--config_file", name], folder)
    job_tree.code("train.py", SHOW)
    job_tree.code(name, text)
    job_tree.configure(hyperparameters=job(name, processes))
    done = job_tree.train(OMP_NUM_THREADS="1")

    assert done.status == 0, done.output
    ours = shown(done.stdout)
    assert len(ours) == len(theirs) == processes
    base = {"HOME", "PATH", "OMP_NUM_THREADS"}
    expected = {k: v for k, v in theirs[0].items() if k not in base and not k.startswith(NOT_COMPARED)}
    assert any(k.startswith("ACCELERATE_") for k in expected)
    for rank in ours:
        assert {k: rank.get(k) for k in expected} == expected
        assert {k for k in rank if k.startswith(MARKS)} <= set(expected)


@pytest.mark.spine
def test_a_script_of_accelerates_gets_its_precision_from_the_file_and_its_ranks_from_the_job(job_tree: Any) -> None:
    job_tree.code(
        "train.py",
        "import accelerate\na = accelerate.Accelerator(cpu=True)\n"
        "print('RESULT', a.mixed_precision, a.num_processes, a.distributed_type.value, flush=True)\n",
    )
    job_tree.code("accelerate_config.yaml", ELSEWHERE)
    job_tree.configure(hyperparameters=job("accelerate_config.yaml"))
    done = job_tree.train()

    assert done.status == 0, done.output
    assert done.stdout.count("RESULT bf16 2 MULTI_CPU") == 2, done.output
    (line,) = [line for line in done.output.splitlines() if "has no effect" in line]
    assert "num_processes: 8, num_machines: 4, main_process_ip: 10.0.0.1" in line
    assert "this job runs 2 rank(s) on each of 1 host(s)" in line


def test_what_accelerate_does_not_know_is_named(job_tree: Any) -> None:
    job_tree.code("train.py", "print('never')\n")
    job_tree.code("a.yaml", "distributed_type: FSDP\nmixed_precison: bf16\n")
    job_tree.configure(hyperparameters=job("a.yaml"))
    refused = job_tree.train()
    job_tree.code("b.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_shard_strategy: FULL_SHARD\n")
    job_tree.configure(hyperparameters=job("b.yaml"))
    dropped = job_tree.train("--dry-run")

    assert refused.status != 0 and "never" not in refused.stdout
    assert "mixed_precison" in job_tree.failure and "trainshed_accelerate = a.yaml" in job_tree.failure
    assert "b.yaml: fsdp_config.fsdp_shard_strategy has no effect" in dropped.output
    assert "ACCELERATE_USE_FSDP=true" in dropped.output


def test_a_file_that_nothing_names_is_noted_once_and_not_applied(job_tree: Any) -> None:
    job_tree.code("train.py", SHOW)
    job_tree.code("default_config.yaml", FSDP)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py"})
    done = job_tree.train()

    assert done.status == 0 and done.output.count("trainshed_accelerate = default_config.yaml") == 1
    assert not any(name.startswith(MARKS) for name in shown(done.stdout)[0])


def test_a_distribution_of_another_kind_refuses_the_file(job_tree: Any) -> None:
    job_tree.code("train.py", "print('never')\n")
    job_tree.code("a.yaml", FSDP)
    job_tree.configure(hyperparameters=job("a.yaml", trainshed_distribution="script"))
    done = job_tree.train()

    assert done.status != 0 and "never" not in done.stdout
    assert "needs the distribution torchrun, and this job's is script" in job_tree.failure
