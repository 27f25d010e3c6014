"""transformers' Trainer in a job that asks for `trainshed_checkpoint=auto`: not a line of the script knows of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from notices.jobs import TOOLKIT, Train
from trainshed.checkpoint import hf_trainer

pytestmark = pytest.mark.torch

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
        output_dir=os.environ["SM_OUTPUT_DATA_DIR"] + "/trainer", max_steps=60, per_device_train_batch_size=2,
        logging_steps=1, report_to=[], disable_tqdm=True, save_strategy="no", use_cpu=True, seed=3,
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


def interrupted(folder: Path, after: int, ranks: int) -> Train:
    with Train(folder, SCRIPT, ranks=ranks, checkpoint="auto") as job:
        job.until(f"done {after}")
        job.signal(signal.SIGTERM)
        assert job.end() == 0, job.output
    assert job.record()["state"] == "Interrupted"
    assert "Reporting training INTERRUPTED after step" in job.output
    return job


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_trainer_interrupted_twice_ends_with_the_losses_of_one_that_never_was(ranks: int, tmp_path: Path) -> None:
    with Train(tmp_path / "straight", SCRIPT, ranks=ranks) as straight:
        assert straight.end() == 0, straight.output
    assert "checkpoint=auto" not in straight.output  # nobody asked
    job = interrupted(tmp_path / "job", 12, ranks)
    assert "FINAL" not in job.output
    interrupted(tmp_path / "job", 30, ranks)
    steps = sorted(int(path.name[11:]) for path in (tmp_path / "job/checkpoints").iterdir())
    assert len(steps) == 2
    assert 12 <= steps[0] < 30 <= steps[1] < 60
    with Train(tmp_path / "job", SCRIPT, ranks=ranks, checkpoint="auto") as last:
        assert last.end() == 0, last.output
    assert f"resuming from {tmp_path}/job/checkpoints/checkpoint-{steps[1]} (verified)" in last.output
    assert final_losses(last) == final_losses(straight)


def test_a_damaged_or_unfinished_save_is_passed_over(tmp_path: Path) -> None:
    interrupted(tmp_path, 5, 0)
    (good,) = (tmp_path / "checkpoints").iterdir()
    bad = tmp_path / "checkpoints/checkpoint-900"
    bad.mkdir()
    (bad / "model.safetensors").write_bytes(b"half")
    interrupted(tmp_path, int(good.name[11:]) + 2, 0)
    newest = max((tmp_path / "checkpoints").glob("checkpoint-[!9]*"), key=lambda path: int(path.name[11:]))
    data = bytearray((newest / "optimizer.pt").read_bytes())
    data[len(data) // 2] ^= 4
    (newest / "optimizer.pt").write_bytes(data)
    with Train(tmp_path, SCRIPT, checkpoint="auto") as job:
        assert job.end() == 0, job.output
    assert "checkpoint-900 passed over: it was not finished" in job.output
    assert f"{newest.name} passed over: optimizer.pt is damaged" in job.output
    assert f"resuming from {good} (verified)" in job.output


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


def test_a_trainer_that_keeps_no_optimizer_state_is_left_alone_with_the_reason(tmp_path: Path) -> None:
    script = SCRIPT.replace("max_steps=60", "max_steps=2, save_only_model=True")
    with Train(tmp_path, script, checkpoint="auto") as job:
        assert job.end() == 0, job.output
    assert "this Trainer is left alone: save_only_model" in job.output
    assert "FINAL" in job.output
