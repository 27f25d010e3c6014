"""The ledger of a job from the files that it leaves: schedules of faults whose truth is known, and files of other forms."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from trainshed.observe import job_marks
from trainshed.observe.goodput import headline, losses, rows, share_of, told
from trainshed.observe.job_marks import HostFiles, job_ledger
from trainshed.observe.steps import RankSteps, Window, line_of

START = 1_790_000_000.0


def iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}+00:00"


class Schedule:
    """Plays one job through, notes what `train`, its runner and its ranks would note, and how long what took in truth."""

    def __init__(self, folder: Path, seed: int, numbered: bool) -> None:
        self.folder, self.chance, self.numbered = folder, random.Random(seed), numbered
        self.now = START
        self.truth: dict[str, float] = {}
        self.transitions: list[dict[str, str]] = []
        self.attempts: list[list[HostFiles]] = []
        self.ranks = self.chance.choice((1, 2, 4))
        self.hosts = [f"algo-{number + 1}" for number in range(self.chance.choice((1, self.ranks)))]
        self.slow = self.chance.choice((0.0, 0.3)) if self.ranks > 1 else 0.0  # of a step, that rank 0 needs more
        self.pace = self.chance.uniform(0.05, 0.4)
        self.highest = self.saved = 0
        self.saved_at = 0.0
        self.goal = self.chance.randrange(3000, 6000)
        self.every = self.chance.randrange(50, 400)
        self.record: dict[str, Any] = {}

    def spend(self, account: str, seconds: float) -> None:
        self.now += seconds
        if account:
            self.truth[account] = self.truth.get(account, 0.0) + seconds

    def to(self, status: str) -> None:
        if self.transitions:
            self.transitions[-1].setdefault("EndTime", iso(self.now))
        self.transitions.append({"Status": status, "StartTime": iso(self.now)})

    def play(self) -> dict[str, Any]:
        created = self.now
        queued = self.chance.random() < 0.5
        while True:
            self.to("Pending" if queued else "Starting")
            self.spend("capacity" if queued else "placing", self.chance.uniform(1, 60))
            how = self.attempt()
            if how == "Completed":
                break
            self.to(how)
            if how == "Failed":  # and somebody resumes it
                self.transitions[-1]["EndTime"] = iso(self.now)
            self.spend("" if how == "Failed" else "stopping", self.chance.uniform(1, 400 if how == "Failed" else 9))
        self.to("Uploading")
        self.spend("stopping", self.chance.uniform(0, 5))
        self.to("Completed")
        self.transitions[-1]["EndTime"] = iso(self.now)
        return {
            "CreationTime": iso(created), "TrainingEndTime": iso(self.now), "SecondaryStatusTransitions": self.transitions
        }  # fmt: skip

    def attempt(self) -> str:
        self.to("Training")
        self.spend("starting", self.chance.uniform(0.5, 3))
        output = self.folder / str(len(self.attempts))
        self.record = {"started": self.now, "phases": [], "resuming": {"step": self.saved, "saved": self.saved_at}}
        self.attempts.append([HostFiles(host, str(output / host), self.record) for host in self.hosts])
        self.phase("preparing", "starting", self.chance.uniform(0.1, 20))
        while True:
            began = self.now
            done = self.life(output)
            if not done:
                self.spend("stopping", self.chance.uniform(1, 6))
            else:
                self.spend("other", self.chance.uniform(0, 5))
            self.record["phases"].append({"name": "training", "started": began, "seconds": self.now - began})
            if done or self.chance.random() < 0.4:
                state = "Completed" if done else self.chance.choice(("Failed", "Interrupted"))
                self.record.update(state=state, ended=self.now)
                return state
            self.record.setdefault("restarts", []).append({"at": self.now, "step": self.saved, "saved": self.saved_at})
            self.phase("preparing", "starting", self.chance.uniform(0.1, 2))

    def phase(self, name: str, account: str, seconds: float) -> None:
        self.record["phases"].append({"name": name, "started": self.now, "seconds": seconds})
        self.spend(account, seconds)

    def life(self, output: Path) -> bool:
        """Whether it came to the end."""
        facts: dict[str, Any] = {"Began": self.now, "Imported": self.chance.uniform(1, 9)}
        facts |= {"Resumed": self.saved} if self.numbered else {}
        self.spend("importing", facts["Imported"])
        self.spend("loading", self.chance.uniform(0.5, 9))
        facts["Ready"] = self.now
        self.spend("compiling", self.chance.choice((0.0, self.chance.uniform(5, 30))))
        step = self.saved + 1
        self.spend("again" if step <= self.highest else "steps", self.pace)
        facts["First"] = self.now
        doomed = self.chance.randrange(100, 3000)
        windows, since, count, waits = [], self.now, 0, {"data": 0.0, "checkpoint": 0.0}
        while step < self.goal and doomed:
            step, doomed, count = step + 1, doomed - 1, count + 1
            parts = {"data": self.pace * 0.05, "checkpoint": 0.3 if step % self.every == 0 else 0.0}
            for name, seconds in parts.items():
                self.spend(name, seconds)
                waits[name] += seconds
            share = self.slow * (self.ranks - 1) / self.ranks
            self.spend("slow_rank", self.pace * share)
            self.spend("again" if step <= self.highest else "steps", self.pace * (1 - share))
            if step % self.every == 0:
                self.saved, self.saved_at = step, self.now
            self.highest = max(self.highest, step)
            if self.now - since >= 1 or step == self.goal:
                windows.append((since, self.now, count, step, dict(waits)))
                since, count, waits = self.now, 0, dict.fromkeys(waits, 0.0)
        for rank in range(self.ranks):
            self.write(output, rank, facts, windows)
        return step >= self.goal

    def write(self, output: Path, rank: int, facts: dict[str, Any], windows: list[Any]) -> None:
        host = self.hosts[rank % len(self.hosts)]
        path = output / host / "profiler" / "steps" / f"{host}.rank-{rank}.{int(self.now * 1000)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"Facts": {"Rank": rank, "Host": host, **facts}}) + "\n"]
        for since, over, count, step, waits in windows:
            waited = count * self.pace * (0.02 + (self.slow if rank else 0.0))
            phases = {**waits, "communication": waited, "backward": over - since - sum(waits.values()) - waited}
            at = step if self.numbered else None
            lines.append(line_of(Window(over, step, count, over - since, 0.1, phases, at=at)))
        path.write_text("".join(lines))


@pytest.mark.parametrize("numbered", [True, False])
def test_over_schedules_of_faults_each_account_is_right_to_one_percent(tmp_path: Path, numbered: bool) -> None:
    for seed in range(25):
        played = Schedule(tmp_path / str(seed), seed, numbered)
        status = played.play()
        ledger = job_ledger(status, played.attempts, 0.0)
        assert ledger is not None
        wall = sum(played.truth.values())
        found = {name: spent / 1e6 for name, spent in ledger.accounts.items()}
        apart = {name: found.get(name, 0.0) - played.truth.get(name, 0.0) for name in {*found, *played.truth}}

        assert {name: round(seconds, 1) for name, seconds in apart.items() if abs(seconds) > 0.01 * wall} == {}, seed
        assert sum(found.values()) == pytest.approx(wall, abs=0.01)
        assert {sum(sums.values()) for sums in ledger.hosts.values()} == {ledger.wall}
        assert ledger.goodput == pytest.approx(played.truth["steps"] / wall, abs=0.01)


def metrics(output: Path, *points: tuple[float, int]) -> None:
    folder = output / "metrics" / "trainshed"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"MetricName": "loss", "Value": 1.0, "Timestamp": START + at, "Step": step}) + "\n" for at, step in points
    ]
    (folder / "algo-1.json").write_text("".join(lines))


def record(*phases: tuple[str, float, float], **more: Any) -> dict[str, Any]:
    told = [{"name": name, "started": START + begin, "seconds": seconds} for name, begin, seconds in phases]
    over = START + phases[-1][1] + phases[-1][2]
    return {"started": START, "phases": told, "state": "Completed", "ended": over, **more}


def test_without_a_profile_the_steps_of_metrics_stand_in(tmp_path: Path) -> None:
    metrics(tmp_path, *((20 + step, step) for step in (10, 20, 30)), *((80 + step, step) for step in (20, 30, 40)))
    noted = record(
        ("preparing", 0, 5), ("training", 5, 55), ("preparing", 60, 2), ("training", 62, 60),
        restarts=[{"at": START + 60, "saved": START + 30}], resuming={"step": -1, "saved": 0.0},
    )  # fmt: skip
    ledger = job_ledger({}, [[HostFiles("algo-1", str(tmp_path), noted)]], 0.0)

    assert ledger is not None and {name: spent / 1e6 for name, spent in ledger.accounts.items()} == {
        "again": 20, "steps": 40, "starting": 5 + 15 + 2 + 28, "stopping": 10, "other": 2,
    }  # fmt: skip
    assert [part.kind for part in ledger.parts] == ["start", "restart"]


def test_a_job_that_goes_on_is_told_until_now(tmp_path: Path) -> None:
    metrics(tmp_path, (20, 10), (30, 20))
    noted = {**record(("preparing", 0, 5)), "state": "Training"}
    del noted["ended"]
    ledger = job_ledger({"CreationTime": iso(START)}, [[HostFiles("algo-1", str(tmp_path), noted)]], START + 40)

    assert ledger is not None and ledger.wall == 40_000_000 and ledger.accounts["steps"] == 20_000_000


def test_a_job_without_marks_of_steps_has_a_ledger_and_no_goodput(tmp_path: Path) -> None:
    ledger = job_ledger({}, [[HostFiles("algo-1", str(tmp_path), record(("preparing", 0, 5), ("training", 5, 5)))]], 0.0)

    assert ledger is not None and ledger.goodput is None
    assert ledger.accounts == {"starting": 5_000_000, "other": 5_000_000}
    assert rows(told(ledger)) == [] and share_of(told(ledger)) is None


@pytest.mark.parametrize(
    "noted",
    [
        {},
        {"started": "x"},
        {"started": START, "phases": 7},
        {"started": START, "phases": [{"started": []}], "restarts": [1]},
    ],
)
def test_files_of_another_form_are_left_out(noted: dict[str, Any], tmp_path: Path) -> None:
    status = {"CreationTime": "x", "SecondaryStatusTransitions": [1, {"StartTime": 5}]}

    assert job_ledger(status, [[HostFiles("algo-1", str(tmp_path), noted)]], 0.0) is None


def test_the_largest_losses_are_told_with_what_lowers_them_and_what_they_cost(tmp_path: Path) -> None:
    metrics(tmp_path, *((20 + step, step) for step in (10, 20, 30, 40)))
    noted = record(("preparing", 0, 5), ("training", 5, 55))
    ledger = job_ledger({}, [[HostFiles("algo-1", str(tmp_path), noted)]], 0.0)
    assert ledger is not None
    goodput = told(ledger, price=60.0, hosts=2)

    assert headline(goodput) == "66.7 % of 1 min 00 s, 0.67 of 2.00 lost"
    assert losses(goodput) == [
        "starting 33.3 % (20 s, 0.67): put requirements into the image; profile: auto divides it further"
    ]
    assert headline(told(ledger, price=0.06)) == "66.7 % of 1 min 00 s, 0.00033 of 0.0010 lost"
    assert [name for name, _ in rows(goodput)] == ["goodput", ""]
    assert rows({"Share": 2}) == rows({"Share": "x", "WallSeconds": 1}) == rows(None) == []
    assert losses({"Losses": [1, {"Account": "x"}, {"Account": "steps"}]}) == []


def test_of_many_ranks_some_stand_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_marks, "MOST_RANKS", 3)
    read: list[str] = []
    one = job_marks.read_rank

    def noted(path: str) -> RankSteps | None:
        read.append(Path(path).name[:13])
        return one(path)

    monkeypatch.setattr(job_marks, "read_rank", noted)
    hosts = []
    for number in range(1, 6):
        name = f"algo-{number}"
        folder = tmp_path / name / "profiler" / "steps"
        folder.mkdir(parents=True)
        for rank in (2, 10):
            head = json.dumps({"Facts": {"Rank": rank, "Host": name}}) + "\n"
            (folder / f"{name}.rank-{rank}.1-2.json").write_text(head + line_of(Window(START + 9, 8, 8, 4.0, 1.0, {})))
        hosts.append(HostFiles(name, str(tmp_path / name), record(("preparing", 0, 5), ("training", 5, 5))))
    ledger = job_ledger({}, [hosts], 0.0)

    assert ledger is not None and ledger.accounts == {"steps": 4_000_000, "starting": 5_000_000, "other": 1_000_000}
    assert read == ["algo-1.rank-2", "algo-2.rank-2", "algo-4.rank-2"]
