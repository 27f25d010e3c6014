"""The life of a run after its start: seen, followed, stopped, taken up again, copied, removed, from other commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support import runner_scripts as scripts
from support.runner_project import LIMIT, Project, wait_until
from trainshed.runner.acting.leftovers import processes_of
from trainshed.runner.state import identity


@pytest.fixture
def training(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose scripts count, ignore signals, fail; the index of runs is this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return project.write(
        {"count.py": scripts.COUNT, "deaf.py": scripts.DEAF, "fail.py": scripts.FAIL_TWICE, "large.py": scripts.LARGE}
    )


def status(project: Project, run: str = "") -> dict[str, Any]:
    done = project.command("status", *filter(None, [run]), "--json")
    assert done.status == 0, done.output
    return json.loads(done.stdout)


def phase(folder: Path) -> str:
    """The secondary status in a run's own file; "" before there is one."""
    try:
        return str(json.loads((folder / "status.json").read_text())["SecondaryStatus"])
    except FileNotFoundError:
        return ""


def transitions(folder: Path) -> list[str]:
    return [one["Status"] for one in json.loads((folder / "status.json").read_text())["SecondaryStatusTransitions"]]


def steps(project: Project, host: str = "algo-1") -> int:
    """The step that is saved, 0 before the first."""
    found = list(project.folder.glob(f"runs/*/checkpoints/step-{host}"))
    return int(found[0].read_text()) if found else 0


def detached(project: Project, *arguments: str) -> str:
    """Starts a run in the background; its name."""
    done = project.trainshed("run", *arguments, "--detach")
    assert done.status == 0, done.output
    return done.stdout.strip()


def counting(project: Project, *arguments: str) -> str:
    """Starts the counting script in the background and waits until it has counted."""
    name = detached(project, "count.py", *arguments)
    wait_until(lambda: steps(project) >= 3, "the script counts")
    return name


@pytest.mark.safety
@pytest.mark.spine
def test_a_detached_run_is_seen_and_stopped_and_has_saved(training: Project) -> None:
    name = counting(training)
    listed = training.command("ps").stdout
    assert f"{name}  InProgress  Training" in listed
    assert status(training)["SecondaryStatus"] == "Training"
    assert "metric loss=1.000000 step=1" in training.command("logs", name).stdout
    stopped = training.trainshed("stop", name)
    assert stopped.status == 0, stopped.output
    assert stopped.stdout.startswith(f"stopped      {name}\n")
    found = status(training, name)
    assert (found["TrainingJobStatus"], found["Trainshed"]["ExitCode"]) == ("Stopped", 143)
    assert transitions(training.run) == ["Starting", "Training", "Stopping", "Uploading", "Stopped"]
    assert f"saved at {steps(training)}" in training.command("logs", "--last", "5").stdout
    assert name not in training.command("ps").stdout
    assert name in training.command("ps", "--all").stdout
    assert "completed" not in (training.run / "runner.log").read_text()
    assert not processes_of(found["Trainshed"]["RunId"])


def test_a_detached_run_that_cannot_be_started_says_why_at_once(training: Project) -> None:
    training.write({"job.yaml": "program: count.py\nenvironment: {TOKEN: {file: missing}}\n"})
    done = training.trainshed("run", "job.yaml", "--detach")
    assert done.status == 1
    assert "environment.TOKEN: there is no" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (training.folder / "runs").exists()


@pytest.mark.spine
def test_a_run_is_taken_up_again_where_it_stopped(training: Project) -> None:
    name = counting(training)
    training.trainshed("stop")
    saved = steps(training)
    done = training.trainshed("resume", name, "--hp", f"until={saved + 3}")
    assert done.status == 0, done.output
    assert f"starting at {saved}\n" in done.stdout
    found = status(training)
    assert (found["TrainingJobName"], found["TrainingJobStatus"]) == (name, "Completed")
    assert found["HyperParameters"] == {"until": str(saved + 3)}
    assert transitions(training.run)[4:] == ["Stopped", "Restarting", "Training", "Uploading", "Completed"]
    log = (training.run / "logs/algo-1.log").read_text()
    assert log.index("starting at 0") < log.index(f"starting at {saved}")
    assert (training.run / "output/model.tar.gz").is_file()
    assert os.listdir(training.run / "attempts") == ["1"]


