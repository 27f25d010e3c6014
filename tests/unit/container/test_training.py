"""`HostTraining`: its outcome whichever step it ends in, and that nobody who speaks for it shows a secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainshed.base.secrets import MASK, secret_values
from trainshed.base.voice import Voice
from trainshed.container.hangs.hang_watch import HangWatch
from trainshed.container.notices import Notices
from trainshed.container.restarts import Ended, Restarts
from trainshed.container.roster.roster import Alone
from trainshed.container.supervisor.launch_plan import Outcome
from trainshed.contract.outcome import Failure

CANARY = "canary-7f3a91"


@pytest.mark.safety
def test_restarts_notices_and_hang_reports_never_show_a_secret(tmp_path: Path) -> None:
    lines: list[str] = []
    say = Voice(lines.append, secret_values({"api_key": CANARY})).say
    failure = Failure(kind="UserError", summary=f"the script exited with 1: {CANARY}", exit_code=1)

    assert Restarts(2, (str(tmp_path),), say, lambda: ()).after(Ended(Outcome(results=()), failure))
    notices = Notices(str(tmp_path / "notice.json"), {}, say)
    notices.interrupted_elsewhere(f"algo-2 was stopped: {CANARY}", 5.0)
    HangWatch("algo-1", str(tmp_path), "/code", say, Alone("algo-1"), seconds=10.0, stop=False).say(f"rank 0 is at {CANARY}")

    assert [MASK in line for line in lines] == [True, True, True], lines
    assert CANARY not in "\n".join(lines)


@pytest.mark.safety
def test_a_job_says_its_secret_nowhere_from_its_first_failure_to_its_last(job_tree: Any) -> None:
    job_tree.code(f"train_{CANARY}.py", f"raise ValueError('{CANARY}')\n")
    job_tree.configure(
        hyperparameters={"sagemaker_program": f"train_{CANARY}.py", "api_key": CANARY, "trainshed_max_restarts": "1"}
    )

    done = job_tree.train()
    ours = [line for line in done.stderr.splitlines() if line.startswith("trainshed: ")]

    assert done.status == 1
    assert any(line.startswith("trainshed: restart 1 of 1, from the beginning: ") for line in ours), ours
    assert CANARY not in "\n".join(ours)
    assert CANARY not in (job_tree.failure or "").split("\n\n")[0]


@pytest.mark.parametrize(
    ("broken", "status"),
    [
        ({"trainshed_distribution": "nonsense"}, 2),  # read
        ({"sagemaker_program": "gone.py"}, 1),  # prepare
        ({"trainshed_min_nodes": "2", "trainshed_distribution": "torchrun"}, 1),  # plan
    ],
    ids=["read", "prepare", "plan"],
)
def test_a_failure_in_any_step_before_the_run_leaves_the_outcome(broken: dict[str, str], status: int, job_tree: Any) -> None:
    job_tree.code("train.py")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py", **broken})

    done = job_tree.train()

    assert (done.status, job_tree.success) == (status, None)
    assert job_tree.failure
    assert f"Reporting training FAILURE (exit status {status})" in done.stderr


def test_a_dry_run_of_a_job_that_cannot_be_planned_says_why_and_writes_nothing(job_tree: Any) -> None:
    job_tree.code("train.py")
    job_tree.configure(hyperparameters={"sagemaker_program": "gone.py"})

    done = job_tree.train("--dry-run")

    assert done.status == 1 and "gone.py" in done.stderr
    assert not (job_tree.base / "output").exists()


def test_the_run_record_of_a_good_job_has_its_phases(job_tree: Any) -> None:
    job_tree.code("train.py")
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py"})

    assert job_tree.train().status == 0

    (record,) = (job_tree.base / "output/data/run").iterdir()
    data = json.loads(record.read_text())
    assert data["state"] == "Completed"
    assert [phase["name"] for phase in data["phases"]] == ["preparing", "training"]
