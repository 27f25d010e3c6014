"""The ledger: sums equal the wall clock, whatever overlaps."""

from __future__ import annotations

import random

from trainshed.observe.ledger import ACCOUNTS, PAUSED, Cut, Ledger, Span, divide, ledger_of

START = 1_790_000_000.0


def made(*spans: tuple[str, float, float], end: float = 100.0, cuts: tuple[Cut, ...] = ()) -> Ledger:
    ours = [Span(name, START + begin, START + over) for name, begin, over in spans]
    return ledger_of(START, START + end, {"algo-1": [ours]}, cuts)


def test_what_nothing_tells_is_other() -> None:
    ledger = made(("steps", 10, 90))

    assert ledger.accounts == {"steps": 80_000_000, "other": 20_000_000}
    assert ledger.goodput == 0.8


def test_of_two_that_overlap_what_is_nearer_to_a_step_counts() -> None:
    ledger = made(("placing", 0, 50), ("starting", 40, 70), ("steps", 60, 100), ("checkpoint", 90, 95))

    assert ledger.accounts == {
        "checkpoint": 5_000_000, "steps": 35_000_000, "starting": 20_000_000, "placing": 40_000_000,
    }  # fmt: skip


def test_time_between_a_run_and_its_resumption_is_not_the_jobs() -> None:
    ledger = made(("steps", 0, 20), (PAUSED, 20, 80), ("steps", 80, 100), cuts=(Cut("resume", START + 80),))

    assert ledger.wall == 40_000_000 and ledger.goodput == 1.0
    assert [(part.kind, part.accounts) for part in ledger.parts] == [
        ("start", {"steps": 20_000_000}),
        ("resume", {"steps": 20_000_000}),
    ]


def test_a_host_is_the_mean_of_its_ranks_and_the_job_that_of_its_hosts() -> None:
    quick, slow = [Span("steps", START, START + 10)], [Span("steps", START, START + 4)]
    ledger = ledger_of(START, START + 10, {"algo-1": [quick, slow], "algo-2": [slow]})

    assert ledger.hosts == {
        "algo-1": {"steps": 7_000_000, "other": 3_000_000},
        "algo-2": {"steps": 4_000_000, "other": 6_000_000},
    }
    assert ledger.accounts == {"steps": 5_500_000, "other": 4_500_000}


def test_where_no_step_is_told_apart_no_goodput_is_said() -> None:
    assert ledger_of(START, START + 5, {}, measured=False).goodput is None
    assert ledger_of(START, START + 5, {}).accounts == {"other": 5_000_000}


def test_the_largest_losses_come_first() -> None:
    ledger = made(("steps", 0, 70), ("starting", 70, 76), ("again", 76, 96))

    assert ledger.losses(2) == [("again", 20_000_000), ("starting", 6_000_000)]


def test_sums_equal_the_wall_clock_to_the_microsecond_whatever_spans_there_are() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        end = chance.uniform(1, 1e5)

        def spans(chance: random.Random = chance, end: float = end) -> list[Span]:
            begins = [START + chance.uniform(-100, end + 100) for _ in range(chance.randrange(200))]
            return [Span(chance.choice(list(ACCOUNTS)), begin, begin + chance.expovariate(10 / end)) for begin in begins]

        hosts = {
            f"algo-{number}": [spans() for _ in range(chance.randrange(1, 5))] for number in range(chance.randrange(1, 4))
        }
        cuts = [Cut("restart", START + chance.uniform(0, end)) for _ in range(chance.randrange(5))]
        ledger = ledger_of(START, START + end, hosts, cuts)
        wall = round((START + end) * 1e6) - round(START * 1e6)

        assert ledger.wall == wall == sum(ledger.accounts.values())
        assert {sum(sums.values()) for sums in ledger.hosts.values()} == {wall}
        assert len(ledger.parts) == len(cuts) + 1


def test_a_time_is_divided_where_parts_begin() -> None:
    parts = divide([0, 4_000_000, 10_000_000], [Span("steps", 3, 6)])

    assert parts == [{"steps": 1_000_000, "other": 3_000_000}, {"steps": 2_000_000, "other": 4_000_000}]
