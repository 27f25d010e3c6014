"""What ranks agree on after a step, from what each of them has seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainshed.checkpoint.agreement import Agreed, Agreement
from trainshed.checkpoint.ranks import Ranks
from trainshed.contract.wire.notice import Acknowledgement, Notice, read_answers, write_notice
from trainshed.contract.wire.variables import NOTICE_FILE

pytestmark = pytest.mark.safety

CALM = (False, False, -math.inf, 0.0)  # what a rank without a notice gives to the comparison


class TwoRanks(Ranks):
    """This rank, and another one that has seen `other`."""

    def __init__(self) -> None:
        super().__init__()
        self.world_size = 2
        self.other: tuple[float, ...] = CALM
        self.reason = ""

    def highest(self, values: Sequence[float]) -> list[float]:
        return [max(pair) for pair in zip(values, self.other, strict=True)]

    def gather(self, value: Any) -> list[Any]:
        return [value, self.reason]


@pytest.fixture
def notice_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a supervisor writes its notices."""
    path = str(tmp_path / "notice.json")
    monkeypatch.setenv(NOTICE_FILE, path)
    return path


@pytest.fixture
def said() -> list[str]:
    """What the user reads."""
    return []


@pytest.fixture
def ranks() -> TwoRanks:
    """Both ranks."""
    return TwoRanks()


@pytest.fixture
def agreement(notice_file: str, ranks: TwoRanks, said: list[str]) -> Iterator[Agreement]:
    """That of this rank."""
    agreement = Agreement(ranks, said.append, check_seconds=1.0)
    yield agreement
    agreement.close()


def notice(number: int, stop: bool, **fields: Any) -> Notice:
    return Notice(number=number, source="test", reason=f"reason {number}", stop=stop, received=0.0, **fields)


def test_without_a_notice_nothing_is_to_be_done(agreement: Agreement) -> None:
    assert agreement.agree(1, 0.0, []) == Agreed(stop=False, save=False, seconds_left=math.inf, highest=())


def test_what_another_rank_has_seen_holds_here_too(agreement: Agreement, ranks: TwoRanks) -> None:
    ranks.other = (True, True, -30.0, 0.0, 7.0)

    assert agreement.agree(1, 0.0, [9.0]) == Agreed(stop=True, save=True, seconds_left=30.0, highest=(9.0,))


def test_a_notice_that_only_warns_asks_for_one_save(agreement: Agreement, notice_file: str, said: list[str]) -> None:
    write_notice(notice_file, notice(1, stop=False))

    assert agreement.agree(1, 0.0, []).save
    assert agreement.agree(2, 0.0, []).save, "until it is made"
    agreement.saving()
    assert not agreement.agree(3, 0.0, []).save
    assert said == ["notice: reason 1"]


def test_a_more_urgent_notice_counts_and_a_milder_one_after_it_does_not(
    agreement: Agreement, notice_file: str, tmp_path: Path, said: list[str]
) -> None:
    write_notice(notice_file, notice(1, stop=False))
    assert not agreement.agree(1, 0.0, []).stop
    write_notice(notice_file, notice(2, stop=True, deadline=0.0))
    agreed = agreement.agree(2, 0.0, [])
    assert agreed.stop and agreed.seconds_left == 0.0
    write_notice(notice_file, notice(3, stop=False))
    assert agreement.agree(3, 0.0, []).stop

    agreement.answer(3, "saved as it", "/checkpoints/it")

    assert said[-1] == "stopping after step 3: reason 2; saved as it"
    assert read_answers(notice_file) == [Acknowledgement(rank=0, step=3, checkpoint="/checkpoints/it", reason="reason 2")]


def test_the_reason_may_be_another_ranks(agreement: Agreement, ranks: TwoRanks, said: list[str]) -> None:
    ranks.reason = "the other's"
    agreement.answer(3, "saved as it", "")

    assert said == ["stopping after step 3: the other's; not saved"]


def test_ranks_of_a_fast_loop_compare_only_every_few_steps(agreement: Agreement, ranks: TwoRanks) -> None:
    assert agreement.due(0)
    ranks.other = (False, False, -math.inf, 0.25)  # the slower rank decides: one second is four of its steps

    agreement.agree(10, 0.125, [])

    assert [step for step in range(20) if agreement.due(step)] == [*range(14, 20)]


def test_an_answer_that_cannot_be_written_is_said(
    agreement: Agreement, said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(NOTICE_FILE, str(tmp_path / "file/notice"))

    agreement.answer(1, "", "")

    assert said[-1].startswith("the answer to the supervisor could not be written: ")
