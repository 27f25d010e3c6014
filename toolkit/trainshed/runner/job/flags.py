"""`trainshed run`: the command line, alone or on top of a job file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from trainshed.base.errors import JobError, Problem, did_you_mean
from trainshed.contract.hyperparameters import SpelledFloat, decode_value

from .job import Job
from .nodes import Node, scalar

_ENDINGS = (".yaml", ".yml", ".json")
# Flag -> field of the job file; those with a dot are fields of a mapping.
_FIELDS = {
    "--name": "name",
    "--image": "image",
    "--source-dir": "source_dir",
    "--instances": "instances",
    "--distribution": "distribution.kind",
    "--processes-per-host": "distribution.processes_per_host",
    "--engine": "distribution.engine",
    "--max-restarts": "distribution.max_restarts",
    "--output": "output",
    "--checkpoints": "checkpoints.folder",
    "--copy-to": "checkpoints.copy_to",
    "--max-runtime": "max_runtime_seconds",
    "--grace": "grace_seconds",
    "--argv": "argv",
    "--compiler": "compiler",
    "--cpus": "resources.cpus",
    "--memory": "resources.memory",
    "--spot-interrupt-after": "spot.interrupt_after",
    "--max-wait": "spot.max_wait_seconds",
    "--retries": "retries",
    "--gpus": "resources.gpus",
    "--shm-size": "resources.shm_size",
}
_PAIRS = {
    "--hyperparameter": "hyperparameters",
    "--channel": "channels",
    "--env": "environment",
    "--metric": "metric_definitions",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, with the nearest flag for one that does not exist."""
        self.exit(2, f"trainshed run: {message}; see `trainshed run --help`\n")


