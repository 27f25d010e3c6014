"""Starts the programs of entrypoints/ as a launcher does: one process a rank, torchrun's variables, SM_* variables.

The fixtures at the end have them as modules, and run them in this process; a conftest names those that its folder uses.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.free_ports import free_ports
from support.paths import ENTRYPOINTS

TOOLKIT = ENTRYPOINTS.with_name("toolkit")
LIMIT = 600.0  # seconds, after which a run that hangs is killed
Module = Callable[[str], ModuleType]
Options = Callable[..., Namespace]
Train = Callable[..., str]
# Hyperparameters of a small one, for the programs that make a transformer.
TRANSFORMER = {"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 300, "max_length": 16, "num_hidden_layers": 1}
METRIC = re.compile(r"^metric (\w+)=(\S+) epoch=(\S+) step=(\d+)$", re.MULTILINE)


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without any job in it, one thread a process, and `extra`."""
    job = ("SM_", "SAGEMAKER_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI_", "SLURM_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(job)}
    return {**inherited, "PYTHONPATH": str(TOOLKIT), "OMP_NUM_THREADS": "1", **extra}


@dataclass
class Ranks:
    """The processes of a run. output, errors: what each rank printed, complete after `finish`.

    A pipe takes 4 KiB and is read by the line as it is waited for, so a rank 0 that prints with every step cannot run away
    from a test that waits for one of the first.
    """

    processes: list[subprocess.Popen[bytes]]
    error_files: list[Path]
    output: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def wait_for(self, pattern: str) -> None:
        """Reads rank 0's output up to a line that matches."""
        stream = self.processes[0].stdout
        assert stream is not None
        for read in stream:
            line = read.decode()
            self.output[0] += line
            if re.search(pattern, line):
                return
        raise AssertionError(f"rank 0 ended without a line like {pattern!r}:\n{self.output[0]}{self._errors()}")

    def finish(self) -> list[int]:
        """Waits for all ranks and gives their exit statuses."""
        for rank, process in enumerate(self.processes):
            assert process.stdout is not None
            self.output[rank] += process.stdout.read().decode()
            process.wait()
        self.errors = [path.read_text() for path in self.error_files]
        return [process.returncode for process in self.processes]

    def succeed(self) -> str:
        """Waits for all ranks, which must exit with 0; gives rank 0's output."""
        statuses = self.finish()
        assert set(statuses) == {0}, f"exit statuses {statuses}:\n{self.output}\n{self._errors()}"
        return self.output[0]

    def _errors(self) -> str:
        return "\n".join(path.read_text() for path in self.error_files)


@contextlib.contextmanager
def started(program: str, *arguments: str, cwd: Path, ranks: int = 1, **extra: str) -> Iterator[Ranks]:
    """Starts a program in `cwd`, with variables `extra`, where {rank} is the rank's number; none of its processes outlives
    the block.

    Unless `extra` has the folder of checkpoints, there is none: that of a job which this machine may have in /opt/ml stays
    as it is.
    """
    extra = {"SM_CHECKPOINT_DIR": str(cwd / "absent"), **extra}
    port = str(free_ports())
    processes, error_files = [], []
    try:
        for rank in range(ranks):
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
            variables |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            own = {name: value.replace("{rank}", str(rank)) for name, value in extra.items()}
            error_files.append(cwd / f"stderr-{port}-{rank}")
            with error_files[-1].open("w") as errors:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, str(ENTRYPOINTS / program), *arguments],
                        cwd=cwd,
                        env=environment(**(variables if ranks > 1 else {}) | own),
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        bufsize=0,
                        pipesize=4096,
                    )
                )
        watchdog = threading.Timer(LIMIT, lambda: [process.kill() for process in processes])
        watchdog.start()
        try:
            yield Ranks(processes, error_files, output=[""] * ranks)
        finally:
            watchdog.cancel()
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def run(program: str, *arguments: str, cwd: Path, ranks: int = 1, **extra: str) -> str:
    """Runs a program to its successful end; gives rank 0's output."""
    with started(program, *arguments, cwd=cwd, ranks=ranks, **extra) as job:
        return job.succeed()


def kill_and_go_on(program: str, *arguments: str, cwd: Path, line: str, ranks: int = 1) -> None:
    """Trains to the folder `through`; and to `model`, killed at a line like this and started again from a checkpoint."""
    run(program, *arguments, "--model_dir", "through", cwd=cwd, ranks=ranks)
    (cwd / "checkpoints").mkdir()
    kept = {"SM_CHECKPOINT_DIR": str(cwd / "checkpoints")}
    with started(program, *arguments, cwd=cwd, ranks=ranks, **kept) as job:
        job.wait_for(line)
        for process in job.processes:
            process.kill()
        job.finish()
    with started(program, *arguments, cwd=cwd, ranks=ranks, **kept) as job:
        job.succeed()
    assert "resumed from" in job.errors[0]


def metrics(output: str, name: str) -> list[tuple[float, int]]:
    """(value, step) of each line about the metric `name`."""
    return [(float(value), int(step)) for found, value, _, step in METRIC.findall(output) if found == name]


