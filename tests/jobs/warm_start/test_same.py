"""A rank that was forked from an interpreter sees what one sees that was started plainly: each row of the probe's report."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from jobs.warm_start.probe import PACKAGE, SCRIPT

# Started twice, these are other numbers, and so are those that stand in names of files.
MOVING = (
    "MASTER_PORT",
    "SM_MASTER_PORT",
    "TRAINSHED_TRAIN_ID",
    "TRAINSHED_NOTICE_FILE",
    "TORCHELASTIC_ERROR_FILE",
    "SM_TRAINING_ENV",
)


def started(tree: Any, script: str, *, warm: bool, package: str = PACKAGE, **environ: str) -> Any:
    """Runs two ranks of a script; returns how `train` ended, and its run record's notes of how ranks were started."""
    packages = tree.tmp.parent / "site-packages"
    packages.mkdir(exist_ok=True)
    (packages / "installed.py").write_text(package)
    tree.code("train.py", script)
    tree.configure(
        hyperparameters={
            "sagemaker_program": "train.py",
            "trainshed_distribution": "torchrun",
            "trainshed_processes_per_host": "2",
            "trainshed_warm_start": "auto" if warm else "off",
            "epochs": "3",
        },
        resources=tree.hosts(1),
    )
    path = os.pathsep.join((tree.environ()["PYTHONPATH"], str(packages)))
    done = tree.train(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", **environ)
    record = json.loads(tree.text("output/data/run/algo-1.json") or "{}")
    return done, (record.get("starts") or [{}])[-1]


@pytest.fixture(scope="module")
def reports(job_tree_of_module: Any) -> dict[str, Any]:
    """What both ranks saw, by how they were started."""
    found: dict[str, Any] = {}
    tree = job_tree_of_module
    for how in ("plain", "warm"):
        done, start = started(tree, SCRIPT, warm=how == "warm", PYTHONHASHSEED="7", PYTHONWARNINGS="default")
        assert done.status == 0, done.output
        ranks = [json.loads((tree.base / f"model/{rank}.json").read_text()) for rank in range(2)]
        found[how] = {"ranks": ranks, "start": start, "printed": printed(done.stdout), "errors": printed(done.stderr)}
    return found


def printed(text: str) -> list[str]:
    """The lines of each rank in their order; those of different ranks come as they please."""
    return sorted((line for line in text.splitlines() if line.startswith("[algo-1:")), key=lambda line: line[:10])


def steady(value: Any) -> Any:
    """Without what is another number at each start."""
    if isinstance(value, str):
        name = value.partition("=")[0]
        return name if name in MOVING else value
    if isinstance(value, list):
        if len(value) == 2 and value[0] in MOVING:
            return value[0]
        return [steady(one) for one in value]
    return {key: steady(one) for key, one in value.items()} if isinstance(value, dict) else value


ROWS = [line.split('"')[1] for line in SCRIPT.splitlines() if line.startswith('        "') and '": ' in line]


@pytest.mark.exact
@pytest.mark.parametrize("row", sorted({*ROWS} - {"pid", "random", "generator of a package", "key", "system"}))
def test_a_forked_rank_sees_what_a_plain_one_sees(reports: dict[str, Any], row: str) -> None:
    for rank in range(2):
        plain, warm = (reports[how]["ranks"][rank][row] for how in ("plain", "warm"))
        assert steady(warm) == steady(plain)


@pytest.mark.exact
def test_the_ranks_were_forked_and_print_the_same(reports: dict[str, Any]) -> None:
    assert reports["warm"]["start"].items() >= {"warm": 2, "plain": 0, "why": ""}.items()
    assert "starts" not in reports["plain"]["start"]
    assert reports["warm"]["printed"] == reports["plain"]["printed"]
    assert reports["warm"]["errors"] == reports["plain"]["errors"]
    assert "[algo-1:1] got SIGUSR2" in reports["warm"]["printed"]


@pytest.mark.exact
@pytest.mark.parametrize("row", ["pid", "random", "generator of a package", "key", "system"])
def test_what_each_process_draws_for_itself_differs_between_forked_ranks(reports: dict[str, Any], row: str) -> None:
    first, second = (rank["unique"][row] for rank in reports["warm"]["ranks"])
    assert first != second


TORCH = """\
import torch
import numpy
import json, os
found = [torch.initial_seed(), torch.rand(1).item(), numpy.random.rand(), torch.get_num_threads()]
with open(f"{os.environ['SM_MODEL_DIR']}/{os.environ['RANK']}.json", "w") as file:
    json.dump(found, file)
torch.nn.Linear(4, 4)(torch.rand(2, 4)).sum().backward()
"""


@pytest.mark.torch
@pytest.mark.exact
def test_the_generators_of_torch_and_numpy_are_each_ranks_own(job_tree: Any) -> None:
    done, start = started(job_tree, TORCH, warm=True)
    first, second = (json.loads(job_tree.text(f"model/{rank}.json") or "") for rank in range(2))

    assert (done.status, start["warm"], start["why"]) == (0, 2, ""), done.output
    assert all(one != other for one, other in zip(first[:3], second[:3], strict=True))
    assert first[3] == second[3]
