"""Scripts for Amazon's library run as they are, on CPU."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ranks

from support.extras import needs
from support.free_ports import free_ports
from support.lazy import Lazy
from support.notice_jobs import Train
from trainshed.contract.wire.pipeline import read_settings, without_effect
from trainshed.parallel.ground.errors import NotServed, PipelineError

torch = Lazy("torch")
grid = Lazy("trainshed.parallel.ground.grid")
closeness = Lazy("closeness")

pytestmark = pytest.mark.torch


# What a job passes to the Trainer's script, by name; the container's test takes the same. The bias of keys has no gradient
# but what rounding leaves of one, which is not to become steps: epsilon.
TRAINER = {
    "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "max_steps": 6, "logging_steps": 1,
    "learning_rate": 0.01, "adam_epsilon": 1e-4, "lr_scheduler_type": "constant", "save_steps": 3, "report_to": "none",
    "seed": 1, "max_grad_norm": 0.5, "eval_strategy": "steps", "eval_steps": 6, "remove_unused_columns": False,
    "disable_tqdm": True,
}  # fmt: skip


def run_script(world: int, name: str, output: str, parameters: dict[str, Any], *arguments: str) -> list[str]:
    """Runs a script of this folder on `world` ranks with `mp_parameters`; the log of each rank."""
    extra = {"SM_HP_MP_PARAMETERS": json.dumps(parameters), "SM_FRAMEWORK_PARAMS": '{"sagemaker_mpi_enabled":true}'}
    return ranks.run_script(world, str(ranks.HERE / name), *arguments, extra=extra, cwd=output)


@pytest.mark.spine
@pytest.mark.exact
def test_transformers_trainer_trains_gpt2_through_the_model_parallel_path_as_without_it() -> None:
    """Also with labels of other lengths in each microbatch."""
    needs("transformers")
    found = {}
    for degree in (1, 2):
        with tempfile.TemporaryDirectory() as output:
            parameters = {"partitions": degree, "microbatches": 4, "pipeline": "interleaved", "ddp": True}
            arguments = [
                "--output_dir",
                output,
                *[word for key, value in TRAINER.items() for word in (f"--{key}", str(value))],
            ]
            if degree == 1:
                ranks.run_script(1, str(ranks.HERE / "trainer_script.py"), *arguments, cwd=output)
            else:
                run_script(degree, "trainer_script.py", output, parameters, *arguments,
                           "--mp_parameters", f"ddp=True,partitions={degree}")  # fmt: skip
            found[degree] = json.loads(Path(output, "result0.json").read_text())
            from safetensors.torch import load_file

            found[degree]["weights"] = load_file(f"{output}/checkpoint-6/model.safetensors")
    assert ["SAGEMAKER" in found[degree]["trainer"] for degree in (1, 2)] == [False, True]
    closeness.assert_trained_alike(found[2]["losses"], found[1]["losses"], rtol=1e-5)
    assert found[2]["eval"] == pytest.approx(found[1]["eval"], rel=1e-5)
    assert found[2]["generated"] == found[1]["generated"]
    closeness.assert_trained_alike(found[2]["weights"], found[1]["weights"], rtol=1e-4, atol=1e-5)


@pytest.mark.exact
@pytest.mark.heavy
def test_replicas_of_transformers_trainer_share_its_data_out() -> None:
    """Two of two stages, with eight rows each, train what one process trains with sixteen."""
    needs("transformers")
    from safetensors.torch import load_file

    weights = {}
    for world, rows in ((1, 16), (4, 8)):
        with tempfile.TemporaryDirectory() as output:
            given = {**TRAINER, "output_dir": output, "per_device_train_batch_size": rows, "eval_strategy": "no"}
            arguments = [word for key, value in given.items() for word in (f"--{key}", str(value))]
            if world == 1:
                ranks.run_script(1, str(ranks.HERE / "trainer_script.py"), *arguments, cwd=output)
            else:
                run_script(world, "trainer_script.py", output, {"partitions": 2, "microbatches": 4, "ddp": True}, *arguments)
            weights[world] = load_file(f"{output}/checkpoint-6/model.safetensors")
    closeness.assert_trained_alike(weights[4], weights[1], rtol=1e-4, atol=1e-5)


ENDLESS_TRAINER = """\
import json, os, sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

