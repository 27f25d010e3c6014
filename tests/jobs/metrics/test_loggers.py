"""`metrics: loggers`: what transformers and Lightning log, without a line of it printed or a script changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.extras import needs

pytestmark = pytest.mark.torch

TRANSFORMERS = """\
import json, os, torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed
torch.set_num_threads(1)
set_seed(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16, loss_type="ForCausalLM"))
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (8, 8))]
options = TrainingArguments(
    output_dir=os.environ["SM_OUTPUT_DATA_DIR"], max_steps=4, per_device_train_batch_size=2, logging_steps=1, report_to=[],
    disable_tqdm=True, save_strategy="no", use_cpu=True, eval_strategy="steps", eval_steps=2,
)
trainer = Trainer(model, options, train_dataset=rows, eval_dataset=rows)
trainer.remove_callback(PrinterCallback)
trainer.train()
print("HISTORY", json.dumps(trainer.state.log_history))
"""
LIGHTNING = """\
import os, torch, lightning as L
torch.set_num_threads(1)
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
    def training_step(self, batch, number):
        loss = self.line(batch).pow(2).mean()
        self.log("loss", loss)
        self.log("mean_loss", loss, on_step=False, on_epoch=True)
        print("LOSS", self.global_step, loss.item())
        return loss
    def validation_step(self, batch, number):
        self.log("val/constant", 0.5)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
torch.manual_seed(1)
data = torch.utils.data.DataLoader(torch.ones(8, 1), batch_size=2)
trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, log_every_n_steps=2, default_root_dir=os.environ["SM_OUTPUT_DATA_DIR"],
)
trainer.fit(Model(), data, data)
assert trainer.logger is None and trainer.log_dir == os.environ["SM_OUTPUT_DATA_DIR"]
"""


def run(job: Any, script: str) -> tuple[str, dict[str, list[tuple[Any, ...]]]]:
    """What a script printed, and (value, step, epoch) of its metrics by name."""
    job.code("train.py", script)
    job.configure(hyperparameters={"sagemaker_program": "train.py", "trainshed_metrics": "loggers"})
    done = job.train()
    assert done.status == 0, done.output
    (file,) = (job.base / "output/metrics/sagemaker").iterdir()
    assert not (job.base / "output/metrics/trainshed").exists()
    found: dict[str, list[tuple[Any, ...]]] = {}
    for line in file.read_text().splitlines():
        point = json.loads(line)
        found.setdefault(point["MetricName"], []).append((point["Value"], point["Step"], point["Epoch"]))
    return done.stdout, found


@pytest.mark.spine
def test_a_trainer_of_transformers_gives_its_history(job_tree: Any) -> None:
    needs("transformers")
    output, found = run(job_tree, TRANSFORMERS)

    (line,) = (line for line in output.splitlines() if line.startswith("HISTORY "))
    history = json.loads(line.removeprefix("HISTORY "))
    for name in ("loss", "learning_rate", "eval_loss"):
        assert found[name] == [(entry[name], entry["step"], entry["epoch"]) for entry in history if name in entry]
    assert len(found["loss"]) == 4 and len(found["eval_loss"]) == 2 and "epoch" not in found


def test_a_trainer_of_lightning_gives_what_its_module_logs(job_tree: Any) -> None:
    needs("lightning")
    output, found = run(job_tree, LIGHTNING)

    losses = [float(line.split()[2]) for line in output.splitlines() if line.startswith("LOSS")]
    assert [value for value, *_ in found["loss"]] == pytest.approx([losses[place] for place in (1, 3, 5, 7)])
    assert [value for value, *_ in found["mean_loss"]] == pytest.approx([sum(losses[:4]) / 4, sum(losses[4:]) / 4])
    assert [(value, epoch) for value, _, epoch in found["val/constant"]] == [(0.5, 0), (0.5, 1)]
