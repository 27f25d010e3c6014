"""Scripts for Amazon's library run as they are, on CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ranks  # noqa: E402

from support.extras import needs  # noqa: E402
from trainshed.contract.wire.pipeline import read_settings  # noqa: E402
from trainshed.parallel.errors import NotServed, PipelineError  # noqa: E402
from trainshed.parallel.grid import layout  # noqa: E402

pytestmark = pytest.mark.torch


# What a job passes to the Trainer's script, by name; the container's test takes the same.
TRAINER = {
    "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "max_steps": 6, "logging_steps": 1,
    "learning_rate": 0.01, "lr_scheduler_type": "constant", "save_steps": 3, "report_to": "none", "seed": 1,
    "max_grad_norm": 0.5, "eval_strategy": "steps", "eval_steps": 6, "remove_unused_columns": False, "disable_tqdm": True,
}  # fmt: skip


def run_script(world: int, name: str, output: str, parameters: dict[str, Any], *arguments: str) -> list[str]:
    """Runs a script of this folder on `world` ranks with `mp_parameters`; the log of each rank."""
    extra = {"SM_HP_MP_PARAMETERS": json.dumps(parameters), "SM_FRAMEWORK_PARAMS": '{"sagemaker_mpi_enabled":true}'}
    return ranks.run_script(world, str(ranks.HERE / name), *arguments, extra=extra, cwd=output)


def test_transformers_trainer_trains_gpt2_through_the_model_parallel_path_as_on_one_rank() -> None:
    needs("transformers")
    found = {}
    for degree in (1, 2):
        with tempfile.TemporaryDirectory() as output:
            parameters = {"partitions": degree, "microbatches": 4, "pipeline": "interleaved", "ddp": True}
            arguments = [word for key, value in TRAINER.items() for word in (f"--{key}", str(value))]
            run_script(degree, "trainer_script.py", output, parameters, "--output_dir", output, *arguments,
                       "--mp_parameters", f"ddp=True,partitions={degree}")  # fmt: skip
            found[degree] = json.loads(Path(output, "result0.json").read_text())
            from safetensors.torch import load_file

            found[degree]["weights"] = load_file(f"{output}/checkpoint-6/model.safetensors")
    assert found[2]["losses"] == pytest.approx(found[1]["losses"], rel=1e-5)
    assert found[2]["eval"] == pytest.approx(found[1]["eval"], rel=1e-5)
    assert found[1]["weights"].keys() == found[2]["weights"].keys()
    for name, value in found[1]["weights"].items():
        torch.testing.assert_close(found[2]["weights"][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.heavy)])
def test_a_script_in_the_style_of_amazons_mnist_example_trains_evaluates_saves_and_resumes(world: int) -> None:
    with tempfile.TemporaryDirectory() as output:
        logs = run_script(
            world, "mnist_script.py", output, {"partitions": 2, "microbatches": 2, "ddp": True, "optimize": "speed"},
            "--output", output,
        )  # fmt: skip
        results = [json.loads(log.split("RESULT ")[1].splitlines()[0]) for log in logs]
        assert all(result == results[0] for result in results)
        assert results[0]["last"] < 0.5 * results[0]["first"]
        assert results[0]["resumed"] == pytest.approx(results[0]["last_after"], rel=1e-6)
        full = torch.load(f"{output}/checkpoints/full.pt", weights_only=True)
        assert set(full) == {"conv.weight", "conv.bias", "one.weight", "one.bias", "two.weight", "two.bias"}
        assert Path(output, "checkpoints", "newest").read_text() == "full.pt"


def test_ranks_are_placed_as_amazons_documentation_has_it() -> None:
    cluster = layout(8, 2, "cluster")
    assert [(place.replica, place.pipeline) for place in cluster[:4]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    spread = layout(8, 2, "spread")
    assert [rank for rank, place in enumerate(spread) if place.replica == 0] == [0, 4]
    assert layout(8, 2, "DPT") == cluster
    assert layout(8, 2, "TPD") == spread
    with pytest.raises(PipelineError, match="6 ranks cannot be split into pipelines of 4"):
        layout(6, 4, "cluster")


def test_settings_are_read_by_either_name_and_wrong_ones_are_named() -> None:
    assert read_settings({"partitions": 2}).pipeline_parallel_degree == 2
    assert read_settings({"optimize": "memory"}).weight == 0.8
    assert read_settings({"active_microbatches": 4, "tensor_parallel_degree": 1}).microbatches == 1
    with pytest.raises(PipelineError, match="mp_parameters: microbatch: not a pipeline setting"):
        read_settings({"microbatch": 2})
    with pytest.raises(PipelineError, match="microbatches = 'many': not int"):
        read_settings({"microbatches": "many"})
    with pytest.raises(NotServed, match="tensor_parallel_degree = 2 is not supported"):
        read_settings({"tensor_parallel_degree": 2})
    for name in ("ZBVZeroBubble", "DualPipeV"):
        with pytest.raises(NotServed, match="is not supported") as refused:
            read_settings({"pipeline": name})
        assert "interleavedzerobubble" in (refused.value.hint or "")
    assert read_settings({"pipeline": "InterleavedZeroBubble", "virtual_stages": 2}).schedule == "interleavedzerobubble"
    with pytest.raises(PipelineError, match="needs pipeline = interleaved1f1b or interleavedzerobubble"):
        read_settings({"virtual_stages": 2})


UNSERVED = [
    ("from smdistributed.modelparallel.torch.nn import FusedLayerNorm", "use the modules of torch.nn"),
    ("from smdistributed.modelparallel.torch.nn.huggingface.gpt2 import x", "use the modules of torch.nn"),
    ("import smdistributed.modelparallel.torch.state_mod", "smp.state has the settings"),
    ("import smdistributed.modelparallel.torch as smp; smp.tp_register", "torch.distributed.tensor.parallel"),
]
TRIED = """
import json, sys, traceback
from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint
told = []
for statement in json.loads(sys.argv[1]):
    try:
        exec(statement)
    except Exception:
        told.append(traceback.format_exc())
    else:
        told.append("")
print("RESULT " + json.dumps(told))
"""


def test_what_is_not_served_says_what_to_use_instead(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRIED, json.dumps([statement for statement, _ in UNSERVED])]
    environment = ranks.environment(0, 1, 0)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.split("RESULT ")[1])
    for (statement, message), text in zip(UNSERVED, told, strict=True):
        assert "is not supported" in text and message in text, (statement, text)