def test_only_what_is_over_can_be_taken_up_again(training: Project) -> None:
    name = counting(training)
    done = training.command("resume", name)
    assert (done.status, "is running" in done.stderr) == (1, True)


@pytest.mark.safety
def test_a_secret_that_was_plain_text_must_be_given_again(training: Project) -> None:
    done = training.trainshed("run", "count.py", "--hp", "until=2", "--env", "API_TOKEN=hunter22")
    assert done.status == 0, done.output
    done = training.command("resume", "--again")
    assert done.status == 2
    assert "environment.API_TOKEN: is a secret, which was not kept (give it again: --env API_TOKEN=VALUE)" in done.stderr
    assert training.trainshed("resume", "--again", "--env", "API_TOKEN=hunter22").status == 0
    assert "hunter22" not in "".join(path.read_text() for path in training.run.glob("*.json"))


@pytest.mark.spine
def test_a_clone_is_the_same_job(training: Project) -> None:
    from support.command_line import job_of

    training.write({
        "data/a.csv": "",
        "job.yaml": """\
program: count.py
name: digits
hyperparameters: {until: 2, lr: 1.10, big: 1e5, names: [a, 2], text: "07", quote: "it's"}
channels: {train: data, some: {path: "data/*.csv", input_mode: FastFile, content_type: text/csv}}
environment: {A: "x: y", TOKEN: {env: HOME}}
metric_definitions: {loss: "loss=([0-9.]+)"}
spot: {interrupt_after: [3600, 7200], price: 0.3}
checkpoints: {folder: saved, auto: true, copy_to: "s3://bucket/run"}
resources: {memory: 8g}
grace_seconds: 7
retries: 2
""",
    })  # fmt: skip
    first = training.trainshed("run", "job.yaml", "--argv", "json")
    assert (training.run / "status.json").exists(), first.output
    text = training.command("clone").stdout
    (training.folder / "cloned.yaml").write_text(text)
    before = job_of([str(training.folder / "job.yaml"), "--argv", "json"], os.environ)
    assert job_of([str(training.folder / "cloned.yaml")], os.environ) == before
    assert 'lr": 1.10' in text


@pytest.mark.safety
def test_what_was_a_plain_secret_is_not_in_a_clone(training: Project) -> None:
    training.trainshed("run", "count.py", "--hp", "until=1", "--hp", "api_key=hunter22", "--env", "PASSWORD=hunter23")
    text = training.command("clone").stdout
    assert "hunter" not in text
    assert "# api_key: was a secret" in text and "# PASSWORD: was a secret" in text


@pytest.mark.safety
@pytest.mark.spine
def test_a_run_is_removed_only_when_it_is_over_or_by_force(training: Project) -> None:
    name = counting(training)
    refused = training.command("rm", name)
    assert (refused.status, "is running" in refused.stderr) == (1, True)
    identity_of = status(training)["Trainshed"]
    done = training.trainshed("rm", "--force", name)
    assert (done.status, done.stdout) == (0, f"{name}\n"), done.output
    assert not (training.folder / "runs").exists()
    assert not processes_of(identity_of["RunId"])
    assert identity.is_alive(identity_of["Runner"]) is False
    assert name not in training.command("ps", "--all").stdout


@pytest.mark.safety
def test_what_is_not_the_runs_stays_when_it_is_removed(training: Project) -> None:
    training.trainshed("run", "count.py", "--hp", "until=1", "--output", "mine")
    training.write({"mine/thesis.tex": "dear"})
    done = training.trainshed("rm", "./mine")
    assert "thesis.tex does not belong to the run and stays" in done.stderr
    assert os.listdir(training.folder / "mine") == ["thesis.tex"]


