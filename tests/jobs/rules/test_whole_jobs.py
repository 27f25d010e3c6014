"""Rules in whole jobs: what they say, do and leave."""

from __future__ import annotations

import json
from typing import Any

import pytest

COUNTS = """\
import os, time
from trainshed import metrics
for step in range({steps}):
    metrics.log(loss={loss}, step=step)
time.sleep({seconds})
"""
OWN = """\
def loss_above(point, limit):
    if point.name == "loss" and point.value > limit:
        return f"{point.name} is {point.value} at step {point.step}"

def broken(point):
    return 1 / 0
"""
TRAINS = """\
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if step == 2 and dist.get_rank() == {bad}:
        with torch.no_grad():
            model.module.weight[0, 0] += 0.5
dist.destroy_process_group()
"""


def train(job: Any, script: str, rules: Any, **settings: str) -> Any:
    job.code("train.py", script)
    job.code("checks.py", OWN)
    asked = rules if isinstance(rules, str) else json.dumps(rules)
    names = {f"trainshed_{name}": value for name, value in settings.items()}
    job.configure(hyperparameters={"sagemaker_program": "train.py", "trainshed_rules": asked, **names})
    return job.train()


def warnings(done: Any) -> list[str]:
    return [line for line in done.stderr.splitlines() if " rule " in line]


def findings(job: Any) -> list[tuple[str, str, str]]:
    found = [json.loads(line) for file in (job.base / "output/rules").glob("*") for line in file.read_text().splitlines()]
    return [(one["rule"], one["action"], one["text"]) for one in found]


def test_rules_see_the_machine_where_profilerconfig_puts_its_samples(job_tree: Any) -> None:
    waits = 'while ! grep -qs seen "$SM_OUTPUT_DIR/rules/"*; do sleep 0.1; done\n'
    job_tree.code("train.sh", waits)
    job_tree.code(
        "checks.py", 'def seen(point):\n    if point.name == "system/cpu/CPUUtilization/cpus":\n        return "seen"\n'
    )
    job_tree.configure(
        hyperparameters={"sagemaker_program": "train.sh", "trainshed_rules": '["checks.py:seen"]'},
        profiler={"ProfilingParameters": {"LocalPath": f"{job_tree.base}/p"}},
    )
    done = job_tree.train()

    assert done.status == 0, done.output
    assert findings(job_tree) == [("checks.py:seen", "warn", "seen")]


def test_a_rule_warns_once_and_its_finding_is_kept(job_tree: Any) -> None:
    done = train(job_tree, COUNTS.format(steps=100, loss=2.5, seconds=0), "metrics")

    assert done.status == 0, done.output
    said = "loss does not decrease: its mean over 10 values was 2.5 and is 2.5"
    assert warnings(done) == [f"trainshed: warning: rule LossNotDecreasing: {said}"]
    assert findings(job_tree) == [("LossNotDecreasing", "warn", said)]


def test_a_healthy_job_hears_nothing(job_tree: Any) -> None:
    done = train(job_tree, COUNTS.format(steps=100, loss="1 / (1 + step)", seconds=0), "all")

    assert (done.status, warnings(done)) == (0, [])
    assert not (job_tree.base / "output/rules").exists()


@pytest.mark.spine
def test_a_rule_stops_the_job(job_tree: Any) -> None:
    done = train(
        job_tree, COUNTS.format(steps=100, loss="float('nan')", seconds=600), [{"rule": "not_finite", "action": "stop"}]
    )

    assert done.status == 143, done.output
    assert warnings(done) == ["trainshed: warning: rule NotFinite: loss is nan; the job is stopped"]


def test_rules_of_ones_own_and_commands(job_tree: Any) -> None:
    note = job_tree.base / "told"
    rules = [
        {"rule": "checks.py:loss_above", "limit": 1.5, "action": "note", "command": f'echo "$1: $2" > {note}'},
        {"rule": "NotFinite", "command": "echo nobody is there >&2; exit 3"},
        "checks.py:broken", "checks.py:absent", "other.py:absent",
    ]  # fmt: skip
    done = train(job_tree, COUNTS.format(steps=3, loss="step if step < 2 else float('inf')", seconds=0), rules)

    assert done.status == 0, done.output
    assert set(warnings(done)) == {
        "trainshed: warning: rule checks.py:broken is dropped: ZeroDivisionError: division by zero",
        "trainshed: warning: rule checks.py:absent is not used: AttributeError: module 'trainshed_own_rules' has no "
        "attribute 'absent'",
        "trainshed: warning: rule other.py:absent is not used: FileNotFoundError: [Errno 2] No such file or directory: "
        f"'{job_tree.base}/code/other.py'",
        "trainshed: warning: rule NotFinite: loss is inf",
        "trainshed: warning: the command of rule NotFinite ended with 3: nobody is there",
    }
    assert note.read_text() == "checks.py:loss_above: loss is inf at step 2\n"
    assert ("checks.py:loss_above", "note", "loss is inf at step 2") in findings(job_tree)