class Told(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print(f"done {state.global_step}", flush=True)

torch.set_num_threads(1)
set_seed(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16, loss_type="ForCausalLM"))
tokens = torch.randint(0, 32, (64, 8), generator=torch.Generator().manual_seed(0))
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir=os.environ["SM_OUTPUT_DATA_DIR"] + "/trainer", max_steps=int(os.environ["STEPS"]), seed=3,
        per_device_train_batch_size=4, lr_scheduler_type="inverse_sqrt", warmup_steps=5, logging_steps=1, report_to=[],
        disable_tqdm=True, save_strategy="no", optim="adamw_torch",
    ),
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    callbacks=[Told()],
)
trainer.train()
if os.environ["RANK"] == "0":
    print("FINAL " + json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]), flush=True)
"""


@pytest.mark.exact
@pytest.mark.safety
@pytest.mark.timeout(400)  # four trainings, each in processes of its own
def test_a_trainer_in_a_pipeline_that_is_interrupted_ends_with_the_losses_of_one_that_never_was(tmp_path: Path) -> None:
    """It resumes from what transformers has saved, model.safetensors, with the optimizer's state of each rank."""
    needs("transformers")
    mp_parameters = json.dumps({"partitions": 2, "microbatches": 2, "ddp": True})

    def job(folder: str, steps: int, **settings: Any) -> Train:
        env = {"STEPS": str(steps), "TRANSFORMERS_VERBOSITY": "error"}
        return Train(tmp_path / folder, ENDLESS_TRAINER, ranks=2, distribution="pipeline", env=env,
                     mp_parameters=mp_parameters, **settings)  # fmt: skip

    with job("job", 10**6, checkpoint="auto") as first:
        first.until("done 4\n")
        first.signal(signal.SIGTERM)
        assert first.end() == 0, first.output
    step = first.record()["interruption"]["step"]
    with job("job", step + 4, checkpoint="auto") as last:
        assert last.end() == 0, last.output
    assert f"checkpoint-{step} (verified)" in last.output
    with job("straight", step + 4) as straight:
        assert straight.end() == 0, straight.output
    assert len(losses_of(straight)) == step + 4
    closeness.assert_trained_alike(losses_of(last), losses_of(straight), rtol=1e-6)


