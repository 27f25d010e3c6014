"""The batch script: what it asks of sbatch and srun. Here `srun` only shows its arguments; test_jobs has the real one."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from trainshed.base.errors import JobError
from trainshed.places.slurm.client import State, parse_state
from trainshed.places.slurm.script import SlurmOptions, batch_script, directives
from trainshed.places.slurm.submit import SLURM, place, read_options, with_options
from trainshed.runner.files import layout
from trainshed.runner.files.staging import stage
from trainshed.runner.job.job import ChannelSpec, InstanceGroupSpec, Job, Resources

SHOWS = """\
#!/bin/sh
case "$1" in --help) echo "$SRUN_HELP"; exit;; esac
printf '%s\\n' "$@"
exit "${SRUN_STATUS:-0}"
"""


def script(tmp_path: Path, image: str = "", runtime: str = "auto", **sbatch: str) -> str:
    job = Job(name="digits", image=image, instances=2, output=str(tmp_path / "run of mine"), environment={"COLOUR": "blue"})
    run = layout.plan(job, in_containers=False, now=0.0)
    return batch_script(run, SlurmOptions(sbatch, runtime), "python3 -m trainshed.container.main", ("COLOUR",))


def executed(tmp_path: Path, text: str, *tools: str, **variables: str) -> list[str]:
    """What the script prints, with stand-ins for Slurm's commands and for these tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "run of mine/slurm").mkdir(parents=True)
    for name, content in {
        "srun": SHOWS,
        "scontrol": '#!/bin/sh\necho "scontrol $*"\nfalse\n',
        **dict.fromkeys(tools, SHOWS),
    }.items():
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.defpath}", "SLURM_JOB_ID": "34", "SLURM_JOB_NODELIST": "n[1-2]", **variables}
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True)
    assert not done.stderr
    return done.stdout.splitlines()


def test_without_an_image_each_node_runs_train_as_a_process(tmp_path: Path) -> None:
    lines = executed(tmp_path, script(tmp_path), "apptainer")

    assert "--nodes=2" in lines and "--ntasks-per-node=1" in lines and "--kill-on-bad-exit=0" in lines
    assert f"--output={tmp_path}/run of mine/logs/node-%n.log" in lines
    assert lines[-2].endswith("exec python3 -m trainshed.container.main") and "algo-$((SLURM_NODEID + 1))" in lines[-2]


@pytest.mark.parametrize(
    ("tools", "help_", "runtime", "first"),
    [
        (("apptainer",), "--container-image=[USER@]IMAGE", "auto", "--container-image=a/b:1"),
        (("apptainer", "singularity"), "", "auto", "apptainer"),
        (("singularity",), "", "auto", "singularity"),
        ((), "", "pyxis", "--container-image=a/b:1"),
        ((), "", "auto", ""),
        (("apptainer",), "", "none", ""),
    ],
)
def test_an_image_is_started_by_what_the_cluster_has(
    tmp_path: Path, tools: tuple[str, ...], help_: str, runtime: str, first: str
) -> None:
    lines = executed(tmp_path, script(tmp_path, "a/b:1", runtime), *tools, SRUN_HELP=help_)

    used = next(
        (line for line in lines if line.startswith("--container-image") or line.endswith(("/apptainer", "/singularity"))), ""
    )
    assert used.rpartition("/bin/")[2] == first
    assert ("docker://a/b:1" in lines) == (first in ("apptainer", "singularity"))
    assert ("--container-env=COLOUR" in lines) == first.startswith("--container")
    assert lines[-2].endswith("exec train" if first else "exec python3 -m trainshed.container.main")
    assert any("a/b:1 is not used" in line for line in lines) == (not first and runtime == "auto")


