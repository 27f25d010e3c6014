"""Rules on losses: each fires for its own fault, none for a healthy curve."""

from __future__ import annotations

import math
import random

import pytest

from trainshed.contract.wire.rules import ON_METRICS, WantedRule, wanted_rules
from trainshed.metrics.points import Point
from trainshed.studio.rules.rule import is_loss, is_validation
from trainshed.studio.rules.watching import Rules

chance = random.Random(7)


def curve(name: str, *values: float, every: int = 1) -> list[Point]:
    return [Point(name, value, float(step * every), step * every) for step, value in enumerate(values)]


def falling(count: int, noise: float = 0.05, floor: float = 0.3) -> list[float]:
    return [floor + 2 * math.exp(-step / 40) + chance.gauss(0, noise) for step in range(count)]


def merged(*curves: list[Point]) -> list[Point]:
    return sorted((point for one in curves for point in one), key=lambda point: point.time)


def fired(points: list[Point], now: float | None = None) -> dict[str, str]:
    """What all rules on metrics say, by their names."""
    rules = Rules(wanted_rules("metrics"), "")
    end = points[-1].time if points else 0.0
    found = {wanted.name: finding.text for wanted, finding in rules.take(points, end if now is None else now)}
    assert rules.problems == []
    return found


FAULTY: dict[str, list[Point]] = {
    "LossNotDecreasing": curve("loss", *[2.3 + chance.gauss(0, 0.01) for _ in range(200)]),
    "LossSpike": curve("loss", *falling(150), 40.0, *falling(4, floor=0.35)),
    "Overfit": merged(
        curve("train_loss", *[2 / (1 + step / 10) for step in range(200)]),
        curve("eval_loss", 1.5, 1.2, 0.9, 0.8, 0.9, 1.0, 1.1, 1.2, every=20),
    ),
    "Overtraining": merged(
        curve("loss", *falling(200), *[0.3] * 400),
        curve("val_loss", 2.0, 1.0, *[0.5 - 0.0001 * n for n in range(28)], every=20),
    ),
    "NotFinite": curve("loss", 2.0, 1.5, math.nan, math.nan),
}
HEALTHY: dict[str, list[Point]] = {
    "noisy": curve("loss", *falling(500, noise=0.2)),
    "converged": curve("loss", *falling(200), *[0.3 + chance.gauss(0, 0.03) for _ in range(2000)]),
    "converged to nothing": curve("loss", *[2 * math.exp(-step / 20) * chance.uniform(0.5, 2) for step in range(500)]),
    "few values": curve("loss", 1.0, 1.2, 1.1),
    "validation above training, both falling": merged(
        curve("loss", *falling(300)), curve("val_loss", *[1.5 * value for value in falling(15, noise=0)], every=20)
    ),
    "negative": curve("loss", *[value - 3 for value in falling(300)]),
    "warmup, then falls": curve("loss", *[2.3] * 5, *falling(300, floor=0.2)),
    "learning rate and scale": merged(curve("loss", *falling(100)), curve("loss_scale", *[65536.0] * 100)),
    "other ranks": [point.replace(rank=rank) for point in curve("loss", *falling(200)) for rank in (0, 1)],
    "accuracy": curve("accuracy", *[1 - value / 3 for value in falling(200)]),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_fires_its_own_rule(name: str) -> None:
    assert set(fired(FAULTY[name])) == {name}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_fires_none(name: str) -> None:
    assert fired(HEALTHY[name]) == {}


def test_a_loss_that_rises_again_is_named_with_its_numbers() -> None:
    points = curve("train/loss", *falling(200, noise=0), *[0.3 + step / 100 for step in range(60)])

    assert fired(points)["LossNotDecreasing"].startswith("train/loss rises: its mean over 10 values was 0.3")


def test_a_job_that_measures_nothing_any_more_has_stalled() -> None:
    points = curve("loss", *falling(50))

    assert fired(points, now=1700.0) == {}
    assert fired(points, now=1900.0) == {"StalledTraining": "no metric has come for 1851 s"}


@pytest.mark.parametrize("name", ["loss", "train_loss", "train/loss", "Loss", "eval_loss", "val/ce_loss", "loss_D"])
def test_names_of_losses(name: str) -> None:
    assert is_loss(name)
    assert is_validation(name) == name.startswith(("eval", "val"))


@pytest.mark.parametrize("name", ["lossless", "loss_scale", "accuracy", "weight_loss_weight", "gloss", "train_runtime"])
def test_names_of_what_is_no_loss(name: str) -> None:
    assert not is_loss(name)


def test_every_rule_on_metrics_has_a_faulty_training() -> None:
    assert {*FAULTY, "StalledTraining"} == set(ON_METRICS)


def test_a_rule_fires_once() -> None:
    rules = Rules([WantedRule("NotFinite", {})], "")
    points = curve("loss", math.inf, math.inf)

    assert len(rules.take(points, 0.0)) == 1 and rules.take(points, 0.0) == []
