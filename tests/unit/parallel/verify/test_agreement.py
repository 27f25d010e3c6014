"""What is said of a run by its evidence alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.lazy import Lazy

torch = Lazy("torch")
pytestmark = pytest.mark.torch


def evidence(rank: int, scale: float, *, rows: Any = ("a", "b"), rate: float = 0.1) -> Any:
    """Of one step, whose gradient is a fixed one times `scale`."""
    from trainshed.parallel.engine.verify.tensor_digest import sketch
    from trainshed.parallel.verify.evidence import Evidence, Pass, Update

    given = torch.arange(1.0, 7.0)
    gradients = {"weight": sketch(given * scale)}
    moved = {"weight": sketch(given * scale * rate)}
    update = Update([Pass(list(rows), loss=1.0)], gradients, gradients, moved, rates=[rate])
    return Evidence(rank, 2, start={"weight": sketch(given)}, updates=[update])


def judged(*scales: float, alone: float = 1.0, rate: float = 0.1) -> Any:
    from trainshed.parallel.verify.judgement import judge

    ranks = [evidence(rank, scale, rows=[f"row {rank}"], rate=rate) for rank, scale in enumerate(scales)]
    return judge(ranks, evidence(0, alone, rows=["row 1", "row 0"]))


@pytest.mark.parametrize(
    ("scales", "expected"),
    [((1.0, 1.0), []), ((2.0, 2.0), ["sum"]), ((0.5, 0.5), ["averaged twice"]), ((1.0, 3.0), ["not reduced"])],
)
def test_a_factor_tells_the_cause(scales: tuple[float, ...], expected: list[str]) -> None:
    verdict = judged(*scales)

    assert [one.key for one in verdict.causes] == expected
    assert verdict.status == bool(expected)


def test_a_rate_by_the_number_of_ranks_is_a_note_and_its_square_is_not() -> None:
    linear, twice = judged(1.0, 1.0, rate=0.2), judged(1.0, 1.0, rate=0.4)

    assert (linear.status, linear.rows["weights"]) == (0, "agree but for the learning rate") and linear.notes
    assert [one.key for one in twice.causes] == ["rate"] and not twice.notes


def test_other_batches_are_not_compared() -> None:
    from trainshed.parallel.verify.judgement import judge, told

    verdict = judge([evidence(0, 2.0, rows=["a"]), evidence(1, 2.0, rows=["b"])], evidence(0, 1.0, rows=["c", "d", "e"]))

    assert verdict.status == 3 and "had other batches in step 1: 3 rows, and the ranks 2" in told(verdict)


def test_ranks_without_a_step_or_a_forward_are_no_crash() -> None:
    from trainshed.parallel.verify.judgement import judge

    none, one, alone = evidence(0, 1.0), evidence(1, 1.0), evidence(0, 1.0)
    none.updates, none.error = [], "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    one.error = "ValueError: bad label"
    failed = judge([none, one], alone)
    (cause,) = failed.causes
    assert cause.key == "error" and "rank 1 ended with ValueError: bad label" in cause.text
    assert failed.why_not == "the ranks took no step together"
    ranks = [evidence(0, 1.0), evidence(1, 1.0)]
    for some in (*ranks, alone):
        some.updates[0].passes.clear()
    assert judge(ranks, alone).status == 0


def test_evidence_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    from trainshed.parallel.verify.evidence import Loader, load

    one = evidence(1, 2.0)
    one.loaders = [Loader(4, [True], [3])]
    one.save(tmp_path / "rank-1.json")

    assert load(tmp_path / "rank-1.json") == one
