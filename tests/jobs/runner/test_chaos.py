"""`trainshed chaos`: each kind of failure strikes a job, which goes on, and what it cost is told."""

from __future__ import annotations

import json

import pytest

from support.runner_project import Project

# Goes on until the failure named by KIND was felt: by the other rank, by itself, or by its next start.
SCRIPT = """
import os, pathlib, time
kind, rank, folder = os.environ["KIND"], os.environ["RANK"], pathlib.Path("{folder}")
other = folder / str(1 - int(rank))
starts = folder / f"starts-{{rank}}"
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
(folder / rank).write_text(str(os.getpid()))

def felt():
    if kind in ("pause", "slow"):
        pid = other.read_text() if other.exists() else ""
        return bool(pid) and pathlib.Path(f"/proc/{{pid}}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    if kind == "disk-full":
        try:
            (folder / f"large-{{rank}}").write_bytes(bytes(9000))
        except OSError:
            return True
        return False
    return len(starts.read_text()) > 1

step = 0
while not (folder / "felt").exists():
    step += 1
    (pathlib.Path(os.environ["SM_CHECKPOINT_DIR"]) / f"step-{{step}}").touch()
    if felt():
        (folder / "felt").touch()
    time.sleep(0.02)
print(f"rank {{rank}} has felt it", flush=True)
"""
JOB = """
program: train.py
name: played
distribution: {kind: torchrun, engine: trainshed, processes_per_host: 2, max_restarts: 9}
retries: 9
"""


@pytest.mark.parametrize("kind", ["kill", "host", "pause", "slow", "disk-full", "notice"])
def test_a_failure_strikes_and_the_job_goes_on(kind: str, project: Project) -> None:
    project.write({"train.py": SCRIPT.format(folder=project.folder), "job.yaml": JOB})
    done = project.trainshed("chaos", "job.yaml", "--kinds", kind, "--every", "0.4s", "--env", f"KIND={kind}")
    assert done.status == 0, done.stderr
    assert "has felt it" in done.stdout
    assert f"chaos: {kind} " in done.stderr and " FAILURE " in done.stdout, done
    of = "the job" if kind == "notice" else "algo-1" if kind == "host" else "on algo-1"
    assert any(kind in line and of in line for line in done.stdout.splitlines()), done.stdout
    assert "goodput" in done.stdout


def test_what_was_played_is_told_as_json(project: Project) -> None:
    project.write({"train.py": SCRIPT.format(folder=project.folder), "job.yaml": JOB})
    words = ("chaos", "job.yaml", "--kinds", "kill", "--every", "0.4s", "--env", "KIND=kill", "--chaos-seed", "7", "--json")
    done = project.trainshed(*words)
    told = json.loads(done.stdout)
    assert told["seed"] == 7 and told["run"] == project.run.name
    assert {one["kind"] for one in told["failures"]} == {"kill"} and told["failures"][0]["seconds"] > 0
    assert told["goodput"]["Seconds"]


def test_a_job_that_ends_before_anything_failed_says_so(project: Project) -> None:
    project.write({"train.py": "print('ready')"})
    done = project.trainshed("chaos", "train.py", "--every", "1h")
    assert done.status == 0 and "no failure was played" in done.stdout
    assert "neither retries nor max_restarts: kill ends it (--max-restarts 10)" in done.stderr


@pytest.mark.parametrize(("kinds", "said"), [("host", "no retries: host ends it (--retries 10)"), ("pause,slow", "")])
def test_what_ends_the_job_is_said_by_its_kind(kinds: str, said: str, project: Project) -> None:
    project.write({"train.py": "print('ready')"})
    done = project.trainshed("chaos", "train.py", "--every", "1h", "--kinds", kinds, "--max-restarts", "3")
    assert said in done.stderr and ("ends it" in done.stderr) == bool(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kinds", "kil"), "there is no kind 'kil': did you mean 'kill'"),
        (("--kinds", ","), "--kinds names none of kill"),
        (("--kinds", "cut"), "--kinds cut: only containers of a job with several hosts"),
        (("--every", "often"), "--every 'often' is not a time: 60s, 5m, 1h"),
        (("--every", "0"), "--every '0' is not a time"),
        (("--chaos-seed", "x"), "--chaos-seed 'x' is not a whole number"),
        (("--chaos-seed", "²"), "--chaos-seed '²' is not a whole number"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_runs(words: tuple[str, ...], said: str, project: Project) -> None:
    project.write({"train.py": "print('ready')"})
    done = project.command("chaos", "train.py", *words)
    assert done.status == 2 and said in done.stderr, done
    assert not (project.folder / "runs").exists()
