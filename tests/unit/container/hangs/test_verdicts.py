"""From stacks to activities, and from activities to the sentence that names the straggler."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.container.hangs.activity import COLLECTIVE, ENDED, GAVE_UP, UNKNOWN, WORK, Activity, activity
from trainshed.container.hangs.hang_report import HostReport, part_of, put_together, write
from trainshed.container.hangs.stacks import Frame
from trainshed.container.hangs.stragglers import Where, judge, lines, ranges

CODE = "/opt/ml/code"
SITE = "/usr/lib/python3.11/site-packages"
C10D = f"{SITE}/torch/distributed/distributed_c10d.py"
WRAPPER = Frame(f"{SITE}/torch/distributed/c10d_logger.py", 83, "wrapper")
PYTHON = "/usr/lib/python3.11"
DATA = f"{SITE}/torch/utils/data/dataloader.py"
USER = (Frame(f"{CODE}/steps.py", 60, "step"), Frame(f"{CODE}/train.py", 9, "<module>"))


@pytest.mark.parametrize(
    ("inner", "kind", "what"),
    [
        ([Frame(C10D, 3252, "all_reduce"), WRAPPER], COLLECTIVE, "all_reduce"),
        ([Frame(C10D, 1, "gather"), WRAPPER, Frame(C10D, 2, "gather_object"), WRAPPER], COLLECTIVE, "gather_object"),
        ([Frame(C10D, 1, "_store_based_barrier"), Frame(C10D, 2, "init_process_group")], COLLECTIVE, "init_process_group"),
        ([Frame(f"{SITE}/torch/autograd/graph.py", 1, "_engine_run_backward")], COLLECTIVE, "backward"),
        ([Frame(f"{SITE}/torch/distributed/checkpoint/filesystem.py", 1, "write")], WORK, "saving or loading a checkpoint"),
        ([Frame(f"{PYTHON}/threading.py", 1, "wait"), Frame(DATA, 2, "__next__")],
         WORK, "data loading"),
        ([Frame(f"{PYTHON}/threading.py", 1, "wait")], WORK, "waiting for another thread"),
        ([Frame(f"{PYTHON}/ssl.py", 1, "read"), Frame(f"{SITE}/torch/serialization.py", 1, "save")], WORK, "saving a file"),
        ([Frame(f"{PYTHON}/selectors.py", 1, "select"), Frame(DATA, 2, "_next")],
         WORK, "data loading"),
        ([Frame(f"{SITE}/torch/serialization.py", 1, "_save")], WORK, ""),
        ([Frame(f"{SITE}/torch/serialization.py", 1, "save")], WORK, "saving a file"),
        ([], WORK, ""),
    ],
)  # fmt: skip
def test_a_stack_tells_what_a_rank_is_doing_and_where(inner: list[Frame], kind: str, what: str) -> None:
    assert activity((*inner, *USER), CODE) == Activity(kind, what, "steps.py:60", "step")


def test_the_users_own_data_set_is_data_loading_at_its_own_line() -> None:
    stack = (Frame(f"{CODE}/data.py", 7, "__getitem__"), Frame(DATA, 2, "__next__"), *USER)

    assert activity(stack, CODE) == Activity(WORK, "data loading", "data.py:7", "__getitem__")


def test_without_any_line_of_the_users_the_innermost_line_is_named() -> None:
    assert activity((Frame("/usr/lib/python3.11/ssl.py", 5, "read"),), CODE).place == "/usr/lib/python3.11/ssl.py:5"


WAITS = Activity(COLLECTIVE, "all_reduce", "train.py:60")
BARRIER = Activity(COLLECTIVE, "barrier", "train.py:72")
LOADS = Activity(WORK, "data loading", "train.py:41")
WORKS = Activity(WORK, "", "train.py:50", "evaluate")
GONE = Activity(ENDED, "exit status 0")
DARK = Activity(UNKNOWN, "stopped by a signal")


def ranks(*activities: Activity) -> list[Where]:
    """Two ranks a host."""
    return [Where(rank, f"algo-{rank // 2 + 1}", activity) for rank, activity in enumerate(activities)]


@pytest.mark.parametrize(
    ("activities", "sentence", "stragglers"),
    [
        (
            (WAITS, WAITS, WAITS, LOADS),
            "rank 3 on algo-2 is in data loading at train.py:41 while ranks 0, 1, 2 wait in all_reduce at train.py:60",
            [3],
        ),
        ((GONE, WAITS), "rank 0 on algo-1 has ended (exit status 0) while rank 1 waits in all_reduce at train.py:60", [0]),
        (
            (WAITS, BARRIER, WAITS),
            "rank 1 on algo-1 waits in barrier at train.py:72 while ranks 0, 2 wait in all_reduce at train.py:60",
            [1],
        ),
        (
            (BARRIER, WORKS, WORKS, WORKS),
            "ranks 1, 2, 3 on algo-1 and algo-2 are at train.py:50 in evaluate while rank 0 waits in barrier at train.py:72",
            [1, 2, 3],
        ),
        (
            (WAITS, DARK, LOADS, WAITS),
            "rank 1 on algo-1 shows no Python stack (stopped by a signal), rank 2 on algo-2 is in data loading at "
            "train.py:41 while ranks 0, 3 wait in all_reduce at train.py:60",
            [1, 2],
        ),
        (
            (WORKS, WORKS, LOADS),
            "rank 2 on algo-2 is in data loading at train.py:41 while ranks 0, 1 are at train.py:50 in evaluate",
            [2],
        ),
        (
            (WAITS, BARRIER),
            "the ranks are at different places: rank 0 on algo-1 waits in all_reduce at train.py:60, "
            "rank 1 on algo-1 waits in barrier at train.py:72",
            [],
        ),
        ((WORKS, LOADS), "the ranks are at different places: ", []),
        ((WAITS, WAITS), "all ranks wait in all_reduce at train.py:60: no rank is late", []),
        ((WORKS, WORKS), "all ranks are at train.py:50 in evaluate", []),
        ((LOADS,), "rank 0 on algo-1 is in data loading at train.py:41", []),
        ((), "no rank is running", []),
    ],
)
def test_the_straggler_is_the_rank_that_the_others_wait_for(
    activities: tuple[Activity, ...], sentence: str, stragglers: list[int]
) -> None:
    verdict = judge(ranks(*activities))

    assert verdict.sentence.startswith(sentence)
    assert [where.rank for where in verdict.stragglers] == stragglers


def test_a_program_without_ranks_is_called_the_script() -> None:
    assert judge([Where(None, "algo-1", LOADS)]).sentence == "the script on algo-1 is in data loading at train.py:41"


def test_many_ranks_are_told_in_few_words_and_lines() -> None:
    many = ranks(*[Activity(WORK, "", f"train.py:{min(number % 30, 20)}") for number in range(512)])
    report = put_together(
        "asked for", [HostReport("algo-1", tuple(many), "", recorded=8)], [f"algo-{number}" for number in range(300, 310)]
    )

    assert len(report.console("/a")) <= 12 and all(len(line) < 600 for line in report.console("/a"))
    assert len(lines(many)) == 8
    assert ranges([0, 1, 2, 3, 4, 6, 9]) == "0-4, 6, 9" and ranges([5, 7]) == "5, 7"


def test_a_part_travels_as_json_and_keeps_every_ranks_stacks_within_bounds() -> None:
    import json

    from trainshed.container.hangs.sample import Sample

    part = part_of("algo-1", [Sample(where, "x" * 300_000, "") for where in ranks(WAITS, LOADS)], moved=True)
    back = HostReport.of(json.loads(json.dumps(part.plain())))

    assert back == part and len(part.text) < 210_000
    assert "=== rank 0 on algo-1 waits in all_reduce" in part.text and "=== rank 1 on algo-1 is in data loading" in part.text


def test_reports_are_counted_on_and_a_folder_that_cannot_be_written_costs_only_the_file(tmp_path: Path) -> None:
    assert [write(str(tmp_path), "algo-1", "text") for _ in range(2)] == [
        f"{tmp_path}/hang-algo-1-{number}.txt" for number in (1, 2)
    ]
    (tmp_path / "file").write_text("")
    assert write(f"{tmp_path}/file/below", "algo-1", "text") == ""


LOST = Activity(GAVE_UP)
NOBODY = ": no rank is late; the cause is the network, sizes that differ, or a rank that is one call behind"


@pytest.mark.parametrize(
    ("activities", "sentence"),
    [
        ([LOST, LOADS],
         "rank 1 on algo-1 is in data loading at train.py:41 while rank 0 has given up waiting in a collective"),
        ([LOST, WAITS, WAITS, LOADS],
         "rank 3 on algo-1 is in data loading at train.py:41 while ranks 1, 2 wait in all_reduce at train.py:60"),
        ([LOST, LOST, GONE],
         "rank 2 on algo-1 has ended (exit status 0) while ranks 0, 1 have given up waiting in a collective"),
        ([LOST, WAITS, WAITS, BARRIER],
         "rank 3 on algo-1 waits in barrier at train.py:72 while ranks 1, 2 wait in all_reduce at train.py:60"),
        ([DARK, LOST, LOADS],
         "rank 2 on algo-1 is in data loading at train.py:41 while rank 1 has given up waiting in a collective"),
        ([DARK, LOST],
         "rank 0 on algo-1 shows no Python stack (stopped by a signal) while rank 1 has given up waiting in a collective"),
        ([LOST, WAITS, WAITS], "all other ranks wait in all_reduce at train.py:60" + NOBODY),
        ([LOST, LOST], "all ranks have given up waiting in a collective" + NOBODY),
        ([LOST], "rank 0 on algo-1 has given up waiting in a collective"),
    ],
)  # fmt: skip
def test_ranks_whose_collective_timed_out_have_waited_for_those_that_are_elsewhere(
    activities: list[Activity], sentence: str
) -> None:
    assert judge(Where(rank, "algo-1", doing) for rank, doing in enumerate(activities)).sentence == sentence
