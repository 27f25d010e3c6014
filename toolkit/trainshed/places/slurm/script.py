"""The batch script of a job on Slurm: a pure function, so that `--dry-run` shows exactly what would be submitted.

What Slurm does to a job, and what the script makes of it (sbatch(1), scancel(1), slurm.conf(5)):

| event | Slurm | here |
|---|---|---|
| time limit | SIGUSR2 to the tasks `--signal=USR2@N` seconds before it | the ranks save and stop; the job is queued again |
| preemption with GraceTime | SIGTERM to the tasks, then SIGKILL and requeue | the same, if all ended within GraceTime |
| preemption without, `scontrol requeue`, a node that fails | SIGTERM and SIGKILL, then requeue | the new start resumes |
| scancel | SIGTERM to everything, SIGKILL after KillWait | ends |

Slurm queues a job again by itself only when it has killed it. A job that ends in time after a warning would simply be over,
so the script asks for the requeue: where `train` says by its exit status that it was interrupted, or Slurm that it preempts.
Not SIGUSR1, which NCCL may catch.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

from trainshed.base.errors import EXIT_INTERRUPTED
from trainshed.runner.files.grace import CLUSTER_REPORT_SECONDS
from trainshed.runner.files.run import Run
from trainshed.runner.job.channels import glob_root
from trainshed.runner.job.job import ALL_GPUS

# Below the run's folder: the script itself; there where the job is not to be queued again.
BATCH_SCRIPT, CANCELLED = "slurm/job.sh", "slurm/cancelled"
FIRST_PORT = 12_000  # of the ranks, by job: nodes may be shared, and two jobs must not meet
RUNTIMES = ("auto", "pyxis", "apptainer", "none")


@dataclass(frozen=True)
class SlurmOptions:
    """The job's options of Slurm beside the script.

    sbatch: further options of sbatch by their long names; "" for those without a value. They win over ours.
    runtime: what starts the image on the nodes: NVIDIA's pyxis (enroot) through srun, apptainer (or singularity), none,
        or the first of these that is there.
    """

    sbatch: dict[str, str]
    runtime: str = "auto"


def batch_script(run: Run, options: SlurmOptions, train: str, variables: tuple[str, ...] = ()) -> str:
    """The text of the script.

    Args:
        train: the shell command that starts `train` as a process of a node.
        variables: names of the job's own variables, whose values sbatch hands on from its environment.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in directives(run, options)), ""]
    lines += [
        "# Written by trainshed. One `train` a node; what is printed goes to logs/ of the run's folder.",
        f"run={shlex.quote(run.folder)}",
        "cancelled=",
        "trap 'cancelled=1' TERM",
        f'export MASTER_PORT="${{MASTER_PORT:-$(({FIRST_PORT} + SLURM_JOB_ID % 10000 * 2))}}"',
        'echo "trainshed: start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"',
        "",
        *_start(run, options, train, variables),
        # More than one signal may come, each of which ends a `wait`.
        "while :; do",
        '    wait "$step"',
        "    status=$?",
        '    kill -0 "$step" 2>/dev/null || break',
        "done",
        "",
        'echo "trainshed: the step ended with $status"',
        'preempted=$(scontrol show job -o "$SLURM_JOB_ID" | grep -c " JobState=RUNNING .*PreemptTime=[0-9]")',
        f'if [ -z "$cancelled" ] && [ ! -e "$run/{CANCELLED}" ] && {{ [ "$status" = {EXIT_INTERRUPTED} ] ||',
        '    { [ "$status" != 0 ] && [ "$preempted" != 0 ]; }; }; then',
        '    echo "trainshed: interrupted: asking Slurm to queue the job again"',
        '    scontrol requeue "$SLURM_JOB_ID" && sleep 600',
        "fi",
        'exit "$status"',
    ]
    return "\n".join(lines) + "\n"