@pytest.mark.spine
def test_attach_shows_a_run_to_its_end_and_ends_with_its_status(training: Project) -> None:
    counting(training)
    process = training.start("attach")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(("starting at 0", "metric loss="))
    training.trainshed("stop")
    stdout, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 143, stderr
    assert f"saved at {steps(training)}" in stdout
    assert "stopped      count-" in stderr


def test_ctrl_c_leaves_an_attached_run_running(training: Project) -> None:
    name = counting(training)
    process = training.start("attach")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT)
    assert (process.returncode, "goes on" in stderr) == (0, True)
    assert status(training, name)["SecondaryStatus"] == "Training"
    training.trainshed("stop", "--kill")


def test_logs_follow_a_run_to_its_end(training: Project) -> None:
    counting(training)
    process = training.start("logs", "--follow")
    training.trainshed("stop")
    stdout, _ = process.communicate(timeout=LIMIT)
    assert stdout.startswith("starting at 0\n")
    assert f"saved at {steps(training)}\n" in stdout


def test_logs_of_one_rank_or_one_host(training: Project) -> None:
    training.write({"ranks.py": "import os; print('I am rank', os.environ['RANK'])"})
    flags = ["--distribution", "torchrun", "--processes-per-host", "2", "--instances", "2"]
    assert training.trainshed("run", "ranks.py", *flags).status == 0
    assert training.command("logs", "--rank", "3").stdout == "[algo-2:3] I am rank 3\n"
    host = training.command("logs", "--host", "algo-1").stdout
    assert "I am rank 1" in host and "I am rank 2" not in host
    wrong = training.command("logs", "--host", "algo-11")
    assert (wrong.status, "did you mean 'algo-1'?" in wrong.stderr) == (2, True)


@pytest.mark.safety
def test_stopping_kills_a_deaf_script_when_asked_to(training: Project) -> None:
    detached(training, "deaf.py")
    wait_until(lambda: "running" in training.command("logs").stdout, "the script runs")
    done = training.trainshed("stop", "--kill")
    assert done.status == 0, done.output
    assert status(training)["TrainingJobStatus"] == "Stopped"
    assert not processes_of(status(training)["Trainshed"]["RunId"])


