"""What is fuzzed: each target gives one mutated input to the code that a command of ours runs, and returns what that says.

An error of ours (`TrainshedError`, or the exceptions that a reader documents) is an answer; any other exception is a defect.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

from fuzz.mutate import TOKENS, raw, text, tree, written
from support.command_line import job_of
from trainshed.base.errors import EXIT_INTERNAL, TrainshedError, visible
from trainshed.base.patterns import compiled
from trainshed.checkpoint import folder as folders
from trainshed.checkpoint import foreign_manifest as sealed
from trainshed.checkpoint.manifest import Damaged
from trainshed.checkpoint.manifest import parse as parse_manifest
from trainshed.cli import main
from trainshed.cli.commands import all_commands
from trainshed.container import main as train_main
from trainshed.container.cluster.hosts import natural_order
from trainshed.contract.wire import checkpoint_trouble, notice
from trainshed.contract.wire.pipeline import read_settings
from trainshed.machine.hostlist import expand
from trainshed.places.slurm.client import parse_state
from trainshed.runner.acting import leftovers
from trainshed.runner.control import operations
from trainshed.runner.display.dry_run import describe as describe_run
from trainshed.runner.display.follow import follow, tagged
from trainshed.runner.display.runs import describe, table
from trainshed.runner.files import layout
from trainshed.runner.files.metrics import Metrics
from trainshed.runner.files.run import HostTree
from trainshed.runner.job.job import Job
from trainshed.runner.job.write import job_file
from trainshed.runner.state.job_json import described
from trainshed.runner.state.records import failure_of, phases_of, record_of
from trainshed.runner.state.status import StatusFile
from trainshed.runner.state.stored import load
from trainshed.studio.compare.facts import read_run
from trainshed.studio.compare.table import rows, text_of
from trainshed.studio.lineage.ancestry import ancestry
from trainshed.studio.lineage.drawing import drawing
from trainshed.studio.lineage.family import family_of
from trainshed.studio.lineage.outline import outline
from trainshed.studio.pages.report import report
from trainshed.studio.run_report import facts_of
from trainshed.studio.ui.details import details
from trainshed.studio.watch.dashboard import Watched, render
from unit.contract.mutations import ODD_VALUES, Damage

JOB_FILES = (
    "program: train.py\nname: digits\nhyperparameters: {lr: 1.10, n: [1, {a: 2}], text: \"07\"}\n"
    "channels: {train: data, some: {path: 'data/*.csv', input_mode: Pipe, shuffle_seed: 3}}\n"
    "environment: {A: x, TOKEN: {env: HOME}}\nmetric_definitions: {loss: \"loss=([0-9.]+)\"}\n"
    "spot: {interrupt_after: [3600, 2h], price: 0.3, max_wait_seconds: 99999}\ngrace_seconds: 7\nretries: 2\ntags: {a: b}\n",
    "image: repo/name:tag\ninstances: 2\nentrypoint: [python, -m, x]\narguments: ['--a', b]\n"
    "resources: {memory: 8g, cpus: 1.5, gpus: all, shm_size: 64m}\nmax_runtime_seconds: 3600\n"
    "distribution: {kind: torchrun, processes_per_host: 2}\ncheckpoints: {folder: saved, auto: true, copy_to: 's3://b/run'}\n"
    "network_isolation: false\nslurm: {partition: gpu}\nkubernetes: {namespace: x}\nsagemaker: {role: y}\n",
    "program: train.py\nchannels:\n  train: &d data\n  test: *d\nhyperparameters:\n"
    "  - Name: a\n    Value: 1\ncompiler: true\n",
)  # fmt: skip
REQUEST = {
    "TrainingJobName": "digits",
    "AlgorithmSpecification": {
        "TrainingImage": "image", "TrainingInputMode": "File",
        "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}], "ContainerEntrypoint": ["python"],
    },
    "HyperParameters": {"sagemaker_program": '"train.py"', "lr": "0.1"},
    "InputDataConfig": [
        {"ChannelName": "train", "InputMode": "Pipe", "ShuffleConfig": {"Seed": 1}, "DataSource": {"S3DataSource": {
            "S3DataType": "S3Prefix", "S3Uri": "s3://bucket/data", "S3DataDistributionType": "FullyReplicated"}}},
    ],
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "ResourceConfig": {"InstanceType": "ml.m5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 10},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200},
    "EnableManagedSpotTraining": True, "RetryStrategy": {"MaximumRetryAttempts": 2},
    "CheckpointConfig": {"S3Uri": "file:///tmp/c", "LocalPath": "/opt/ml/checkpoints"},
    "Environment": {"A": "b"}, "Tags": [{"Key": "a", "Value": "b"}],
    "DebugHookConfig": {"S3OutputPath": "s3://b/d", "HookParameters": {"a": "1"}},
}  # fmt: skip
RECORD = {
    "format": 1, "state": "Failed", "started": 1.0, "seconds": 3.0, "exit_code": 1,
    "phases": [{"name": "preparing", "started": 1.0, "seconds": 1.5}, {"name": "training", "started": 2.0, "seconds": 1.0}],
    "job": {"name": "digits", "hyperparameters": {"a": "1"}, "distribution": {"kind": "script"}},
    "cluster": {"hosts": ["algo-1"], "world_size": 1}, "failure": {"kind": "UserError", "host": "algo-1", "summary": "x"},
    "compiler": {"backend": "inductor", "ranks": {"0": {"graphs": 2, "graph_breaks": 1, "fx_cache": {"hit": 1, "miss": 1}}}},
    "checkpoints": {"problem": "the disk is full"}, "versions": {"torch": "2"},
    "environment": {"python": "3.11.2", "packages": {"torch": "2"}, "sources": {"a": {"kind": "vcs", "url": "x"}}},
    "fingerprints": {"train": {"digest": "whole:12", "files": 1, "bytes": 2}},
}  # fmt: skip
PROVENANCE = {
    "code": {"digest": "whole:12", "files": 1, "bytes": 2, "kept": "algo-1/code", "earlier": ["whole:34"]},
    "git": {"commit": "abc", "dirty": True, "changes": 1, "changed": ["a"]},
    "image": {"name": "a", "id": "b"},
    "parents": [{"kind": "model", "run": "b", "id": "12", "folder": "b"}, {"kind": "tuning", "run": "t", "folder": "t"}],
    "model": {"digest": "whole:12", "files": {"w": {"size": 1, "sha256": "12"}}, "bytes": 1, "digests": ["whole:12"]},
}
MANIFEST = {
    "format": 1, "step": 5, "save": "abcd1", "part": 0, "parts": 1, "complete": True, "world_size": 1, "ranks": [0],
    "host": "algo-1", "created": 1.0, "files": [{"name": "algo-1.rank0.objects", "size": 3, "block": 1048576, "crc32": [1]}],
    "reason": "notice", "run": {"seconds": 1.0}, "metrics": {"loss": 0.5},
}  # fmt: skip
SCHEDULERS = {
    "SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_ID": "7",
    "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "JOB_COMPLETION_INDEX": "0", "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "0", "NNODES": "1", "RANK": "0", "WORLD_SIZE": "1",
    "TRAINSHED_HOSTS": "a,b", "TRAINSHED_CURRENT_HOST": "a", "CUDA_VISIBLE_DEVICES": "0,1", "NEURON_RT_NUM_CORES": "2",
}  # fmt: skip
SAFE = (
    "ps",
    "status",
    "logs",
    "clone",
    "stop",
    "rm",
    "compare",
    "checkpoints",
    "export",
    "schema",
    "run",
    "resume",
)
Said = list[str]
Target = Callable[[random.Random, Path], Said]


def config_tree(chance: random.Random, place: Path) -> Said:
    """A damaged /opt/ml and damaged variables of schedulers, read by `train --dry-run`."""
    damage = Damage(chance.randrange(1 << 40))
    base = place / "ml"
    damage.build(base)
    names = chance.sample(sorted(SCHEDULERS), chance.choice((0, 0, 3, 6)))
    odd = {name: SCHEDULERS[name] if chance.random() < 0.6 else _variable(chance) for name in names}
    environ = {"PATH": "/usr/bin:/bin", "SAGEMAKER_BASE_DIR": str(base), **damage.environ, **odd}
    status, said = _captured(lambda: train_main.train(environ, dry_run=True))
    assert status != EXIT_INTERNAL, said
    assert status == 0 or said.strip(), "a failure is explained"
    return [said]


def job_yaml(chance: random.Random, place: Path) -> Said:
    """A damaged job file; where it is still one, what is made of it."""
    found = text(chance, chance.choice(JOB_FILES)).encode("utf-8", "surrogatepass")
    return _job(place / "job.yaml", found if chance.random() < 0.9 else raw(chance, found))


def request(chance: random.Random, place: Path) -> Said:
    """A damaged CreateTrainingJob request."""
    return _job(place / "request.json", written(chance, REQUEST))


def command_line(chance: random.Random, place: Path) -> Said:
    """Words after `trainshed`, of commands that change nothing."""
    with contextlib.chdir(place) if hasattr(contextlib, "chdir") else _chdir(place):
        Path("train.py").write_text("")
        Path("job.yaml").write_text(JOB_FILES[0])
        words = [chance.choice(SAFE) if chance.random() < 0.9 else _variable(chance)]
        pool = (
            "job.yaml",
            "train.py",
            ".",
            "./x",
            "--json",
            "--all",
            "list",
            "verify",
            "kubernetes",
            "sagemaker",
            "--force",
        )
        for _ in range(chance.randrange(5)):
            words.append(chance.choice(pool) if chance.random() < 0.5 else chance.choice(_FLAGS) + _variable(chance))
        if words[0] == "run":
            words.append("--dry-run")
        if words[0] == "resume":
            words = ["resume", "./nowhere", *words[1:]]
        status, said = _captured(lambda: main(words))
        assert status != EXIT_INTERNAL, said
        assert status == 0 or said.strip(), "a failure is explained"
        return [said if words[0] not in ("export", "schema") else ""]


def stored_run(chance: random.Random, place: Path) -> Said:
    """A run folder with damaged files, as later commands read it."""
    os.chdir(place)
    run = layout.plan(Job(name="digits", program="train.py"), in_containers=False, now=1_795_261_200)
    os.makedirs(f"{run.folder}/algo-1/output/data/run")
    os.makedirs(f"{run.folder}/logs")
    status = StatusFile(run)
    files = {"status.json": status.data, "job.json": described(run), "algo-1/output/data/run/algo-1.json": RECORD}
    files["provenance.json"] = PROVENANCE
    for name, value in files.items():
        plain = json.loads(json.dumps(value))
        plain.get("Trainshed", {}).get("Runner", {})["Started"] = 1  # no runner of ours is alive
        data = written(chance, plain) if chance.random() < 0.6 else json.dumps(plain).encode()
        Path(run.folder, name).write_bytes(data)
    Path(run.folder, "logs", "algo-1.log").write_bytes(
        text(chance, "metric loss=1 step=2\n[0] x\n").encode("utf-8", "replace")
    )
    Path(run.folder, "algo-1/output/failure").write_bytes(raw(chance, b"UserError: x\n\nlast output"))
    stored = load(run.folder)
    said = []
    if stored.runner or stored.in_containers:  # `Runner` was replaced by something that lives: not ours to act on
        return said
    with patch.object(leftovers, "processes_of", return_value=[]):  # it looks at every process of the machine
        standing = operations.state_of(stored, {})
        json.dumps(operations.public_status(stored, {}))
    said += [table([(stored, standing)], everything=True), describe(stored, standing)]
    host = HostTree("algo-1", f"{run.folder}/algo-1", f"{run.folder}/algo-1")
    said += [visible(failure_of(host)), str(phases_of([host])), visible(str(record_of(host)))]
    for entry in follow(stored, forever=False):
        if entry is not None:
            tagged(*entry, True)
    for act in (lambda: operations.clone(stored), lambda: _compared(run.folder)):
        said.append(_answer(act))
    said += [visible(report(facts_of(stored))), *render(Watched().look(stored, standing[0]), 100, 40)]
    json.dumps(details(stored), allow_nan=False)
    told = ancestry(stored, family_of([stored]), down=True)
    said += [json.dumps(told), visible(outline(told)), drawing(told)]
    said.append(_answer(lambda: str(operations.to_resume(stored, {}, said.append, _enough))))
    return said


def checkpoints(chance: random.Random, place: Path) -> Said:
    """Manifests of checkpoints and seals, damaged with and without a right checksum."""
    data = written(chance, MANIFEST)
    line = data.replace(b"\n", b"")
    whole = line + b"\n%08x\n" % zlib.crc32(line) if chance.random() < 0.9 else data
    said = []
    try:
        parse_manifest(whole, "x.manifest")
    except Damaged as error:
        said.append(str(error))
    step = place / "step-000000000005"
    step.mkdir()
    (step / "algo-1.part0.manifest").write_bytes(whole)
    (step / "algo-1.rank0.objects").write_bytes(b"abc")
    other = place / "checkpoint-5"
    other.mkdir()
    for name in ("trainshed.manifest", ".trainshed.manifest", "algo-1.part0.manifest"):
        (other / name).write_bytes(whole)
    found, skipped = folders.scan(str(place))
    said += [one.line() for one in skipped]
    for checkpoint in found:
        said.append(_answer(lambda checkpoint=checkpoint: str(folders.verify(checkpoint) or "whole")))  # type: ignore[misc]
    folders.best_steps(str(place), "loss", chance.choice(("min", "max")))
    said.append(_answer(lambda: str(sealed.check(str(other)))[:0] or "whole"))
    status, listed = _captured(lambda: main(["checkpoints", chance.choice(("list", "verify")), str(place)]))
    assert status in (0, 1, 2), listed
    return [*said, listed]


def small_readers(chance: random.Random, place: Path) -> Said:
    """Lists of hosts, Slurm's answers, metrics, notices, settings of a pipeline, notes between ranks and `train`."""
    said = []
    hosts = text(chance, "gpu[01-03,7],login,n[1-2]-x[3-4]")
    said.append(_answer(lambda: " ".join(natural_order(expand(hosts)))[:0] or "hosts"))
    said.append(
        _answer(
            lambda: str(parse_state(text(chance, "JobId=7 JobState=FAILED ExitCode=1:0 NodeList=n[1-2] Restarts=1")))[:0]
        )
    )
    regex = text(chance, "loss=([0-9.]+)")
    metrics = Metrics.of([])
    metrics.scan(
        text(chance, "metric loss=1.5 step=3 name=x\n[algo-1] [0] metric a=1e400\n").encode("utf-8", "surrogatepass")
    )
    metrics.finish()
    json.dumps([metrics.now(), metrics.remarks])
    try:
        if compiled(regex).groups:  # what a job file takes
            Metrics.of([("a", regex)]).scan(b"loss=1\nloss=x 2\n")
    except (re.error, OverflowError, RecursionError):
        pass
    settings = tree(chance, {"pipeline_parallel_degree": 2, "microbatches": 4, "pipeline": "1f1b", "partitions": 2})
    said.append(_answer(lambda: str(read_settings(settings if isinstance(settings, dict) else {}))[:0]))
    noted = place / "run/algo-1.checkpoints-rank0"
    noted.parent.mkdir()
    noted.write_bytes(written(chance, {"step": 1, "failures": 2, "reason": "full"}))
    said.append(checkpoint_trouble.take(str(noted.parent), "algo-1"))
    told = place / "notice.json"
    told.write_bytes(written(chance, {"kind": "stop", "source": "x", "deadline": 1.0, "detail": "y", "action": "stop"}))
    notice.read_notice(str(told))
    notice.read_answers(str(told))
    return said


