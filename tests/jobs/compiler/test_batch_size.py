"""The largest batch: the search on models of memory, in a process whose memory is limited for real, and as a run mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import options_of
from support.notice_jobs import TOOLKIT
from support.properties import given, st
from trainshed.base.errors import TrainshedError
from trainshed.cli.parser import UsageError
from trainshed.cli.run import check
from trainshed.contract.wire.batch_search import largest_batch, scaled_learning_rate
from trainshed.runner.job.job import Job
from trainshed.runner.tools.batch_size import fitted

GIB = 2**30


@given(
    lambda: dict(
        fixed=st.integers(0, 20 * GIB),
        each=st.integers(2**16, GIB),
        limit=st.integers(GIB, 80 * GIB),
        start=st.sampled_from([1, 4, 8, 64]),
        step=st.sampled_from([1, 2, 8]),
        most=st.sampled_from([100, 1 << 20]),
    ),
    example={"fixed": 0, "each": GIB, "limit": GIB, "start": 64, "step": 1, "most": 100},
    max_examples=300,
)
def test_where_memory_is_linear_the_answer_is_exact(
    fixed: int, each: int, limit: int, start: int, step: int, most: int
) -> None:
    asked: list[int] = []

    def peak_of(batch: int) -> int | None:
        asked.append(batch)
        held = fixed + each * batch
        return held if held <= limit else None

    found = largest_batch(peak_of, lambda: limit, start=start, step=step, most=most, tries=14)
    room = int(limit * 0.9)
    exact = min(most, max(0, (room - fixed) // each)) // step * step

    assert len(set(asked)) == len(asked) <= 14
    assert all(batch % step == 0 and 0 < batch <= max(most, step) for batch in asked)
    if found.batch:
        assert found.peak_bytes <= room and found.batch <= exact
        assert exact - found.batch <= step or len(asked) == 14
    else:
        assert asked[-1] == step or fixed + each * asked[-1] > room


def test_a_few_tries_are_enough() -> None:
    """As measured for GPT-2: 2.1 GiB for the model, 0.42 GiB a sequence, on 24 GB."""
    found = largest_batch(lambda b: int((2.1 + 0.42 * b) * GIB), lambda: 24 * GIB, start=4, tries=8)

    assert found.batch == 46 and len(found.tries) <= 4


def test_memory_in_steps_and_noise_never_gives_a_batch_that_does_not_fit() -> None:
    def peak_of(batch: int) -> int | None:
        held = GIB + batch * 90_000_000 // (512 << 20) * (512 << 20) + (batch * 7919 % 13) * 10_000_000
        return held if held < 16 * GIB else None

    found = largest_batch(peak_of, lambda: 16 * GIB, start=8)
    peak = peak_of(found.batch)

    assert peak is not None and peak <= 0.9 * 16 * GIB and found.batch > 100


def test_the_learning_rate_follows_the_batch() -> None:
    assert scaled_learning_rate(1e-5, 32, 45) == pytest.approx(1e-5 / 32 * 45)


# --- in the script ---------------------------------------------------------------------------------------------------

SCRIPT = """
import json, resource
import torch
from trainshed.compiler import find_batch_size
from trainshed.compiler.batch_size import limit_bytes
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
MIB = 1 << 20
with open("/proc/self/status") as file:
    used = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
LIMIT = used + 400 * MIB
resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
tried = []
def step(batch):
    tried.append(batch)
    room = torch.ones(batch * 16 * MIB, dtype=torch.uint8)  # 16 MiB for each example
    model(torch.randn(4, 64)).sum().backward()
    del room
found = find_batch_size(step, start=125, most=6250)
print(json.dumps([found.batch, found.limit_bytes == LIMIT, [t.batch for t in found.tries if t.peak_bytes is None]]))
"""


@pytest.mark.torch
def test_a_process_that_really_runs_out_of_memory_goes_on() -> None:
    pytest.importorskip("torch")
    environ = {"PYTHONPATH": str(TOOLKIT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)
    assert done.returncode == 0, done.stderr
    batch, limited, failed = __import__("json").loads(done.stdout)

    assert limited and 125 in failed  # the first try was refused by the allocator
    assert 0 < batch <= 25


@pytest.mark.torch
def test_another_error_is_the_scripts_own() -> None:
    pytest.importorskip("torch")
    from trainshed.compiler import find_batch_size

    def step(batch: int) -> None:
        raise ValueError("not of memory")

    with pytest.raises(ValueError, match="not of memory"):
        find_batch_size(step, start=1)


@pytest.mark.parametrize("wrong", [{"start": 0}, {"tries": 1}, {"reserve": 0.95}, {"multiple_of": 0}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    pytest.importorskip("torch")
    from trainshed.compiler import find_batch_size

    with pytest.raises(ValueError, match="must be at least 1"):
        find_batch_size(lambda batch: None, **wrong)  # type: ignore[arg-type]


# --- as a run mode ---------------------------------------------------------------------------------------------------


def test_the_flags_are_read_from_the_command_line() -> None:
    words = ["j.yaml", "--find-batch-size=b", "--hp", "b=4", "--scale-lr", "lr"]
    options = options_of("run", words)
    assert (options.find_batch_size, options.scale_lr, options.what) == ("b", "lr", "j.yaml")
    with pytest.raises(SystemExit):
        options_of("run", ["j.yaml", "--find-batch-size"])
    with pytest.raises(UsageError, match="goes with --find-batch-size"):
        check(options_of("run", ["--scale-lr", "lr"]))


@pytest.mark.parametrize(("hyperparameters", "rate"), [({}, ""), ({"b": "four"}, ""), ({"b": 4}, "lr")])
def test_hyperparameters_that_are_not_there_are_told(hyperparameters: dict[str, object], rate: str) -> None:
    with pytest.raises(TrainshedError, match="the job has no hyperparameter of this name"):
        fitted(Job("j", hyperparameters=hyperparameters), "b", rate, {})


JOB = """
import argparse, resource
import torch
torch.set_num_threads(1)
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int)
parser.add_argument("--lr", type=float)
args = parser.parse_args()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
with open("/proc/self/status") as file:
    used = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
resource.setrlimit(resource.RLIMIT_DATA, (used + (200 << 20),) * 2)
for step in range(5):
    room = torch.ones(args.batch_size << 24, dtype=torch.uint8)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    del room
print(f"TRAINED {args.batch_size} {args.lr}", flush=True)
"""


@pytest.mark.spine
@pytest.mark.torch
@pytest.mark.timeout(300)  # a search, each probe in a process of its own
def test_a_run_finds_its_batch_scales_its_rate_and_trains(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(JOB)
    words = ["--find-batch-size", "batch_size", "--scale-lr", "lr", "--hp", "batch_size=2", "--hp", "lr=0.001"]
    done = subprocess.run(
        [sys.executable, "-m", "trainshed.cli", "run", "train.py", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={"PYTHONPATH": str(TOOLKIT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
    )
    output = done.stdout + done.stderr

    assert done.returncode == 0, output
    (line,) = {line.partition("TRAINED ")[2] for line in output.splitlines() if "TRAINED " in line}
    batch, rate = line.split()
    assert 2 < int(batch) <= 12 and float(rate) == pytest.approx(0.001 * int(batch) / 2, rel=1e-5)
    assert f"batch_size: 2 -> {batch}" in output and len(list((tmp_path / "runs").iterdir())) == 1
