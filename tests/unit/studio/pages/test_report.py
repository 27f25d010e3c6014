"""The report: what it shows, what it must never do, and how large it may get."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trainshed.metrics.points import Point, line_of
from trainshed.studio.pages.curves import groups
from trainshed.studio.pages.facts import LARGEST_PICTURE, gather
from trainshed.studio.pages.report import LARGEST, report

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202e</style></svg>"
RECORD: dict[str, Any] = {
    "state": "Failed", "started": 1000.0, "ended": 1100.0, "exit_code": 1,
    "phases": [{"name": "preparing", "started": 1000, "seconds": 5}, {"name": "training", "started": 1005, "seconds": 90}],
    "restarts": [{"at": 1050.0, "reason": "rank 1 was killed"}],
    "versions": {"trainshed": "0.2", "torch": "2.13.0"},
    "cluster": {"hosts": ["algo-1"], "rank": 0, "world_size": 2, "hardware": {"cpus": 8, "memory_bytes": 1 << 34}},
    "job": {"name": "digits", "hyperparameters": {"epochs": 3, "api_key": "hunter2-secret"}, "program": "train.py"},
    "failure": {"kind": "UserError", "summary": "rank 1 failed: ValueError: bad", "hint": "look at the data"},
}  # fmt: skip


class Reader(HTMLParser):
    """What a browser would see: tags, attributes, text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


def lay(folder: Path, record: dict[str, Any] | None = None, points: list[Point] | None = None, failure: str = "") -> Path:
    """An output folder as `train` leaves it."""
    (folder / "data/run").mkdir(parents=True)
    (folder / "data/run/algo-1.json").write_text(json.dumps(RECORD if record is None else record))
    if points:
        (folder / "metrics/trainshed").mkdir(parents=True)
        (folder / "metrics/trainshed/log-1.json").write_text("".join(map(line_of, points)))
    if failure:
        (folder / "failure").write_text(failure)
    return folder


def test_where_the_time_went_is_told_of_this_host_alone_or_of_the_run(tmp_path: Path) -> None:
    output = lay(tmp_path, points=[Point("loss", 1.0, 1005.0 + step, step) for step in range(10, 50, 10)])
    own = Reader(report(gather("a", [[(str(output), f"{output}/data")]], {}))).words
    told = {
        "Share": 0.25,
        "WallSeconds": 60.0,
        "Seconds": {"steps": 15.0, "x": HOSTILE},
        "Losses": [HOSTILE],
        "Hosts": {"a": 1},
    }
    whole = Reader(report(gather("a", [[(str(output), f"{output}/data")]], {}, goodput=told)))
    none = report(gather("a", [[(str(output), f"{output}/data")]], {}, goodput={}))

    assert "goodput 40.0 % of 1 min 40 s" in own and "of this host alone, from the start of `train`" in own
    assert "goodput 25.0 % of 1 min 00 s" in whole.words
    assert "Where the time of the job went" not in none


def test_findings_of_rules_are_told_with_their_place(tmp_path: Path) -> None:
    output = lay(tmp_path)
    finding = {"rule": "LossSpike", "action": "warn", "text": f"loss was 9 {HOSTILE}", "time": 1.0, "step": 7, "rank": 0}
    (output / "rules").mkdir()
    (output / "rules/algo-1.json").write_text(json.dumps(finding) + "\nno JSON\n[1]\n")
    page = report(gather("a", [[(str(output), f"{output}/data")]], {}))

    assert "LossSpike: loss was 9 <script>" in Reader(page).words and "(step 7, rank 0)" in Reader(page).words


def page(*outputs: Path, status: dict[str, Any] | None = None, secrets: tuple[str, ...] = ()) -> str:
    attempts = [[(str(output), f"{output}/data")] for output in outputs]
    return report(gather("a-run", attempts, status or {}, secrets))


def losses(count: int, name: str = "loss") -> list[Point]:
    return [Point(name, 2.0 / step, 1005.0 + step / 100, step, None, 0) for step in range(1, count + 1)]


def test_it_tells_what_the_files_tell(tmp_path: Path) -> None:
    both = [*losses(100), *(Point("eval_loss", 3.0 / n, 1005.0 + n / 10, n * 10, None, 0) for n in range(1, 10))]
    words = Reader(page(lay(tmp_path, points=both, failure="UserError: bad\n\nTraceback\n  deep"))).words

    for said in ("a-run", "Failed", "rank 1 failed: ValueError: bad", "look at the data", "Traceback", "eval_loss", "epochs",
                 "2.13.0", "restarted: rank 1 was killed", "8 CPUs, 17.2 GB", "1 min 40 s", "logarithmic"):  # fmt: skip
        assert said in words, said
    assert "hunter2-secret" not in words


