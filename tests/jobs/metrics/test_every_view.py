"""Every way in which a value comes, in every view, while the run goes on and when it is over."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support.extras import needs
from support.runner_project import Project, wait_until
from trainshed import runner
from trainshed.studio.ui.catalog import Catalog

# name -> (its metric, what a script does for a last value of 0.25)
WAYS = {
    "an expression of the job": ("defined", 'print("the defined value is 0.25 now", flush=True)'),
    "a metric line": ("lined", 'print("metric lined=0.25 step=2", flush=True)'),
    "a preset": ("preset_loss", "print(\"{'preset_loss': 0.25, 'epoch': 1.0}\", flush=True)"),
    "metrics.log": ("logged", "metrics.log(logged=0.25, step=2)"),
    "the platform's folder": ("platform", "write_line()"),
    "an event file": ("events", "write_events()"),
}
SCRIPT = f"""\
import json, os, time
from trainshed import metrics
def write_line():
    with open(os.environ["SAGEMAKER_METRICS_DIRECTORY"] + "/own.json", "a") as file:
        file.write(json.dumps({{"MetricName": "platform", "Value": 0.25, "Timestamp": time.time(), "Step": 2}}) + "\\n")
def write_events():
    from tensorboardX import SummaryWriter
    with SummaryWriter(os.environ["SM_OUTPUT_DIR"] + "/tensorboard") as writer:
        writer.add_scalar("events", 0.25, 2)
metrics.log(logged=0.5, step=1)
{chr(10).join(act for _, act in WAYS.values())}
while os.path.exists(os.environ["WAIT"]):
    time.sleep(0.05)
"""
TRAINER = """\
import os, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16, loss_type="ForCausalLM"))
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (4, 8))]
options = TrainingArguments(
    output_dir=os.environ["SM_OUTPUT_DATA_DIR"], max_steps=2, per_device_train_batch_size=2, logging_steps=1, report_to=[],
    disable_tqdm=True, save_strategy="no", use_cpu=True,
)
Trainer(model, options, train_dataset=rows).train()
"""


def views(project: Project) -> dict[str, Callable[[str], object]]:
    """Of each view of the run named `one` whether it shows a metric."""

    def text(*words: str) -> Callable[[str], object]:
        said = project.command(*words).output
        return lambda name: re.search(rf"(^|[\s>\"]){re.escape(name)}\b", said)

    def keys(found: Mapping[str, object]) -> Callable[[str], object]:
        return found.__contains__

    listed = json.loads(project.command("ls", "--json").stdout)[0]["metrics"]
    status = json.loads(project.command("status", "one", "--json").stdout)["FinalMetricDataList"]
    compared = json.loads(project.command("compare", "one", "one", "--json").stdout)["runs"][0]["metrics"]
    report = project.folder / "report.html"
    assert project.command("report", "one", "-o", str(report)).status == 0
    page = report.read_text()
    listing = Catalog(os.environ)
    return {
        "status": text("status", "one"),
        "status --json": keys({one["MetricName"]: one for one in status}),
        "metrics show": text("metrics", "show", "one"),
        "Python": keys(runner.find("one").metrics),
        "compare": keys(compared),
        "ls": keys(listed),
        "ls --columns": lambda name: "0" in project.command("ls", "--columns", f"metric.`{name}`", "--csv").stdout,
        "ls --where": lambda name: "one" in project.command("ls", "--where", f"metric.`{name}` < 1e9").stdout,
        "show": text("show", "one"),
        "report": lambda name: name in page,
        "page's list": lambda name: listing.changes(0, f"metric.`{name}`")["rows"][0]["values"][0] is not None,
    }


def not_shown(project: Project, names: list[str], more: Mapping[str, Callable[[str], object]] | None = None) -> list[str]:
    """Which view lacks which metric."""
    shown = {**views(project), **(more or {})}
    return [f"{view}: {name}" for view, shows in shown.items() for name in names if not shows(name)]


def closing(project: Project, card: str) -> dict[str, Callable[[str], object]]:
    """What a run says when it ends."""
    (folder,) = (project.folder / "runs").iterdir()
    written = {one["MetricName"] for one in json.loads((folder / "status.json").read_text())["FinalMetricDataList"]}
    return {
        "closing card": lambda name: re.search(rf"^ {{2}}(metrics)? +{re.escape(name)} ", card, re.MULTILINE),
        "FinalMetricDataList": written.__contains__,
    }


@pytest.fixture
def here(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project, where Python's calls are made, too."""
    monkeypatch.chdir(project.folder)
    return project


@pytest.mark.spine
def test_every_way_is_in_every_view_now_and_afterwards(here: Project, tmp_path: Path) -> None:
    needs("tensorboardX")
    (wait := tmp_path / "wait").touch()
    job = {"program": "train.py", "metric_definitions": {"defined": "defined value is ([0-9.]+)"}}
    here.write({"train.py": SCRIPT, "job.yaml": json.dumps(job)})
    process = here.start("run", "job.yaml", "--name", "one", "--env", f"WAIT={wait}")
    names = [name for name, _ in WAYS.values()]
    wait_until(lambda: {*names} <= {*(runner.runs()[-1].metrics if runner.runs() else ())}, "all is measured")
    assert not_shown(here, names) == [], "while it goes on"
    assert runner.find("one").metrics["logged"] == 0.25

    os.unlink(wait)
    _, card = process.communicate()
    assert process.returncode == 0, card
    assert not_shown(here, names, closing(here, card)) == [], "when it is over"
    assert "logged 0.5 -> 0.25\n" in card and "  metrics    " in card


def test_what_a_ready_program_measures_is_in_every_view(here: Project) -> None:
    needs("xgboost")
    rows = "".join(f"{row % 7},{row},{row % 5}\n" for row in range(60))
    job = {
        "program": "tabular",
        "hyperparameters": {"num_round": 3},
        "channels": {"train": "train", "validation": "validation"},
    }
    here.write({"train/a.csv": rows, "validation/a.csv": rows, "job.yaml": json.dumps(job)})
    done = here.trainshed("run", "job.yaml", "--name", "one")
    assert done.status == 0, done.output

    assert not_shown(here, ["train:rmse", "validation:rmse"], closing(here, done.output)) == []


@pytest.mark.torch
def test_what_a_trainer_logs_is_in_every_view(here: Project) -> None:
    needs("transformers")
    here.write({"train.py": TRAINER})
    done = here.trainshed("run", "train.py", "--name", "one", "--hp", "trainshed_metrics=loggers")
    assert done.status == 0, done.output

    assert not_shown(here, ["loss", "learning_rate", "train_loss"], closing(here, done.output)) == []