def test_a_run_is_found_from_anywhere_by_the_beginning_of_its_name(training: Project, tmp_path: Path) -> None:
    training.trainshed("run", "count.py", "--hp", "until=1", "--name", "first")
    training.trainshed("run", "count.py", "--hp", "until=1", "--name", "second")
    elsewhere = Project(tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    assert status(elsewhere, "first")["TrainingJobStatus"] == "Completed"
    assert status(elsewhere)["TrainingJobName"].startswith("second-")
    wrong = elsewhere.command("status", "frist")
    assert (wrong.status, "there is no run 'frist'" in wrong.stderr) == (2, True)
    assert elsewhere.command("status", "/nowhere").status == 2


def test_jobs_at_once_do_not_collide(training: Project) -> None:
    processes = [training.start("run", "count.py", "--hp", "until=5", "--instances", "2") for _ in range(4)]
    ends = [(process.communicate(timeout=LIMIT), process.returncode) for process in processes]
    assert [code for _, code in ends] == [0] * 4, ends
    runs = list((training.folder / "runs").iterdir())
    assert len(runs) == 4
    assert len({json.loads((run / "job.json").read_text())["id"] for run in runs}) == 4


# --- spot and retries ------------------------------------------------------------------------------------------------


def interrupt(project: Project) -> None:
    """Takes the spot capacity of the newest run away, now."""
    os.kill(status(project)["Trainshed"]["Runner"]["Pid"], signal.SIGUSR2)


@pytest.mark.safety
@pytest.mark.spine
def test_spot_interruptions_keep_the_checkpoints_and_nothing_else(training: Project) -> None:
    name = counting(training, "--spot-interrupt-after", "1h", "--instances", "2")
    folder = training.run
    for attempt in (1, 2):
        before = steps(training), steps(training, "algo-2")
        wait_until(lambda b=before: steps(training) > b[0] and steps(training, "algo-2") > b[1], "both hosts count")
        interrupt(training)
        wait_until(lambda n=attempt: len(list(folder.glob("attempts/*"))) == n, "the attempt is put aside")
        wait_until(lambda: phase(folder) == "Training", "the next attempt trains")
    resumed = steps(training), steps(training, "algo-2")
    wait_until(lambda: steps(training) > resumed[0] and steps(training, "algo-2") > resumed[1], "the third attempt counts")
    training.trainshed("stop")
    log = (folder / "logs/algo-1.log").read_text()
    starts = [int(line.split()[-1]) for line in log.splitlines() if line.startswith("starting at ")]
    saved = [int(line.split()[-1]) for line in log.splitlines() if line.startswith("saved at ")]
    assert starts == [0, *saved[:2]], "each attempt goes on where the one before has saved"
    again = ["Interrupted", "Starting", "Training"]
    assert transitions(folder) == ["Starting", "Training", *again, *again, "Stopping", "Uploading", "Stopped"]
    found = status(training, name)
    assert found["EnableManagedSpotTraining"] is True
    assert [one["Outcome"] for one in found["Trainshed"]["Attempts"]] == ["Interrupted", "Interrupted", "Stopped"]


def test_spot_capacity_goes_when_its_time_has_come(training: Project) -> None:
    """Whatever the script was at by then: it starts at the last step that was printed."""
    counting(training, "--spot-interrupt-after", "1s,0.5s")
    folder = training.run
    wait_until(lambda: len(list(folder.glob("attempts/*"))) == 2 and phase(folder) == "Training", "two interruptions")
    training.trainshed("stop")
    assert transitions(folder).count("Interrupted") == 2
    last = 0
    for line in (folder / "logs/algo-1.log").read_text().splitlines():
        if line.startswith("metric "):
            last = int(line.rpartition("=")[2])
        elif line.startswith("starting at "):
            assert int(line.split()[-1]) == last


def test_a_script_that_ignores_the_notice_is_killed_and_started_again(training: Project) -> None:
    begun = "import os\nfolder = os.environ['SM_CHECKPOINT_DIR']\nif os.listdir(folder): raise SystemExit(0)\n"
    training.write({"notice.py": begun + "open(folder + '/begun', 'w').close()\n" + scripts.DEAF})
    process = training.start("run", "notice.py", "--spot-interrupt-after", "1h", "--grace", "6")
    wait_until(lambda: "running" in training.command("logs").stdout, "the script runs")
    interrupt(training)
    stdout, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, stderr
    assert "deaf\n" in stdout
    assert "attempts   interrupted after" in stderr
    assert transitions(training.run) == [
        "Starting", "Training", "Interrupted", "Starting", "Training", "Uploading", "Completed",
    ]  # fmt: skip


def test_billable_seconds_and_savings_are_by_the_platforms_formula(training: Project) -> None:
    training.write(
        {"job.yaml": "program: count.py\nhyperparameters: {until: 120}\nspot: {interrupt_after: 1s, price: 0.25}\n"}
    )
    done = training.trainshed("run", "job.yaml")
    assert done.status == 0, done.output
    found = status(training)
    held = sum(one["Seconds"] for one in found["Trainshed"]["Attempts"])
    assert found["BillableTimeInSeconds"] == max(1, round(held * 0.25))
    saved = (1 - found["BillableTimeInSeconds"] / found["TrainingTimeInSeconds"]) * 100
    assert f"savings {saved:.1f} %" in done.stderr


def test_a_spot_job_does_not_wait_for_ever(training: Project) -> None:
    done = training.trainshed("run", "count.py", "--spot-interrupt-after", "0.5,0.5", "--max-wait", "2")
    found = status(training)
    assert done.status == 124
    assert (found["TrainingJobStatus"], found["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")


@pytest.mark.spine
def test_a_failed_job_is_tried_again_with_its_checkpoints(training: Project) -> None:
    done = training.trainshed("run", "fail.py", "--retries", "2")
    assert done.status == 0, done.output
    again = ["Restarting", "Starting", "Training"]
    assert transitions(training.run) == ["Starting", "Training", *again, *again, "Uploading", "Completed"]
    assert "attempts   failed after" in done.stderr


def test_when_the_retries_are_used_up_the_job_has_failed(training: Project) -> None:
    done = training.trainshed("run", "fail.py", "--retries", "1")
    assert done.status == 1
    assert "ValueError: attempt 1" in status(training)["FailureReason"]


# --- a runner that is killed ---------------------------------------------------------------------------------------


def kill_runner(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LIMIT)


def caught_in(project: Project, wanted: str, *arguments: str) -> Path:
    """Starts a run and kills its runner in a phase; the run's folder.

    The runner is halted first and the phase looked at again, so that it is the one; a run that was too quick is left.
    """
    for _ in range(50):
        known = set(project.folder.glob("runs/*"))
        process = project.start("run", *arguments)
        made: list[Path] = []

        def in_phase(known: set[Path] = known, made: list[Path] = made) -> bool:
            made[:] = set(project.folder.glob("runs/*")) - known
            return bool(made) and phase(made[0]) == wanted

        wait_until(lambda process=process, in_phase=in_phase: in_phase() or process.poll() is not None, wanted)
        process.send_signal(signal.SIGSTOP)
        if process.returncode is None:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        halted = bool(made) and phase(made[0]) == wanted
        kill_runner(process)
        if halted:
            return made[0]
    raise AssertionError(f"no run could be caught {wanted}")


def assert_found_and_cleared(project: Project, folder: Path, wanted: str) -> dict[str, Any]:
    """`ps`, `status`, `stop` and `rm` know the run, and then nothing is left of it; the status after `stop`."""
    listed = project.command("ps").stdout
    assert f"{folder.name}  Lost    runner killed while {wanted}" in listed, listed
    told = status(project, str(folder))
    assert (told["TrainingJobStatus"], told["Trainshed"]["Lost"]) == ("Failed", True)
    run_id = told["Trainshed"]["RunId"]
    stopped = project.trainshed("stop", folder.name)
    assert stopped.status == 0, stopped.output
    after = status(project, str(folder))
    assert after["TrainingJobStatus"] in ("Failed", "Completed", "Stopped")
    assert not processes_of(run_id)
    removed = project.trainshed("rm", folder.name)
    assert removed.status == 0, removed.output
    assert not folder.exists()
    assert folder.name not in project.command("ps", "--all").stdout
    return after


@pytest.mark.safety
@pytest.mark.parametrize(
    ("wanted", "arguments"),
    [
        ("Starting", ["count.py", "--instances", "60"]),
        ("Training", ["deaf.py", "--grace", "0.5", "--instances", "2"]),
        ("Uploading", ["large.py"]),
    ],
)
def test_a_runner_killed_in_any_phase_leaves_a_run_that_is_found_and_cleared(
    training: Project, wanted: str, arguments: list[str]
) -> None:
    if wanted == "Starting":  # copying this for each host takes a while
        training.write({f"part{number}.py": "" for number in range(100)})
    folder = caught_in(training, wanted, *arguments)
    after = assert_found_and_cleared(training, folder, wanted)
    if wanted == "Training":
        assert "runner was killed while the job was training" in after["FailureReason"]
    if wanted == "Uploading":
        assert after["TrainingJobStatus"] == "Completed", "the hosts had completed; only their results were not collected"


@pytest.mark.safety
@pytest.mark.parametrize(("wanted", "number"), [("Stopping", signal.SIGTERM), ("Interrupted", signal.SIGUSR2)])
def test_a_runner_killed_while_a_deaf_script_has_its_grace_is_no_different(
    training: Project, wanted: str, number: signal.Signals
) -> None:
    process = training.start("run", "deaf.py", "--grace", "600", "--spot-interrupt-after", "1h")
    wait_until(lambda: "running" in training.command("logs").stdout, "the script runs")
    folder = training.run
    process.send_signal(number)
    wait_until(lambda: phase(folder) == wanted, wanted)
    kill_runner(process)
    assert f"Lost    runner killed while {wanted}; process " in training.command("ps").stdout
    run_id = status(training)["Trainshed"]["RunId"]
    assert training.trainshed("stop", folder.name, "--kill").status == 0
    assert not processes_of(run_id)
    assert status(training)["TrainingJobStatus"] == "Failed"
    assert training.trainshed("rm", folder.name).status == 0
    assert not folder.exists()


def test_a_run_whose_files_were_never_written_is_removed_all_the_same(training: Project) -> None:
    folder = caught_in(training, "Starting", "count.py", "--instances", "60")
    (folder / "job.json").unlink(missing_ok=True)
    assert "Lost" in training.command("ps").stdout
    assert training.trainshed("stop", folder.name).status == 0
    assert training.trainshed("rm", folder.name).status == 0
    assert not folder.exists()


# --- secrets -----------------------------------------------------------------------------------------------------------


JOB_WITH_SECRETS = """\
program: show.py
source_dir: code
distribution: {kind: torchrun, processes_per_host: 2}
environment: {FIRST: {env: MINE}, SECOND: {file: secrets/second}}
"""
SHOW_SECRETS = """\
import os, sys
for name in ("FIRST", "SECOND"):
    print("value", os.environ[name], len(os.environ[name]), flush=True)
    print("error", os.environ[name], file=sys.stderr, flush=True)
raise ValueError("cannot log in with " + os.environ["FIRST"])
"""


def everything_written(*folders: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


@pytest.mark.safety
def test_secrets_by_reference_reach_the_script_and_nothing_else(training: Project, tmp_path: Path) -> None:
    training.write({"code/show.py": SHOW_SECRETS, "secrets/second": "correct horse\n", "job.yaml": JOB_WITH_SECRETS})
    done = training.trainshed("run", "job.yaml", MINE="battery staple")
    assert done.status == 1
    assert "value ****** 14\n" in done.stdout and "value ****** 13\n" in done.stdout
    assert list(training.run.glob("algo-1/output/data/logs/*")), "ranks have logs of their own, looked at below"
    shown = done.output + training.command("status").stdout + training.command("status", "--json").stdout
    shown += training.command("logs").stdout + training.command("clone").stdout
    assert "battery staple" not in shown and "correct horse" not in shown
    for path, data in everything_written(training.run, tmp_path / "state").items():
        assert b"battery staple" not in data and b"correct horse" not in data, path
    assert '{"env": "MINE"}' in training.command("clone").stdout


def test_a_reference_that_leads_nowhere_ends_the_job_before_it_starts(training: Project) -> None:
    training.write({"job.yaml": "program: count.py\nenvironment: {TOKEN: {env: MY_TOKEN}}\n"})
    done = training.command("run", "job.yaml", MY_TOKENS="x")
    assert done.status == 1
    assert "environment.TOKEN: there is no variable MY_TOKEN here" in done.stderr
    assert "did you mean 'MY_TOKENS'?" in done.stderr
    assert not (training.folder / "runs").exists()


@pytest.mark.safety
def test_hyperparameters_that_look_secret_are_for_their_user_alone(training: Project) -> None:
    training.trainshed("run", "count.py", "--hp", "until=1", "--hp", "api_key=hunter22")
    mode = (training.run / "algo-1/input/config/hyperparameters.json").stat().st_mode
    assert mode & 0o777 == 0o600
