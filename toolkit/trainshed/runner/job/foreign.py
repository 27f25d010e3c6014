"""Files of other tools that are given for a job file: which tool's, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainshed.base.errors import JobError, Problem
from trainshed.base.record import Record

from .nodes import Node

_KIND = re.compile(r"(?m)^kind:[ \t]*[\"']?(\w+)")
_API = re.compile(r"(?m)^apiVersion:[ \t]*\S")


class _Tool(Record):
    """keys: top-level names that a file of this tool has, all of them; any_of: and one of these.

    what: whose file it is. hint: what to write, with `{file}` for its name.
    """

    what: str
    keys: tuple[str, ...]
    hint: str
    any_of: tuple[str, ...] = ()


_TOOLS = (
    _Tool(
        what="a configuration of Accelerate",
        keys=("distributed_type",),
        any_of=("compute_environment", "num_processes", "mixed_precision", "machine_rank"),
        hint="write a job file with `program: train.py` and `distribution: {{accelerate: {file}}}`",
    ),
    _Tool(
        what="a configuration of DeepSpeed",
        keys=(),
        any_of=("zero_optimization", "train_micro_batch_size_per_gpu"),
        hint="write a job file with `program: train.py`, `distribution: torchrun`, `hyperparameters: {{deepspeed: {file}}}`",
    ),
    _Tool(
        what="a configuration of Axolotl",
        keys=("base_model", "datasets"),
        hint="write a script run.sh with `axolotl train {file}` beside it, and run that: trainshed run run.sh",
    ),
    _Tool(
        what="a configuration of LLaMA-Factory",
        keys=("model_name_or_path",),
        any_of=("finetuning_type", "stage", "template"),
        hint="write a script run.sh with `llamafactory-cli train {file}` beside it, and run that: trainshed run run.sh",
    ),
    _Tool(
        what="a file of Docker Compose",
        keys=("services",),
        hint="write a job file with `image:` of one service, `program:`, `channels:` for its volumes and `instances:`",
    ),
    _Tool(
        what="a task of SkyPilot",
        keys=("run",),
        any_of=("setup", "resources", "num_nodes", "file_mounts"),
        hint="write a job file with `program:` for the script of `run`, and `instances:` for num_nodes",
    ),
    _Tool(
        what="a file for `trainshed tune`",
        keys=("search",),
        any_of=("job", "objective"),
        hint="run it with: trainshed tune {file}",
    ),
    _Tool(
        what="a pipeline of steps",
        keys=("steps",),
        hint="run it with: trainshed steps run {file}",
    ),
    _Tool(
        what="a request for a tuning job of SageMaker",
        keys=("HyperParameterTuningJobName",),
        hint="run it with: trainshed tune {file}",
    ),
    _Tool(
        what="a request of SageMaker, but not a whole one for a training job",
        keys=(),
        any_of=("TrainingJobName", "AlgorithmSpecification", "ProcessingJobName", "ModelName", "PipelineName"),
        hint="a training job's request has TrainingJobName and AlgorithmSpecification; or write `image:` and `program:`",
    ),
)
# Kinds of Kubernetes: how their hosts and ranks are said in a job file.
_KINDS = {
    "PyTorchJob": "`image:`, `program:`, `instances:` (replicas of all kinds) and `distribution: torchrun`",
    "TrainJob": "`image:`, `program:`, `instances:` (numNodes) and `distribution: torchrun`",
    "MPIJob": "`image:`, `program:`, `instances:` (replicas of Worker) and `distribution: mpi`",
    "TFJob": "`image:`, `program:`, `instances:` (all replicas) and `distribution: tensorflow`",
    "JAXJob": "`image:`, `program:`, `instances:` (replicas) and `distribution: jax`",
    "RayJob": "`image:`, `program:`, `instances:` (hosts) and `distribution: ray`",
}
_ANY_KIND = "`image:` and `program:`, and `instances:` for several hosts"


def refuse_foreign(values: Mapping[str, Node], path: str) -> None:
    """Raises JobError where the names are those of another tool's file."""
    if "program" in values:  # a job file with mistakes, which are told one by one
        return
    if "apiVersion" in values and "kind" in values:
        _refuse_kind(values["kind"].text, path)
    for tool in _TOOLS:
        if all(key in values for key in tool.keys) and (not tool.any_of or any(key in values for key in tool.any_of)):
            raise JobError([Problem(path, f"is {tool.what}, not a job file", suggestion=tool.hint.format(file=path))])


def refuse_manifests(path: str) -> None:
    """Raises JobError where a file that is no job file's YAML (several documents, tags) describes objects of Kubernetes."""
    try:
        with open(path, encoding="utf-8", errors="replace") as opened:
            text = opened.read(1 << 20)
    except OSError:
        return
    kinds = _KIND.findall(text)
    if kinds and _API.search(text):
        _refuse_kind(next((kind for kind in kinds if kind in _KINDS), kinds[0]), path)


def _refuse_kind(kind: str, path: str) -> None:
    hint = f"write a job file with {_KINDS.get(kind, _ANY_KIND)}, and run it with: trainshed run JOB.yaml --on kubernetes"
    raise JobError([Problem(path, f"describes a {kind} of Kubernetes, and is not a job file", suggestion=hint)])