def plans(chance: random.Random, place: Path) -> Said:
    """Plan files of the pipeline (this one loads torch)."""
    from trainshed.parallel.plan.plan_file import VERSION, load_plan

    plan = {
        "version": VERSION, "model": "abc",
        "pipeline": {"ranks": 2, "virtual_stages": 1, "schedule": "1f1b", "microbatches": 4},
        "units": [{"unit": "a", "call": 0, "stage": 0, "forward_ms": 1.0}, {"unit": "b", "call": 0, "stage": 1}],
        "atomic": {"a": "x"}, "overrides": {"a": 0}, "boundaries": [1], "shared": {}, "predicted": {"step_ms": 1.0},
        "notes": ["n"],
    }  # fmt: skip
    path = place / "plan.json"
    path.write_bytes(written(chance, plan))
    return [_answer(lambda: str(load_plan(str(path)))[:0])]


TARGETS: dict[str, tuple[Target, int]] = {  # with its share of the cases
    "configuration and schedulers' variables": (config_tree, 30),
    "job files": (job_yaml, 25),
    "CreateTrainingJob requests": (request, 15),
    "command lines": (command_line, 10),
    "stored runs and records": (stored_run, 8),
    "checkpoints' manifests": (checkpoints, 6),
    "hosts, metrics, notices, settings": (small_readers, 5),
    "plan files": (plans, 1),
}
_FLAGS = (
    *("", "", "--name=", "--instances=", "--hp=", "--env=", "--channel=", "--grace=", "--memory=", "--image="),
    "--spot-price=",
    *("--rank=", "--last=", "--host=", "--keep-last=", "--tag=", "--nonsense=", "-", "--", "--distribution="),
    *("--on=", "--sbatch="),
)  # fmt: skip