def test_what_others_wrote_is_text_and_the_page_can_load_run_and_send_nothing(tmp_path: Path) -> None:
    record = json.loads(json.dumps(RECORD).replace("digits", "x"))
    record["job"] |= {"name": HOSTILE, "hyperparameters": {HOSTILE: HOSTILE}, "program": HOSTILE,
                      "channels": [{"name": HOSTILE, "path": HOSTILE}], "settings": {HOSTILE: [HOSTILE]}}  # fmt: skip
    record |= {"state": HOSTILE, "versions": {HOSTILE: HOSTILE}, "compiler": {"choice": HOSTILE}}
    record["phases"] = [{"name": HOSTILE, "started": 1000.0, "seconds": 5.0}]
    record["restarts"] = [{"at": 1001.0, "reason": HOSTILE}]
    record["failure"] = dict.fromkeys(("kind", "summary", "place", "hint", "host"), HOSTILE)
    status = {"TrainingJobStatus": HOSTILE, "FailureReason": HOSTILE, "Trainshed": {"Tags": {HOSTILE: HOSTILE}}}
    output = lay(tmp_path / "o", record, losses(30, HOSTILE) + losses(5, f"val_{HOSTILE}"), failure=HOSTILE)
    text = page(output, status=status)
    seen = Reader(text)

    assert not {"img", "iframe", "link", "object", "embed", "form", "a", "base"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name.startswith("on") or name in ("src", "href", "action", "style")]
    assert seen.tags.count("style") == 1 and "\x1b" not in text and "\u202e" not in text and "url(" not in text
    policy = next(value for name, value in seen.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy
    scripts = re.findall(r"<script([^>]*)>", text)
    assert scripts.count("") == 1 == policy.count("script-src 'sha256-") and "</script>" not in scripts
    assert {*scripts} == {"", ' type="application/json"'}, "one that runs, and numbers"
    assert "<script>alert(1)</script>" in seen.words


def test_pictures_of_the_program_are_shown_and_cannot_do_anything(tmp_path: Path) -> None:
    output = lay(tmp_path / "out")
    folder = output / "data/pictures"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(b"elsewhere")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "good.svg").write_text("<svg><script>alert(1)</script></svg>")
    (folder / "large.png").write_bytes(bytes(LARGEST_PICTURE + 1))
    for name in ("good.svg", "link.png", "large.png", "../../failure.svg", "gone.png", "page.html"):
        told = {"title": f"{name} {HOSTILE}", "file": name, "note": "a note"}
        (folder / f"{name.strip('./').replace('/', '-')}.json").write_text(json.dumps(told))
    (folder / "odd.json").write_text("[]")

    page = report(gather("x", [[(str(output), f"{output}/data")]], {}))
    seen = Reader(page)
    sources = [value for name, value in seen.attributes if name == "src"]
    assert [source.partition(",")[0] for source in sources] == ["data:image/svg+xml;base64"]
    assert re.findall(r"<script([^>]*)>", page).count("") == 1, "the engine of the charts alone"
    assert "What the model does" in seen.words and "a note" in seen.words


def test_tables_of_the_program_are_drawn_as_text(tmp_path: Path) -> None:
    output = lay(tmp_path)
    tables = output / "data" / "tables"
    tables.mkdir(parents=True)
    (tables / "columns.json").write_text(
        json.dumps({"title": "the channel train: 2 rows", "columns": ["name", "kind"], "rows": [["day", "<b>date</b>"], 7]})
    )
    for at, other in enumerate(["[1]", "{", '{"title": 3}', '{"title": "x", "columns": 1, "rows": [1]}']):
        (tables / f"odd{at}.json").write_text(other)

    drawn = page(output)

    assert "<h2>the channel train: 2 rows</h2>" in drawn
    assert "<th>name</th><th>kind</th>" in drawn and "<td>day</td><td>&lt;b&gt;date&lt;/b&gt;</td>" in drawn
    assert drawn.count("<h2>") == page(lay(tmp_path / "other")).count("<h2>") + 1


def test_the_policy_lets_the_pages_own_style_and_script_in(tmp_path: Path) -> None:
    import base64
    import hashlib

    text = page(lay(tmp_path, points=losses(5)))
    for name in ("style", "script"):
        content = text.partition(f"<{name}>")[2].partition(f"</{name}>")[0]
        assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in text.partition("<style>")[0]


@pytest.mark.safety
def test_secrets_that_are_handed_over_are_masked_wherever_they_stand(tmp_path: Path) -> None:
    secret = "tell-nobody & <ever>"
    record = {**RECORD, "job": {"name": "x", "program": secret, "hyperparameters": {"a": f"see {secret}"}}}
    output = lay(tmp_path, record, losses(5, f"loss of {secret}"), failure=f"UserError: {secret}")
    words = Reader(page(output, secrets=(secret,))).words

    assert "tell-nobody" not in words and "loss of" in words