def directives(run: Run, options: SlurmOptions) -> list[str]:
    """sbatch's options, ours first: where one comes twice, sbatch takes the last."""
    job, limits = run.job, run.job.resources
    ours = {
        "job-name": job.name,
        "nodes": str(job.instances),
        "ntasks-per-node": "1",
        "output": f"{run.folder}/logs/slurm.log",
        "open-mode": "append",
        "requeue": "",
        "signal": f"USR2@{math.ceil(job.grace_seconds + CLUSTER_REPORT_SECONDS)}",
    }
    if job.max_runtime_seconds:
        ours["time"] = str(max(1, math.ceil(job.max_runtime_seconds / 60)))
    if limits.cpus is not None:
        ours["cpus-per-task"] = str(math.ceil(limits.cpus))
    if limits.memory is not None:
        ours["mem"] = f"{math.ceil(limits.memory / (1 << 20))}M"
    if limits.gpus is not None and limits.gpus != ALL_GPUS:
        ours["gpus-per-node"] = str(limits.gpus)
    if limits.cpus is None and limits.gpus in (None, ALL_GPUS):
        ours["exclusive"] = ""  # else the one task of a node would get one CPU
    both = {**ours, **options.sbatch}
    return [f"--{name}={value}" if value else f"--{name}" for name, value in both.items()]


def _start(run: Run, options: SlurmOptions, train: str, variables: tuple[str, ...]) -> list[str]:
    """Lines that start the step in the background."""
    tree = '"$run/algo-$((SLURM_NODEID + 1))"'
    process = f"export run={shlex.quote(run.folder)}; export SAGEMAKER_BASE_DIR={tree}; exec {train}"
    step = [
        f"srun --nodes={run.job.instances}",
        "--ntasks-per-node=1",
        # srun does not take this over from sbatch.
        '${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"}',
        "--kill-on-bad-exit=0",  # the nodes' `train` end each other, with the reason
        "--wait=0",
        "--open-mode=append",
        '--output="$run/logs/node-%n.log"',
    ]
    srun = " ".join(step)
    lines = [f"process={shlex.quote(process)}"]
    if not run.job.image or options.runtime == "none":
        return [*lines, f'{srun} bash -c "$process" &', "step=$!"]
    image = shlex.quote(run.job.image)
    # Each node sees its own tree; pyxis mounts the same folders on all nodes, so `train` is told which part of them.
    inside = f"export run={shlex.quote(run.folder)}; export SAGEMAKER_BASE_DIR={tree}; exec train"
    names = f"--container-env={','.join(variables)}" if variables else ""
    pyxis = (
        f'{srun} --container-image={image} --container-mounts="$mounts" {names} --no-container-mount-home sh -c "$inside" &'
    )
    tool = '"$tool" exec --bind "$binds" ${CUDA_VISIBLE_DEVICES:+--nv}'
    apptainer = f'{srun} {tool} {shlex.quote(_uri(run.job.image))} sh -c "$inside" &'
    folders = _folders(run)
    return [
        *lines,
        f"inside={shlex.quote(inside)}",
        f"mounts={shlex.quote(','.join(f'{folder}:{folder}' for folder in folders))}",
        f"binds={shlex.quote(','.join(folders))}",
        "tool=$(command -v apptainer || command -v singularity)",
        f"runtime={options.runtime}",
        'if [ "$runtime" = auto ]; then',
        "    if srun --help 2>&1 | grep -q -- --container-image; then runtime=pyxis",
        '    elif [ -n "$tool" ]; then runtime=apptainer',
        "    else runtime=none",
        "    fi",
        "fi",
        "case $runtime in",
        f"pyxis) {pyxis} ;;",
        f"apptainer) {apptainer} ;;",
        "*)",
        f"    echo {shlex.quote(f'trainshed: warning: neither pyxis nor apptainer is here: {run.job.image} is not used')}",
        f'    {srun} bash -c "$process" & ;;',
        "esac",
        "step=$!",
    ]


def _folders(run: Run) -> list[str]:
    """What the containers need of the shared file system. The trees lie where they are: links in them stay good."""
    here = [one for one in run.job.channels if not one.remote]  # what is not here was fetched into the run's folder
    data = [glob_root(one.path) if one.files else one.path for one in here]
    wanted = [run.folder, run.checkpoints, *data]
    return [path for path in dict.fromkeys(wanted) if path == run.folder or not path.startswith(f"{run.folder}/")]


def _uri(image: str) -> str:
    """An image's name as apptainer wants it: a file, or with the kind of place in front."""
    return image if "://" in image or image.startswith("/") or image.endswith(".sif") else f"docker://{image}"
