"""`trainshed verify` tells scripts with a defect from those that train as one process does, and says the cause."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ranks
from verify.scripts import MILD, PLANTED, RIGHT, script

from support.runner_project import Project, project

pytestmark = [pytest.mark.torch, pytest.mark.exact]
__all__ = ["project"]
Told = tuple[int, list[str], str]


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, Told]]:
    """What is said of all scripts, which one start of ranks runs one after the other."""
    every = {name: source for name, (_, source) in PLANTED.items()} | RIGHT
    yield ranks.run(2, "verify.workers_of_scripts:play", every)[0]


@pytest.mark.planted
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found_with_its_cause(name: str, told: dict[str, Told]) -> None:
    expected = PLANTED[name][0]
    status, causes, text = told[name]
    assert causes[:1] == [expected], text
    assert status == (0 if expected in MILD else 1), text
    assert ("warning: " if expected in MILD else "wrong: ") in text and "hint: " in text


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_script_is_no_alarm(name: str, told: dict[str, Told]) -> None:
    status, causes, text = told[name]
    assert (status, causes) == (0, []), text
    assert "it trains as one process does" in text


def test_the_first_module_that_differs_is_named(told: dict[str, Told]) -> None:
    assert "'2' on rank 0 is the first module whose output is another one" in told["softmax of a part"][-1]
    assert "'1' takes the mean and variance" in told["batch norm by rank"][-1]


def command(project: Project, *words: str) -> Any:
    return project.trainshed("verify", *words, OMP_NUM_THREADS="1")


@pytest.mark.spine
def test_a_job_file_is_verified_with_its_hyperparameters_and_channels(project: Project) -> None:
    code = script(
        optimizer="optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[sys.argv.index('--lr') + 1]))"
    )
    seen = (
        "import os, sys\nassert os.listdir(os.environ['SM_CHANNEL_TRAIN']) == ['rows'] and os.environ['SM_HP_LR'] == '0.5'\n"
    )
    (project.folder / "data").mkdir()
    (project.folder / "data/rows").write_text("")
    (project.folder / "train.py").write_text(seen + code)
    (project.folder / "job.yaml").write_text(
        "program: train.py\nhyperparameters: {lr: 0.5}\nchannels: {train: data}\n"
        "distribution: {kind: torchrun, processes_per_host: 2}\n"
    )
    done = command(project, "job.yaml", "--steps", "2", "--json")

    assert done.status == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ranks"], found["steps"], found["causes"]) == (2, 2, [])
    assert found["rows"] == {"losses": "agree", "gradients": "agree", "weights": "agree"}


def test_what_cannot_be_compared_is_said(project: Project) -> None:
    noise = "loss = F.cross_entropy(model(x), y)"
    model = """
        class Noise(nn.Module):
            def forward(self, x): return x + torch.randn_like(x)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 4), Noise())"""
    (project.folder / "train.py").write_text(script(model=model, loss=noise))
    done = command(project, "train.py", "-n", "2")

    assert done.status == 3, done.stderr
    assert "not compared with one process: the model draws random numbers" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("missing.py",), "missing.py"),
        (("train.py", "-n", "1"), "-n must be at least 2"),
        ((), "say what is to be verified"),
        (("train.py", "--channel", "train=s3://bucket/rows"), "is not a folder on this machine"),
    ],
)
def test_what_cannot_be_verified_is_refused(words: tuple[str, ...], message: str, project: Project) -> None:
    (project.folder / "train.py").write_text("print(1)\n")
    done = command(project, *words)

    assert done.status in (1, 2) and message in done.stderr and "Traceback" not in done.stderr


def test_two_lines_verify_a_training_that_goes_on(tmp_path: Path) -> None:
    first = "import torch\ncall = torch.nn.Module._call_impl\nfrom trainshed.parallel import verify\nverify.watch(2)\n"
    last = "assert torch.nn.Module._call_impl is call, 'it is still looked at'\nprint('trained to the end')\n"
    path = tmp_path / "train.py"
    path.write_text(first + script().replace("range(9)", "range(2)") + last)
    logs = ranks.run_script(2, str(path))

    assert "it trains as one process does" in logs[0] and all("trained to the end" in log for log in logs)


def test_the_one_process_of_a_training_leaves_its_checkpoints_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "train.py").write_text(
        f"import os\nos.environ.setdefault('SM_CHECKPOINT_DIR', {str(tmp_path / 'kept')!r})\n"
        "from trainshed.parallel import verify\nverify.watch(2)\n"
        "import torch, torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('gloo')\ntorch.manual_seed(0)\n"
        "model = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)\n"
        "path, begin = os.path.join(os.environ['SM_CHECKPOINT_DIR'], 'last.pt'), 0\n"
        "if os.path.exists(path):\n"
        "    begin, weights, state = torch.load(path)\n    model.load_state_dict(weights)\n"
        "    optimizer.load_state_dict(state)\n"
        f"alone = os.environ['WORLD_SIZE'] == '1'\nassert not alone or {str(tmp_path / 'kept')!r} not in path\n"
        "dist.barrier()\nmodel = DistributedDataParallel(model)\n"
        "for step in range(begin, begin + 3):\n"
        "    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))\n"
        "    optimizer.zero_grad()\n    model(x).square().mean().backward()\n    optimizer.step()\n"
        "    if int(os.environ['RANK']) == 0:\n"
        "        torch.save((step + 1, model.module.state_dict(), optimizer.state_dict()), path)\n"
        "        print('saved', step + 1, os.environ['WORLD_SIZE'], path)\n"
        "dist.barrier()\n"
    )
    for _ in range(2):  # from the start, and from the checkpoint of the first training
        logs = ranks.run_script(2, str(tmp_path / "train.py"))
        assert "it trains as one process does" in logs[0], logs[0]

    saved = [line for line in logs[0].splitlines() if line.startswith("saved")]
    assert len(saved) == 3 and all(line.split()[2] == "2" for line in saved), "the one process's lines are in the job's log"


def test_why_the_one_process_of_a_training_failed_is_told(tmp_path: Path) -> None:
    first = "import os\nfrom trainshed.parallel import verify\nverify.watch(2)\n"
    last = "print('loss: 0.5')\nassert os.environ['WORLD_SIZE'] == '2', 'it wants two'\n"
    (tmp_path / "train.py").write_text(first + script().replace("for ", last + "for ", 1))
    log = ranks.run_script(2, str(tmp_path / "train.py"))[0]

    assert "verify: the one process failed:\nTraceback" in log and "AssertionError: it wants two" in log, log
    assert log.count("loss: 0.5") == 1


def test_stages_are_not_compared(project: Project) -> None:
    (project.folder / "train.py").write_text(
        "import torch, torch.distributed as dist, torch.nn.functional as F\n"
        "from torch.distributed.pipelining import PipelineStage, ScheduleGPipe\n"
        "dist.init_process_group('gloo')\n"
        "rank, world, model = dist.get_rank(), dist.get_world_size(), torch.nn.Linear(8, 8)\n"
        "stage = PipelineStage(model, rank, world, torch.device('cpu'))\n"
        "schedule, optimizer = ScheduleGPipe(stage, 2, loss_fn=F.mse_loss), torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(4):\n"
        "    x = torch.ones(8, 8)\n"
        "    schedule.step(*([x] if rank == 0 else []), **({'target': x} if rank == world - 1 else {}))\n"
        "    optimizer.step()\n"
    )
    done = command(project, "train.py", "-n", "2")

    assert done.status == 3, done.stderr
    assert "the model is in stages" in done.stdout and "wrong" not in done.stdout