def losses_of(job: Train) -> list[float]:
    (line,) = {line.partition("FINAL ")[2] for line in job.lines if "FINAL " in line}
    return json.loads(line)


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.spine), pytest.param(4, marks=pytest.mark.heavy)])
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
    cluster = grid.layout(8, 2, "cluster")
    assert [(place.replica, place.pipeline) for place in cluster[:4]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    spread = grid.layout(8, 2, "spread")
    assert [rank for rank, place in enumerate(spread) if place.replica == 0] == [0, 4]
    assert grid.layout(8, 2, "DPT") == cluster
    assert grid.layout(8, 2, "TPD") == spread
    with pytest.raises(PipelineError, match="6 ranks cannot be split into pipelines of 4"):
        grid.layout(6, 4, "cluster")


def test_settings_are_read_by_either_name_and_wrong_ones_are_named() -> None:
    assert read_settings({"partitions": 2}).pipeline_parallel_degree == 2
    assert read_settings({"optimize": "memory"}).weight == 0.8
    assert read_settings({"active_microbatches": 4, "tensor_parallel_degree": 1}).microbatches == 1
    with pytest.raises(PipelineError, match="mp_parameters: microbatch: not a pipeline setting"):
        read_settings({"microbatch": 2})
    with pytest.raises(PipelineError, match="microbatches = 'many': not int"):
        read_settings({"microbatches": "many"})
    assert read_settings({"tensor_parallel_degree": 2}).tensor_parallel_degree == 2
    with pytest.raises(
        NotServed, match="tensor_parallel_degree together with pipeline_parallel_degree needs prescaled_batch"
    ):
        read_settings({"partitions": 2, "tensor_parallel_degree": 2})
    for name in ("ZBVZeroBubble", "DualPipeV"):
        settings = read_settings({"pipeline": name})
        assert (settings.schedule, settings.virtual_stages) == (name.lower(), 2)
        with pytest.raises(PipelineError, match=r"virtual_stages = 3: .* gives each rank 2"):
            read_settings({"pipeline": name, "virtual_stages": 3})
    assert read_settings({"pipeline": "InterleavedZeroBubble", "virtual_stages": 2}).schedule == "interleavedzerobubble"
    with pytest.raises(PipelineError, match="needs pipeline = interleaved1f1b or interleavedzerobubble"):
        read_settings({"virtual_stages": 2})
    assert read_settings({"sdp_gradient_clipping": "0.5"}).sdp_gradient_clipping == 0.5
    assert read_settings({}).sdp_gradient_clipping is None
    for wrong in (-1, float("nan")):
        with pytest.raises(PipelineError, match=r"sdp_gradient_clipping = .*: must be 0 or more"):
            read_settings({"sdp_gradient_clipping": wrong})


def test_settings_that_change_nothing_are_named_with_the_reason() -> None:
    told = without_effect({"active_microbatches": 4, "partitions": 2, "fp16_params": True})
    assert [one.partition(" (")[0] for one in told] == ["active_microbatches", "fp16_params"]
    assert "bounds the microbatches" in told[0]
    assert without_effect({"fp16_params": True, "bf16": True, "sdp_gradient_clipping": 1.0}) == ()


UNSERVED = [
    ("import smdistributed.modelparallel.torch.nn.functional", "use the modules of torch.nn"),
    ("from smdistributed.modelparallel.torch.nn import LinearWithInputScale", "use the modules of torch.nn"),
    ("smp.nn.DistributedTransformer(num_layers=2)", "use the module of torch.nn or transformers"),
    ("type('Own', (smp.nn.DistributedModule,), {})()", "use the module of torch.nn or transformers"),
    ("smp.optimizers.FusedNovoGrad([])", "use torch.optim"),
    ("smp.nn.huggingface.gpt2.model_config", "only the functions translate_... are there"),
    ("import smdistributed.modelparallel.torch.nowhere", "trainshed.parallel has the pipeline's API"),
    ("smp.state.param_index_to_name_tp_group", "it has cfg, model and optimizer"),
    ("smp.optimizers.FusedLAMB([torch.ones(1)], amsgrad=True)", "apex has none either"),
    ("with smp.model_creation(tensor_parallelism=True): pass", "use_distributed_transformer=0"),
]
# Names of which one process without a pipeline can tell what they do.
SERVED = """
from smdistributed.modelparallel.torch.nn import FusedLayerNorm
assert isinstance(torch.nn.LayerNorm(2), FusedLayerNorm)
import smdistributed.modelparallel.torch.nn.huggingface.gptneo as gptneo
from smdistributed.modelparallel.torch.nn.huggingface.gpt2 import translate_state_dict_to_hf_gpt2
whole = {"wte.weight": torch.ones(2)}
assert translate_state_dict_to_hf_gpt2(whole, max_seq_len=8) is whole
assert gptneo.translate_hf_gptneo_state_dict_to_smdistributed(whole, 8) is whole
from smdistributed.modelparallel.torch.state_mod import state
assert state is smp.state and state.cfg.fp16 is False and state.model is None
from smdistributed.modelparallel.torch.utils import get_distribution_axis, rmsg
assert get_distribution_axis(torch.ones(2)) is None
smp.init({"_match_weights": False, "checkpoint_attentions": True, "ddp_dist_backend": "nccl"})
assert rmsg("ready") == "[rank 0, stage 0] ready"
smp.tp_register_with_module(torch.nn.Linear, smp.nn.DistributedLinear, None)
assert not isinstance(torch.nn.Linear(1, 1), smp.nn.DistributedLinear)
with smp.model_creation(tensor_parallelism=False, dtype=torch.float16):
    assert torch.nn.Linear(1, 1).weight.dtype is torch.float32

# LAMB by the paper's formula, a step from zero moments; a tensor without weight decay is not scaled.
for decay, lamb in ((0.1, True), (0.0, False)):
    weight = torch.tensor([3.0, -4.0])
    weight.grad = torch.tensor([0.3, 0.4])
    smp.optimizers.FusedLAMB([weight], lr=0.01, weight_decay=decay).step()
    update = torch.tensor([1.0, 1.0]) + decay * torch.tensor([3.0, -4.0])
    ratio = 5.0 / update.norm() if lamb else 1.0
    torch.testing.assert_close(weight, torch.tensor([3.0, -4.0]) - 0.01 * ratio * update, rtol=1e-5, atol=1e-6)
"""
TRIED = """
import json, sys, traceback
import torch
import smdistributed.modelparallel.torch as smp
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


def test_what_is_not_served_says_what_to_use_instead_and_the_rest_does_what_it_says(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRIED, json.dumps([SERVED, *(statement for statement, _ in UNSERVED)])]
    environment = ranks.environment(0, 1, free_ports())
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    served, *told = json.loads(done.stdout.split("RESULT ")[1])
    assert not served, served
    for (statement, message), text in zip(UNSERVED, told, strict=True):
        assert "is not supported" in text and message in text, (statement, text)
