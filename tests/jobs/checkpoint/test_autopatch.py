"""transformers' Trainer in a job that asks for `trainshed_checkpoint=auto`: not a line of the script knows of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from jobs.checkpoint.damage import newer_but_damaged
from support.extras import needs
from support.notice_jobs import TOOLKIT, Train
from trainshed.checkpoint import hf_trainer

needs("transformers")
pytestmark = pytest.mark.torch

# The schedule of the learning rate knows nothing of the number of steps, so a run that is to be interrupted has no end that
# could come before, and what follows decides how long training was meant to be.
SCRIPT = """\
import json, os, sys, time
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print(f"done {state.global_step}", flush=True)
        time.sleep(0.02)

torch.set_num_threads(1)
set_seed(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16, loss_type="ForCausalLM"))
tokens = torch.randint(0, 32, (64, 8), generator=torch.Generator().manual_seed(0))
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir=os.environ["SM_OUTPUT_DATA_DIR"] + "/trainer", max_steps=int(os.environ["STEPS"]),
        per_device_train_batch_size=2, lr_scheduler_type="inverse_sqrt", warmup_steps=5, logging_steps=1, report_to=[],
        disable_tqdm=True, save_strategy="no", use_cpu=True, seed=3,
    ),
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    callbacks=[Slow()],
)
trainer.train()
print("FINAL " + json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]), flush=True)
"""


def final_losses(job: Train) -> list[float]:
    (line,) = {line.partition("FINAL ")[2] for line in job.lines if "FINAL " in line}
    return json.loads(line)


ENDLESS = {"STEPS": "1000000"}


def interrupted(folder: Path, after: int, ranks: int) -> tuple[Train, Path, int]:
    """A run that was stopped once a rank had done the step `after`, its checkpoint, and of which step that is."""
    with Train(folder, SCRIPT, ranks=ranks, checkpoint="auto", env=ENDLESS) as job:
        job.until(f"done {after}\n")
        job.signal(signal.SIGTERM)
        assert job.end() == 0, job.output
    assert job.record()["state"] == "Interrupted"
    assert "Reporting training INTERRUPTED after step" in job.output
    assert "FINAL" not in job.output
    step = job.record()["interruption"]["step"]
    saved = folder / f"checkpoints/checkpoint-{step}"
    assert step >= after and saved.is_dir()
    return job, saved, step


@pytest.mark.exact
@pytest.mark.timeout(300)  # three jobs with transformers: 21 s alone, 120 s on a machine with a load of 25
def test_a_trainer_interrupted_ends_with_the_losses_of_one_that_never_was(tmp_path: Path) -> None:
    """What is not whole among its saves is passed over. A Trainer without the state to resume with is left alone."""
    _, saved, step = interrupted(tmp_path / "job", 12, 0)
    damaged = newer_but_damaged(saved, "optimizer.pt")
    unfinished = saved.with_name("checkpoint-999999")  # as a killed run leaves it
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(b"half")
    steps = {"STEPS": str(step + 10)}
    with Train(tmp_path / "job", SCRIPT, checkpoint="auto", env=steps) as last:
        assert last.end() == 0, last.output
    assert f"{damaged.name} passed over: optimizer.pt is damaged" in last.output
    assert f"{unfinished.name} passed over: it was not finished" in last.output
    assert f"resuming from {saved} (verified)" in last.output
    script = SCRIPT.replace("use_cpu=True", "use_cpu=True, save_only_model=True")
    with Train(tmp_path / "straight", script, checkpoint="auto", env=steps) as straight:
        assert straight.end() == 0, straight.output
    assert "this Trainer is left alone: save_only_model" in straight.output
    assert len(final_losses(straight)) == step + 10
    assert final_losses(last) == final_losses(straight)


@pytest.mark.exact
@pytest.mark.timeout(300)  # as the first one
def test_a_trainer_that_is_killed_goes_on_from_the_hosts_memory(tmp_path: Path) -> None:
    kill = "if [os.environ['TORCHELASTIC_RESTART_COUNT'], state.global_step] == ['0', 8]: os.kill(os.getpid(), 9)"
    script = SCRIPT.replace("        time.sleep(0.02)\n", f"        {kill}\n")
    steps = {"STEPS": "12"}
    memory = '{"every_steps": 3}'
    with Train(tmp_path / "job", script, checkpoint="auto", checkpoint_memory=memory, max_restarts=1, env=steps) as job:
        assert job.end() == 0, job.output
    assert re.search(r"resuming from /dev/shm/\S+/checkpoint-6 \(verified\)", job.output), job.output
    with Train(tmp_path / "straight", SCRIPT, env=steps) as straight:
        assert straight.end() == 0, straight.output
    assert final_losses(job) == final_losses(straight)
    assert not list(Path("/dev/shm").glob(f"trainshed-{job.process.pid}-*"))


@pytest.mark.exact
@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_trainer_interrupted_twice_ends_with_the_losses_of_one_that_never_was(ranks: int, tmp_path: Path) -> None:
    _, first, step = interrupted(tmp_path / "job", 12, ranks)
    again, second, step = interrupted(tmp_path / "job", step + 10, ranks)
    assert f"resuming from {first} (verified)" in again.output
    steps = {"STEPS": str(step + 10)}
    with Train(tmp_path / "job", SCRIPT, ranks=ranks, checkpoint="auto", env=steps) as last:
        assert last.end() == 0, last.output
    assert f"resuming from {second} (verified)" in last.output
    with Train(tmp_path / "straight", SCRIPT, ranks=ranks, env=steps) as straight:
        assert straight.end() == 0, straight.output
    assert "checkpoint=auto" not in straight.output  # nobody asked
    assert len(final_losses(straight)) == step + 10
    assert final_losses(last) == final_losses(straight)


def start(code: str, *path: object) -> str:
    """Runs a line of Python with our start-up folder first on its path, as the launcher does."""
    folders = [TOOLKIT / "trainshed/autopatch/startup", *path, TOOLKIT]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders)), "TRAINSHED_AUTOPATCH": "checkpoint"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_hook_leaves_a_users_own_sitecustomize_in_force(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'here'\n")
    code = "import sys, sitecustomize; print(mine, sitecustomize.__file__, type(sys.meta_path[0]).__name__)"
    assert start(code, tmp_path).split() == ["here", str(tmp_path / "sitecustomize.py"), "_Finder"]


def test_the_hook_imports_nothing_heavy() -> None:
    assert start("import sys; print('torch' in sys.modules, 'trainshed.checkpoint' in sys.modules)").split() == ["False"] * 2


def test_a_trainer_that_has_not_what_we_hook_into_is_left_as_it_is() -> None:
    module = types.ModuleType("transformers.trainer")
    module.Trainer = type("Trainer", (), {"train": lambda self: "own"})  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="Trainer has no _save_checkpoint"):
        hf_trainer.install(module)
    assert module.Trainer().train() == "own"