def test_a_page_of_very_many_long_series_stays_small_and_says_what_is_left_out(tmp_path: Path) -> None:
    points = [
        Point(f"metric {number} of a rather long name", math.sin(number * step), 1000.0 + step, step, None, 0)
        for number in range(120)
        for step in range(300)
    ]
    text = page(lay(tmp_path, points=points))
    words = Reader(text).words

    assert len(text.encode()) <= LARGEST < 300_000
    left_out = re.search(r"(\d+) more metrics are in the run's files", words)
    assert left_out and int(left_out[1]) + text.count('{"kind":"lines"') == 120


def test_numbers_that_are_not_finite_are_marked_and_counted(tmp_path: Path) -> None:
    points = [point.replace(value=math.nan) if 40 <= (point.step or 0) < 43 else point for point in losses(100)]
    text = page(lay(tmp_path, points=[*points, Point("gap", math.inf, 1006.0, 1, None, 0)]))

    assert "3 NaN, the first at step 40" in text and "1 inf" in text
    assert '"odd":[[40,"NaN",1],[41,"NaN",1],[42,"NaN",1]]' in text


def test_attempts_are_one_curve_and_each_has_its_row(tmp_path: Path) -> None:
    first = lay(tmp_path / "1", {**RECORD, "state": "Interrupted"}, losses(50))
    again = {**RECORD, "state": "Completed", "started": 2000.0, "ended": 2100.0, "failure": None, "restarts": []}
    again["phases"] = [{"name": "training", "started": 2000.0, "seconds": 100.0}]
    later = [point.replace(step=(point.step or 0) + 30, time=point.time + 1000) for point in losses(50)]
    transitions = [
        {"Status": "Training", "StartTime": "1970-01-01T00:16:40+00:00", "EndTime": "1970-01-01T00:18:20+00:00"},
        {"Status": "Interrupted", "StartTime": "1970-01-01T00:18:20+00:00", "EndTime": "1970-01-01T00:33:20+00:00",
         "StatusMessage": "taken away"},
    ]  # fmt: skip
    status = {"TrainingJobStatus": "Completed", "SecondaryStatusTransitions": transitions}
    words = Reader(page(first, lay(tmp_path / "2", again, later), status=status)).words

    assert "Completed" in words and "algo-1, no. 1" in words and "algo-1, no. 2" in words
    assert "interrupted: taken away" in words and "Why it failed" not in words


def test_a_pipelines_schedule_is_drawn(tmp_path: Path) -> None:
    for kind in ("simple", "interleaved", "interleaved1f1b", "interleavedzerobubble", "dualpipev"):
        asked = {
            "pipeline_parallel_degree": 2,
            "microbatches": 4,
            "pipeline": kind,
            "virtual_stages": 2 if kind in ("interleaved1f1b", "dualpipev") else 1,
        }
        record = {**RECORD, "job": {"name": "x", "distribution": {"kind": "pipeline", "pipeline": asked}}}
        words = Reader(page(lay(tmp_path / kind, record))).words

        assert "Pipeline schedule" in words and "ranks wait for" in words and "backward of microbatch 3" in words, kind


@pytest.mark.parametrize(
    "record",
    [
        [], "x", {"phases": [None, {"name": [], "started": "x", "seconds": -1}], "cluster": [], "job": "x", "failure": []},
        {"job": {"hyperparameters": [1], "settings": 3, "channels": "x"}},
        {"job": {"distribution": {"pipeline": {"microbatches": "x", "pipeline": 3}}}},
        {"started": 1e400, "ended": "x", "versions": [], "cluster": {"hosts": 3, "hardware": {"memory_bytes": "x"}}},
        {"restarts": {"a": 1}, "interruption": 3, "state": {"a": 1}, "cluster": {"rank": None, "hardware": {"gpus": 1e99}}},
    ],
)  # fmt: skip
def test_a_record_of_any_other_form_costs_what_it_should_have_told(record: Any, tmp_path: Path) -> None:
    status = {"SecondaryStatusTransitions": [1, {"StartTime": "x"}], "Trainshed": [], "HyperParameters": 1}

    assert "loss" in page(lay(tmp_path, record, losses(3)), status=status)


def test_a_folder_with_nothing_in_it_is_a_page_too(tmp_path: Path) -> None:
    assert "a-run" in page(tmp_path) and "<script" not in page(tmp_path), "where nothing is drawn, nothing runs"
    assert "a-run" in report(gather("a-run", [], {}))