def _variable(chance: random.Random) -> str:
    """A word that a process can be given."""
    found = str(chance.choice((*TOKENS, *ODD_VALUES)))[:5000].replace("\0", "")
    found = found.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    return found.lstrip("/") if "dev/" not in found else "x"


def _job(path: Path, data: bytes) -> Said:
    (path.parent / "data").mkdir()
    (path.parent / "data/a.csv").write_text("1")
    (path.parent / "train.py").write_text("")
    path.write_bytes(data)
    os.chdir(path.parent)

    def made() -> str:
        job = job_of([str(path)], {"HOME": str(path.parent)})
        run = layout.plan(job, in_containers=bool(job.image), now=1_795_261_200)
        json.dumps(described(run))
        describe_run(run, "lo", [])
        return job_file(job, "fuzz")

    return [_answer(made)]


def _compared(folder: str) -> str:
    facts = read_run(folder)
    return visible(text_of((facts, facts), rows(facts, facts)))


class _Enough(TrainshedError):
    """Nothing is to be settled or started."""


def _enough(_job: Job) -> Job:
    raise _Enough("enough")


def _answer(act: Callable[[], str]) -> str:
    """What a reader makes of its input: its text, or its error's."""
    try:
        return act()
    except TrainshedError as error:
        assert error.message.strip(), "an error without words"
        assert "\n" not in error.message + error.hint
        return f"{error.message}\n{visible(error.details)}\n{error.hint}"
    except Damaged as error:
        return visible(str(error))


@contextlib.contextmanager
def _chdir(place: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


def _captured(act: Callable[[], int]) -> tuple[int, str]:
    """A command's exit status and what it printed, on both streams and past them."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict"), io.StringIO()
    saved = os.dup(2)
    try:
        with tempfile.TemporaryFile() as direct:
            os.dup2(direct.fileno(), 2)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    status = act()
                except SystemExit as error:
                    status = error.code if isinstance(error.code, int) else 1
            out.flush()
            direct.seek(0)
            printed = out.buffer.getvalue() + direct.read()  # type: ignore[attr-defined]
    finally:
        os.dup2(saved, 2)
        os.close(saved)
    return status, printed.decode("utf-8", "backslashreplace") + err.getvalue()


assert set(SAFE) <= set(all_commands())
