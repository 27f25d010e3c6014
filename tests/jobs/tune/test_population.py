"""A population whose members go on from each other's checkpoints, for real."""

from __future__ import annotations

import pytest

from support.runner_project import wait_until

from .conftest import Tunes

POPULATION = """\
import os, torch
from trainshed.checkpoint import Checkpointer
epochs, rate = int(os.environ["SM_HP_EPOCHS"]), float(os.environ["SM_HP_RATE"])
weight = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(weight.weight, 1.0)
optimizer = torch.optim.SGD(weight.parameters(), lr=rate)
with Checkpointer.for_job(model=weight, optimizer=optimizer) as checkpoints:
    step = checkpoints.restore()
    print("begins at", step, "with", weight.weight.item(), "and", optimizer.param_groups[0]["lr"], flush=True)
    for step in range(step, epochs):
        (weight.weight**2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"metric loss={weight.weight.item() ** 2} step={step + 1}", flush=True)
    checkpoints.save(epochs)
"""


@pytest.mark.exact
@pytest.mark.torch
def test_a_population_goes_on_from_the_best_and_with_its_own_rates(tunes: Tunes) -> None:
    tunes.project.write({"population.py": POPULATION})
    strategy = "{kind: population, size: 2, generations: 3, length: epochs, interval: 2, quantile: 0.5, seed: 3}"
    text = "job: {program: population.py}\nsearch: {rate: {low: 1e-3, high: 0.4}}\nobjective: minimize loss\n"
    file = tunes.file(f"{text}strategy: {strategy}\nmax_parallel_jobs: 2\n")
    first = tunes.project.start("tune", file)
    wait_until(lambda: len(tunes.trials()) >= 3, "the second generation")
    first.kill()
    first.wait()
    done = tunes.project.trainshed("tune", file)

    assert done.status == 0, done.output
    trials = tunes.trials()
    assert [trial["state"] for trial in trials] == ["Completed"] * 6
    losses = {trial["number"]: trial["value"] for trial in trials}
    for trial in trials[2:]:
        generation = (trial["number"] - 1) // 2
        before = trials[2 * generation - 2 : 2 * generation]
        assert trial["parent"] == min(before, key=lambda one: one["value"])["number"], "half of two is replaced by the other"
        log = (tunes.folder() / f"trials/{trial['number']:04d}/logs/algo-1.log").read_text()
        weight, rate = log.partition("begins at")[2].split()[2], log.partition(" and ")[2].split()[0]
        assert f"begins at {2 * generation} with" in log and float(weight) ** 2 == pytest.approx(losses[trial["parent"]])
        assert float(rate) == pytest.approx(float(trial["values"]["rate"]))
    assert not (tunes.folder() / "population/0001").exists() and (tunes.folder() / "population/0006").exists()