def channel(folder: Path, content: str | bytes | list[Any], name: str = "a.csv") -> Path:
    """A channel of one file: text, bytes as they are, or objects as lines of JSON. Text is packed if the name says so."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(content, list):
        content = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in content)
    if isinstance(content, str):
        content = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
    (folder / name).write_bytes(content)
    return folder


def as_previous_model(folder: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    """Makes a model's folder the channel `model` of this process, packed as the platform packs it, below `place`."""
    channel = place / "input" / "data" / "model"
    channel.mkdir(parents=True)
    with tarfile.open(channel / "model.tar.gz", "w:gz") as tar:
        tar.add(folder, ".")
    monkeypatch.setenv("SM_CHANNEL_MODEL", str(channel))
    monkeypatch.setenv("SM_CHANNELS", '["model"]')
    monkeypatch.setattr(tempfile, "tempdir", str(place))


def job_folder(root: Path, data: Path, *channels: str) -> dict[str, str]:
    """Variables of a job below `root`, which is made, with the folders of `data` as its channels."""
    (root / "input").mkdir(parents=True)
    (root / "input" / "data").symlink_to(data)
    (root / "checkpoints").mkdir()
    return job_variables(root, *channels)


def job_variables(root: Path, *channels: str) -> dict[str, str]:
    """SM_* variables of a job whose folders lie below `root`, as /opt/ml has them."""
    return {
        "SM_MODEL_DIR": str(root / "model"),
        "SM_OUTPUT_DATA_DIR": str(root / "output" / "data"),
        "SM_CHECKPOINT_DIR": str(root / "checkpoints"),
        "SM_CHANNELS": str(sorted(channels)).replace("'", '"'),
        **{f"SM_CHANNEL_{name.upper()}": str(root / "input" / "data" / name) for name in channels},
    }


def request_of_the_platform(
    repository: str,
    hyperparameters: dict[str, str],
    channels: dict[str, tuple[Path, str]],
    account: str = "382416733822",
    hosts: int = 1,
    sharded: tuple[str, ...] = (),
) -> str:
    """The JSON of a training job with an image of the platform's own.

    channels: by name, folder and content type.   sharded: those of which a host gets a share.
    """
    inputs = []
    for name, (folder, content) in channels.items():
        distribution = "ShardedByS3Key" if name in sharded else "FullyReplicated"
        place = {"S3DataType": "S3Prefix", "S3Uri": f"file://{folder}", "S3DataDistributionType": distribution}
        inputs.append({"ChannelName": name, "ContentType": content, "DataSource": {"S3DataSource": place}})
    image = f"{account}.dkr.ecr.us-east-1.amazonaws.com/{repository}"
    asked = {
        "TrainingJobName": "as-ever",
        "AlgorithmSpecification": {"TrainingImage": image, "TrainingInputMode": "File"},
        "HyperParameters": hyperparameters,
        "InputDataConfig": inputs,
        "ResourceConfig": {"InstanceCount": hosts, "InstanceType": "ml.m5.2xlarge", "VolumeSizeInGB": 5},
        "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    }
    return json.dumps(asked)


def arguments(**given: object) -> list[str]:
    """Hyperparameters as a job writes them; those that are None are left out."""
    return [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]


@pytest.fixture(scope="session")
def module() -> Iterator[Module]:
    """Imports a program of entrypoints/ by its name; leaves the import path, modules and environment as they were."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ENTRYPOINTS))
        yield _import
    for name in set(sys.modules) - before:
        if str(ENTRYPOINTS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def _import(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # language_model sets these two where they are not set, for the whole process
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        return importlib.import_module(name.removesuffix(".py"))


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest, module: Module) -> ModuleType:
    """The program that a test module names as its PROGRAM."""
    return module(request.module.PROGRAM)


@pytest.fixture
def outside_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a job in this process, and no checkpoints of a job that this machine may have in /opt/ml."""
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("SM_CHECKPOINT_DIR", str(tmp_path / "absent"))


@pytest.fixture
def started_here(
    module: Module, outside_a_job: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Train:
    """Runs a program in this process and in the test's folder; gives what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *words: object) -> str:
        monkeypatch.setattr("sys.argv", [name, *map(str, words)])
        module(name).main()
        return capsys.readouterr().out

    return run


def small(request: pytest.FixtureRequest, root: Path, **changed: object) -> list[str]:
    """Hyperparameters of a job on the folder `train` below root: those that a test module names as SMALL, with changes."""
    places = {"train": root / "train", "model_dir": root / "model", "output_data_dir": root / "output", "device": "cpu"}
    return arguments(**{**places, **request.module.SMALL, **changed})


@pytest.fixture
def options(request: pytest.FixtureRequest, program: ModuleType, outside_a_job: None, tmp_path: Path) -> Options:
    """Reads the hyperparameters of a job that is `small`."""
    return lambda **changed: program.hyperparameters(small(request, tmp_path, **changed))


@pytest.fixture
def train(request: pytest.FixtureRequest, started_here: Train, tmp_path: Path) -> Train:
    """Runs a job that is `small` in this process; gives what it printed."""
    return lambda **changed: started_here(request.module.PROGRAM, *small(request, tmp_path, **changed))