def parser() -> argparse.ArgumentParser:
    """The parser of `trainshed run`."""
    made = _Parser(
        prog="trainshed run",
        usage="trainshed run JOB.yaml|SCRIPT [options]",
        description="Runs a training job here: as processes of this machine, or as containers of an image (--image).",
        epilog="Flags win over the job file. Results, logs and status.json go to runs/NAME-TIME/. Exit status: the "
        "job's own; 130 after Ctrl-C, 124 when --max-runtime is over, 2 if the job cannot be read, 69 without Docker.",
        allow_abbrev=False,
    )
    made.add_argument("what", nargs="?", default="", metavar="JOB.yaml|SCRIPT", help="a job file, or the training script")
    job = made.add_argument_group("the job")
    job.add_argument("--name", help="base of the run's name (default: the script's)")
    job.add_argument("--source-dir", metavar="DIR", help="folder with the code (default: the script's)")
    one = "one hyperparameter; numbers keep their spelling"
    job.add_argument("--hyperparameter", "--hp", action="append", default=[], metavar="K=V", help=one)
    job.add_argument("--channel", action="append", default=[], metavar="NAME=PATH", help="one input channel")
    job.add_argument("--env", action="append", default=[], metavar="K=V", help="one variable; K alone takes yours")
    job.add_argument("--metric", action="append", default=[], metavar="NAME=REGEX", help="a metric to read from the log")
    job.add_argument("--argv", metavar="STYLE", help="how hyperparameters reach the script: sagemaker, json or flags")
    job.add_argument("--compiler", metavar="BACKEND", help="compile the training steps: auto, inductor, xla, neuron or off")
    where = made.add_argument_group("where it runs")
    where.add_argument("--on", metavar="PLACE", help="here (default), or slurm: submit it with sbatch, and follow it")
    slurm = "with --on slurm: one more option of sbatch, like partition=gpu; --detach submits and returns"
    where.add_argument("--sbatch", metavar="NAME=VALUE", help=slurm)
    where.add_argument("--image", metavar="IMAGE", help="container image; without one the hosts are processes")
    where.add_argument("--no-image", action="store_true", help="processes, although the job file names an image")
    where.add_argument("--instances", metavar="N", help="number of hosts (default 1)")
    where.add_argument("--distribution", metavar="KIND", help="script (default), torchrun, mpi, pipeline or pytorchxla")
    where.add_argument("--processes-per-host", metavar="N", help="ranks on each host")
    where.add_argument("--engine", help="who starts torchrun's ranks: trainshed (default) or torchrun")
    where.add_argument("--max-restarts", metavar="N", help="how often torchrun's agent restarts the ranks")
    where.add_argument("--cpus", metavar="N", help="CPUs of each container")
    where.add_argument("--memory", metavar="SIZE", help="memory of each container, like 8g")
    where.add_argument("--gpus", metavar="N|all", help="GPUs of each host (default: an equal part of all)")
    where.add_argument("--shm-size", metavar="SIZE", help="/dev/shm of each container (default 2g, or half of the memory)")
    rest = made.add_argument_group("how it goes")
    rest.add_argument("--output", metavar="DIR", help="folder of this run (default: runs/NAME-TIME)")
    rest.add_argument("--checkpoints", metavar="DIR", help="folder for checkpoints that outlives the run")
    rest.add_argument("--copy-to", metavar="URL", help="storage that gets a copy of every checkpoint, like s3://bucket/run")
    rest.add_argument("--max-runtime", metavar="SECONDS", help="stop the job after so long")
    rest.add_argument("--grace", metavar="SECONDS", help="time to end after a stop signal (default 110)")
    largest = "first find the largest value of this hyperparameter that fits into memory, by short runs of the job"
    rest.add_argument("--find-batch-size", metavar="NAME", help=largest)
    rest.add_argument("--scale-lr", metavar="NAME", help="with it: scale this hyperparameter, the learning rate, linearly")
    spot = "play spot capacity through: notice, grace, SIGKILL and a new start after so long, as in 20s,40s"
    rest.add_argument("--spot-interrupt-after", metavar="TIMES", help=spot)
    rest.add_argument("--max-wait", metavar="SECONDS", help="bound on a spot job with all its interruptions")
    rest.add_argument("--retries", metavar="N", help="start a failed job again so often, with its checkpoints")
    rest.add_argument("--detach", action="store_true", help="go on in the background; see trainshed ps, logs, attach, stop")
    rest.add_argument("--dry-run", action="store_true", help="print what would be run, and make nothing")
    return made


class Asked(NamedTuple):
    """What a command line asks for."""

    job: Job
    dry_run: bool = False
    detach: bool = False


def job_of(arguments: list[str], environ: Mapping[str, str]) -> Asked:
    """What a command line asks for.

    Raises:
        JobError: something is wrong in the job file or the flags.
        SystemExit: the command line itself is wrong, or asks for help.
    """
    made = parser()
    options, unknown = made.parse_known_args(arguments)
    if unknown:
        known = [flag for action in made._actions for flag in action.option_strings]
        near = did_you_mean(unknown[0].partition("=")[0], known)
        made.error(f"does not take {unknown[0]!r}" + (f" ({near})" if near else ""))
    from . import read  # after --help

    problems: list[Problem] = []
    values: dict[str, Node] = {}
    origin, name = "trainshed run", ""
    extra: dict[str, Any] = {}
    if options.what.endswith(_ENDINGS):
        from .yamlfile import read_nodes

        origin = options.what
        name = os.path.splitext(os.path.basename(options.what))[0]
        root = read_nodes(options.what, problems)
        values = dict(root.value) if root else {}
        if root is None:
            raise JobError(problems)
        from .request import is_request, translate

        if is_request(values):
            values, extra = translate(values, problems)
    elif options.what:
        values["program"] = _node(options.what, "the command line")
    if options.no_image:
        values = {field: node for field, node in values.items() if field not in ("image", "entrypoint", "arguments")}
    if options.name:
        extra.pop("full_name", None)
    _add_flags(values, vars(options), environ, problems)
    job = read.check(values, environ, origin, name, problems)
    if problems:
        raise JobError(read.in_order(problems))
    return Asked(replace(job, **extra), options.dry_run, options.detach)