@pytest.mark.parametrize(("status", "cancelled", "again"), [("75", False, True), ("75", True, False), ("1", False, False)])
def test_only_what_was_interrupted_is_queued_again(tmp_path: Path, status: str, cancelled: bool, again: bool) -> None:
    text = script(tmp_path)
    if cancelled:
        text = text.replace("step=$!", 'step=$!; : >"$run/slurm/cancelled"')
    lines = executed(tmp_path, text, SRUN_STATUS=status)

    assert ("scontrol requeue 34" in lines) == again
    assert f"trainshed: the step ended with {status}" in lines


def test_what_the_job_asks_for_becomes_options_and_the_users_come_last(tmp_path: Path) -> None:
    job = Job(name="digits", instances=4, output=str(tmp_path / "run"), max_runtime_seconds=90, grace_seconds=30)
    job = replace(job, resources=Resources(cpus=7.5, memory=3 << 30, gpus=8))
    run = layout.plan(job, in_containers=False, now=0.0)
    found = directives(run, SlurmOptions({"partition": "gpu", "time": "5:00:00", "no-requeue": ""}))

    assert {"--nodes=4", "--time=5:00:00", "--cpus-per-task=8", "--mem=3072M", "--gpus-per-node=8"} <= set(found)
    assert {"--signal=USR2@50", "--requeue", "--partition=gpu", "--no-requeue"} <= set(found)
    assert "--exclusive" not in found and found.index("--requeue") < found.index("--no-requeue")


def test_options_are_read_from_the_job_and_flags_win() -> None:
    job = Job(name="a", places={"slurm": {"partition": "cpu", "gpus_per_task": 2, "runtime": "none", "exclusive": True}})
    assert read_options(with_options(job, ["partition=gpu"])) == SlurmOptions(
        {"partition": "gpu", "gpus-per-task": "2", "exclusive": ""}, "none"
    )
    for wrong in ("nodes=3", "runtime=docker", "a b=1"):
        with pytest.raises(JobError):
            read_options(with_options(job, [wrong]))


def test_a_pipe_that_nobody_would_feed_is_refused() -> None:
    with pytest.raises(JobError, match="Pipe mode does not work on Slurm"):
        read_options(Job(name="x", channels=(ChannelSpec("train", "/data", "Pipe"),)))


def test_hosts_of_several_kinds_are_refused() -> None:
    with pytest.raises(JobError, match="hosts are of one kind on Slurm"):
        read_options(Job(name="x", instances=2, instance_groups=(InstanceGroupSpec("a"), InstanceGroupSpec("b"))))


def test_channels_that_are_put_together_are_there_for_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.csv").write_text("1")
    some = ChannelSpec("some", f"{tmp_path}/data/*.csv", files=(f"{tmp_path}/data/a.csv",))
    channels = (some, ChannelSpec("far", "s3://bucket/prefix"))
    run = layout.claim(layout.plan(Job(name="x", channels=channels, output=f"{tmp_path}/run"), in_containers=False, now=0))
    place(run, "")
    stage(replace(run, job=replace(run.job, channels=(some,))), {}, print, blind=SLURM.obstacle("fast_file"))
    assert Path(f"{run.hosts[0].folder}/input/data/some/a.csv").read_text() == "1"
    folders = executed(
        tmp_path, batch_script(replace(run, job=replace(run.job, image="i")), SlurmOptions({}, "pyxis"), "t"), "srun"
    )
    assert f"{tmp_path}/data:" in str(folders) and "s3:" not in str(folders)


def test_a_state_is_read_from_scontrols_line() -> None:
    line = (
        "JobId=7 JobName=a b UserId=root(0) JobState=PENDING Reason=BeginTime Dependency=(null) Requeue=1 Restarts=2 "
        "BatchFlag=1 ExitCode=0:15 RunTime=00:00:00 ReqNodeList=(null) NodeList=gpu[01-02] NumNodes=2-2\n"
    )
    assert parse_state(line) == State("PENDING", "BeginTime", "gpu[01-02]", 2, 0, 15)
    assert not parse_state(line).over and parse_state(line.replace("PENDING", "NODE_FAIL")).over
