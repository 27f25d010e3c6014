"""The judge is just, and a hang or a lost rank costs one case alone."""

from __future__ import annotations

from typing import Any

import pytest

from hostile.combinations import ALONE, COMBINATIONS
from hostile.player import Played, play
from support.lazy import Lazy

torch: Any = Lazy("torch")
judge: Any = Lazy("hostile.judge")
results: Any = Lazy("hostile.results")
pytestmark = pytest.mark.torch


def played(*ranks: tuple[Any, ...]) -> Played:
    return Played("models/topic/case", [as_tensors(*rank) if rank[0] == "done" else rank for rank in ranks])


def done(loss: float, **gradients: float) -> tuple[Any, ...]:
    return "done", loss, gradients


def as_tensors(kind: str, loss: float, gradients: dict[str, float]) -> tuple[Any, ...]:
    return kind, {"loss": torch.tensor(loss)}, {"gradients": {n: torch.tensor([g]) for n, g in gradients.items()}}


def expected() -> Played:
    return played(done(1.0, a=2.0, b=3.0))


@pytest.mark.parametrize(
    ("ranks", "outcome"),
    [
        ((done(1.0, a=2.0), done(1.0, b=3.0)), "exact"),
        ((done(1.0, a=2.0, b=3.00001), done(1.0, b=3.0)), "close"),
        ((done(1.0, a=2.0), done(1.01, b=3.0)), "wrong"),
        ((done(1.0, a=2.0), done(1.0, b=3.01)), "wrong"),
        ((done(1.0, a=2.0), done(1.0)), "wrong"),
        ((done(1.0, a=2.0, b=3.0), done(1.0, b=float("nan"))), "wrong"),
        ((("refused", "PipelineError", "no", "do this", ""), ("refused", "PipelineError", "no", "do this", "")), "refused"),
        ((("refused", "PipelineError", "no", "do this", ""), done(1.0, b=3.0)), "crash"),
        (
            (("refused", "PipelineError", "no", "", ""), ("refused", "PipelineError", "", "", "Timed out waiting 9ms")),
            "hang",
        ),
        ((("crashed", "KeyError", "x", "", ""), ("refused", "PipelineError", "no", "", "")), "crash"),
    ],
)
def test_what_ranks_found_is_judged(ranks: tuple[Any, ...], outcome: str) -> None:
    assert judge.judge(played(*ranks), expected()).outcome == outcome


def test_a_rank_that_is_gone_is_a_crash() -> None:
    one = Played("models/topic/case", [*played(done(1.0, a=2.0)).found, None], died="rank 1 (status 3)")
    assert judge.judge(one, expected()).outcome == "crash"


def test_a_refusal_without_a_way_over_is_named() -> None:
    refused = ("refused", "PipelineError", "no", "", "")
    assert "WITHOUT A WAY OVER" in judge.judge(played(refused, refused), expected()).why


def test_misuse_that_nothing_refused_is_wrong() -> None:
    assert judge.judge(expected(), expected(), misuse=True).outcome == "wrong"


def test_results_are_kept_and_counted(tmp_path: Any) -> None:
    kept = results.Results(tmp_path)
    kept.put(expected(), "2-1f1b", judge.judge(played(done(1.0, a=2.0, b=3.1)), expected()))
    text = results.table(results.Results(tmp_path), ["models/topic/case", "models/topic/other"], set())
    assert "| 2-1f1b | 0 | 0 | 0 | 0 | 1 | 0 | 1 |" in text and "* `models/topic/case` (2-1f1b): wrong: gradients b" in text


@pytest.mark.matrix
@pytest.mark.heavy
def test_a_case_that_ends_badly_costs_no_other() -> None:
    names = [
        "models/routes/tree_by_recursion",
        "trials/dies",
        "trials/waits",
        "trials/differs",
        "models/routes/tree_by_recursion",
    ]
    two = COMBINATIONS["2-1f1b"]
    alone = next(play(names[:1], ALONE, 1))
    other = next(play(names[3:4], ALONE, 1))
    found = list(play(names, two, 1, limit=100.0))
    verdicts = [judge.judge(one, other if one.name == "trials/differs" else alone).outcome for one in found]
    assert verdicts == ["exact", "crash", "hang", "wrong", "exact"]