def _add_flags(
    values: dict[str, Node], options: dict[str, object], environ: Mapping[str, str], problems: list[Problem]
) -> None:
    """Puts what the flags say over what the file says."""
    spot = values.get("spot")
    if spot is not None and isinstance(spot.value, bool):
        values["spot"] = Node({} if spot.value else None, spot.where, spot.folder)
    for field, short in (("distribution", "kind"), ("checkpoints", "folder")):
        node = values.get(field)
        if node is not None and not isinstance(node.value, dict):
            inner = {short: node} if node.value is not None else {}
            values[field] = Node(inner, node.where, node.folder)
    for flag, field in _FIELDS.items():
        text = options[flag[2:].replace("-", "_")]
        if text is not None:
            _put(values, field, _node(str(text), flag))
    for flag, field in _PAIRS.items():
        for pair in options[flag[2:]]:  # type: ignore[attr-defined]
            name, equals, text = pair.partition("=")
            if not equals and flag == "--env" and name in environ:
                equals, text = "=", environ[name]
            if not equals or not name:
                problems.append(Problem(flag, "must be NAME=VALUE", value=pair))
                continue
            value = _node(text, flag)
            if flag == "--hyperparameter":
                value = _hyperparameter(text)
            elif flag in ("--env", "--metric"):
                value = Node(text, flag, os.getcwd(), text)
            _put(values, f"{field}.{name}", value)


def _put(values: dict[str, Node], field: str, node: Node) -> None:
    outer, dot, inner = field.partition(".")
    if not dot:
        values[outer] = node
        return
    present = values.get(outer)
    held = dict(present.value) if present is not None and isinstance(present.value, dict) else {}
    if present is not None and present.value is not None and not isinstance(present.value, dict):
        return  # the file has something else there, which is a problem of its own
    if outer == "channels" and inner in held and isinstance(held[inner].value, dict):
        node = Node({**held[inner].value, "path": node}, node.where, node.folder)
    held[inner] = node
    where = present.where if present is not None else node.where
    values[outer] = Node(held, where, node.folder)


def _node(text: str, flag: str) -> Node:
    return Node(scalar(text), flag, os.getcwd(), text)


def hyperparameter_of(text: str) -> Any:
    """The value that `--hp K=text` gives."""
    return _hyperparameter(text).plain()


def _hyperparameter(text: str) -> Node:
    """JSON where it is JSON (so `"07"` in quotes is text, `[1, 2]` a list), else text."""
    value = decode_value(text)
    if isinstance(value, (dict, list)) or (isinstance(value, str) and value != text):
        return _tree(value)
    return Node(value if isinstance(value, (bool, int, SpelledFloat)) or value is None else text, "--hp", text=text)


def _tree(value: object) -> Node:
    if isinstance(value, dict):
        return Node({name: _tree(item) for name, item in value.items()}, "--hp")
    if isinstance(value, list):
        return Node([_tree(item) for item in value], "--hp")
    return Node(value, "--hp", text=str(value))


def main(arguments: list[str]) -> int:
    """`trainshed run`."""
    batch = rate = ""
    if any(word.startswith(("--find-batch-size", "--scale-lr")) for word in arguments):
        from ..tools.batch_size import flags_of

        batch, rate, arguments = flags_of(arguments)
    asked = job_of(arguments, os.environ)
    if batch and not asked.dry_run:
        from ..tools.batch_size import run_fitted

        return run_fitted(asked.job, batch, rate)
    if asked.detach and not asked.dry_run:
        from ..control.detached import start

        print(start(asked.job, os.environ).name)
        return 0
    from ..control.execution import run_job

    return run_job(asked.job, os.environ, dry_run=asked.dry_run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