def test_training_and_validation_share_a_chart() -> None:
    made = groups(["lr", "val_acc", "train/loss", "eval_loss", "acc", "test_acc", "loss_val", "throughput"])

    assert [(group.title, [name for _, name in group.members]) for group in made] == [
        ("loss", ["train/loss", "eval_loss", "loss_val"]),
        ("acc", ["acc", "val_acc", "test_acc"]),
        ("lr", ["lr"]),
        ("throughput", ["throughput"]),
    ]


def test_the_profile_is_drawn_for_each_host_and_rank(tmp_path: Path) -> None:
    from trainshed.observe.steps import PHASES, Window
    from trainshed.observe.steps import line_of as step_line
    from trainshed.observe.system import FOLDER, file_of, sample_text

    output = lay(tmp_path, points=losses(60))
    for second in range(1005, 1065):
        path = output / "profiler" / FOLDER / file_of(1005, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        values = [
            ("cpu", "cpus", "CPUUtilization", 50.0), ("memory", "memory", "MemoryUsedPercent", 20.0),
            ("network", "eth0", "ReceiveBytesPerSecond", 3e6), ("network", "eth1", "ReceiveBytesPerSecond", 1e6),
            ("process", "rank0", "CPUUtilization", 99.0), ("gpu", HOSTILE, "GPUUtilization", 10.0),
        ]  # fmt: skip
        with path.open("ab") as file:
            file.write(
                sample_text([(a, b.replace('"', "").replace("\x1b", ""), c, d) for a, b, c, d in values], "algo-1", second)
            )
    (output / "profiler/steps").mkdir()
    for rank in (0, 1):
        phases = {name: 0.05 for name in PHASES} | {"data": 1.0 - 0.05 * (len(PHASES) - 1)}
        windows = [Window(1010.0 + n, 10 * n, 10, 1.0, 0.2, phases, 320) for n in range(1, 30)]
        facts = json.dumps({"Facts": {"Rank": rank, "World": 2, "Workers": 0, "Cpus": 8}}) + "\n"
        (output / f"profiler/steps/algo-1.rank-{rank}.1.json").write_text(facts + "".join(map(step_line, windows)))
    seen = Reader(page(output))

    for said in ("input-bound", "rank 0", "rank 1", "Milliseconds of a step", "CPU, % of all cores", "mean 50, most 50",
                 "Network, MB/s", "mean 4, most 4", "Ranks, % of one core", "GPU, %"):  # fmt: skip
        assert said in seen.words, said
    assert "img" not in seen.tags


def test_a_page_of_everything_at_its_largest_stays_small(tmp_path: Path) -> None:
    from trainshed.observe.steps import PHASES, Window
    from trainshed.observe.steps import line_of as step_line

    long = "<&>" * 2000
    record = json.loads(json.dumps(RECORD))
    record["job"] |= {
        "hyperparameters": {f"{n} {long}": long for n in range(300)}, "settings": {f"{n} {long}": long for n in range(100)},
        "channels": [{"name": long, "path": long}] * 100, "program": long, "name": long,
        "distribution": {"kind": long, "pipeline": {"pipeline_parallel_degree": 16, "microbatches": 64}},
    }  # fmt: skip
    record |= {"versions": {f"{n} {long}": long for n in range(100)}, "compiler": {f"{n}": long for n in range(500)}}
    record["compiler"]["choice"] = long
    record["phases"] = [{"name": f"{n} {long}", "started": 1000.0 + n, "seconds": 1.0} for n in range(1500)]
    record["restarts"] = [{"at": 1000.0 + n, "reason": long} for n in range(1500)]
    record["failure"] = dict.fromkeys(("kind", "summary", "place", "hint", "host"), long)
    output = lay(tmp_path, record, [p for n in range(40) for p in losses(200, f"{n} {long[:200]}")], long * 10)
    (output / "rules").mkdir()
    finding = {"rule": long, "action": "note", "text": long, "time": 1.0}
    (output / "rules/algo-1.json").write_text((json.dumps(finding) + "\n") * 500)
    (output / "profiler/steps").mkdir(parents=True)
    for rank in range(100):
        windows = [Window(1010.0 + n, 10 * n, 10, 1.0, 0.2, dict.fromkeys(PHASES, 0.125), 320) for n in range(1, 100)]
        facts = json.dumps({"Facts": {"Rank": rank}}) + "\n"
        (output / f"profiler/steps/algo-1.rank-{rank}.1.json").write_text(facts + "".join(map(step_line, windows)))
    status = {"FailureReason": long, "Trainshed": {"Tags": {f"{n} {long}": long for n in range(100)}}}
    status["SecondaryStatusTransitions"] = [  # type: ignore[assignment]
        {"Status": long, "StartTime": "2026-01-01T00:00:00+00:00", "EndTime": "2026-01-01T00:01:00+00:00"}
    ] * 500

    assert len(page(output, status=status).encode()) < 300_000