@pytest.mark.spine
def test_a_rule_has_the_ranks_save(job_tree: Any) -> None:
    script = (
        "import json, os, time\nfrom trainshed import metrics\nmetrics.log(loss=float('nan'))\n"
        "while not os.path.exists(path := os.environ['TRAINSHED_NOTICE_FILE']):\n    time.sleep(0.05)\n"
        "notice = json.load(open(path))\nprint(notice['stop'], notice['reason'])\n"
    )
    done = train(job_tree, script, [{"rule": "NotFinite", "action": "checkpoint"}])

    assert (done.status, done.stdout) == (0, "False rule NotFinite: loss is nan\n"), done.output
    assert "rule NotFinite: loss is nan; the ranks are asked to save" in done.stderr


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("Overfitt", "'Overfitt' is not a rule; did you mean 'Overfit'?"),
        ([{"rule": "Overfit", "patient": 3}], "no parameter 'patient'; its parameters are: ratio_threshold, patience"),
        ([{"rule": "Overfit", "action": "panic"}], "'panic' is not an action; the actions are note, warn,"),
        ("[1", "is not valid JSON"),
    ],
)  # fmt: skip
def test_what_is_not_a_rule_is_refused(job_tree: Any, rules: Any, said: str) -> None:
    done = train(job_tree, "", rules)

    assert done.status == 2 and said in done.stderr, done.output


@pytest.mark.exact
@pytest.mark.torch
@pytest.mark.parametrize("bad", [1, pytest.param(None, marks=pytest.mark.heavy)])
def test_ranks_that_no_longer_have_the_same_weights(job_tree: Any, bad: int | None) -> None:
    done = train(job_tree, TRAINS.format(bad=bad), "all", distribution="torchrun", processes_per_host="2", tensor_steps="1")

    assert done.status == 0, done.output
    expected = ["trainshed: warning: rule RankDivergence: ranks 0 and 1 no longer have the same weights at step 4"]
    assert warnings(done) == (expected if bad else [])


SHARDED = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = fully_shard(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""
STAGES = """\
import torch
import trainshed.parallel as pipe
torch.set_num_threads(1)
pipe.init({"pipeline_parallel_degree": 2, "microbatches": 2})
torch.manual_seed(0)
layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(4)]
model = pipe.PipelineModel(torch.nn.Sequential(*layers))
optimizer = pipe.PipelineOptimizer(torch.optim.AdamW(model.parameters(), 0.01))
@pipe.step
def step(model, x):
    loss = model(x).square().mean()
    model.backward(loss)
    return loss
for _ in range(4):
    optimizer.zero_grad()
    step(model, torch.randn(8, 8))
    optimizer.step()
pipe.shutdown()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("script", "distribution"), [(SHARDED, "torchrun"), (STAGES, "pipeline")], ids=["FSDP2", "pipeline"]
)
def test_ranks_with_shards_or_stages_give_the_numbers_of_their_parts(job_tree: Any, script: str, distribution: str) -> None:
    done = train(job_tree, script, "all", distribution=distribution, processes_per_host="2", tensor_steps="1")

    assert (done.status, warnings(done)) == (0, []), done.output
    assert "no more numbers" not in done.output
    parts: dict[int, set[str]] = {}
    for file in (job_tree.base / "output/tensors").iterdir():
        for line in file.read_text().splitlines():
            point = json.loads(line)
            if point["MetricName"].startswith("gradients/max/"):
                parts.setdefault(point["Rank"], set()).add(point["MetricName"])
    assert parts.keys() == {0, 1} and all(parts.values())
    assert (parts[0] == parts[1]) == (distribution == "torchrun")
