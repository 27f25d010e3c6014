"""Valid job folders, and seeded damage to them: what disks, editors, scripts and platforms do to config files."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Files = dict[str, bytes]
CONFIG = "input/config"


def _archive() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, text in (("train.py", b"pass\n"), ("src/model.py", b"x = 1\n")):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return data.getvalue()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


CHANNELS = {
    "train": {"ContentType": "text/csv", "TrainingInputMode": "File", "S3DistributionType": "FullyReplicated"},
    "stream": {"TrainingInputMode": "Pipe", "RecordWrapperType": "RecordIO", "CompressionType": "Gzip"},
}
HOSTS = {
    "current_host": "algo-2",
    "current_instance_type": "ml.g4dn.xlarge",
    "current_group_name": "gpus",
    "hosts": ["algo-1", "algo-2", "algo-3"],
    "instance_groups": [
        {"instance_group_name": "cpus", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "gpus", "instance_type": "ml.g4dn.xlarge", "hosts": ["algo-3", "algo-2"]},
    ],
    "network_interface_name": "eth0",
    "topology": [{"hostName": "algo-1", "capacityUnitId": "cu-1"}],
}
PLAIN: Files = {
    f"{CONFIG}/hyperparameters.json": _json(
        {"sagemaker_program": '"train.py"', "epochs": "3", "lr": "1e-3", "layers": "[64, [1, 2]]", "opt": '{"b": {"c": 1}}'}
    ),
    f"{CONFIG}/inputdataconfig.json": _json(CHANNELS),
    f"{CONFIG}/resourceconfig.json": _json({"current_host": "algo-1", "hosts": ["algo-1"]}),
    "input/data/train/a.csv": b"1,2\n",
    "code/train.py": b"pass\n",
}
CLUSTER: Files = {
    **PLAIN,
    f"{CONFIG}/hyperparameters.json": _json(
        {
            "sagemaker_program": "train.py",
            "sagemaker_torch_distributed_enabled": "true",
            "sagemaker_distribution_instance_groups": '["gpus"]',
            "sagemaker_container_log_level": "20",
            "sagemaker_job_name": '"job-1"',
            "trainshed_processes_per_host": "2",
            "trainshed_host_timeout_seconds": "1",
            "trainshed_argv": "json",
            "name": '"resnet"',
            "nothing": "null",
        }
    ),
    f"{CONFIG}/resourceconfig.json": _json(HOSTS),
}
EVERYTHING: Files = {
    **PLAIN,
    f"{CONFIG}/checkpointconfig.json": _json({"S3Uri": "s3://bucket/ckpt", "LocalPath": "/opt/ml/checkpoints"}),
    f"{CONFIG}/metric-definition-regex.json": _json([{"Name": "loss", "Regex": "loss=([0-9.]+)"}]),
    f"{CONFIG}/tensorboardoutputconfig.json": _json({"LocalPath": "/opt/ml/output/tb", "S3OutputPath": "s3://b/tb"}),
    f"{CONFIG}/debughookconfig.json": _json(
        {
            "S3OutputPath": "s3://b/debug",
            "LocalPath": "/opt/ml/output/tensors",
            "HookParameters": {"save_interval": "100"},
            "CollectionConfigurations": [{"CollectionName": "losses"}],
        }
    ),
    f"{CONFIG}/profilerconfig.json": _json({"ProfilingParameters": {"ProfilerEnabled": True, "LocalPath": "/tmp/p"}}),
    f"{CONFIG}/init-config.json": _json({"inputMode": "FILE"}),
    f"{CONFIG}/trainingjobconfig.json": _json({"TrainingJobName": "job-1"}),
    f"{CONFIG}/upstreamoutputdataconfig.json": _json([]),
}
PACKED: Files = {
    f"{CONFIG}/hyperparameters.json": _json({"sagemaker_submit_directory": "BASE/source.tar.gz", "a": "1"}),
    "source.tar.gz": _archive(),
}
SHELL: Files = {
    f"{CONFIG}/hyperparameters.json": _json({"sagemaker_program": '"run.sh"', "mp_parameters": '{"ddp": true}'}),
    f"{CONFIG}/inputdataconfig.json": _json({"code": {}}),
    "input/data/code/run.sh": b"#!/bin/sh -e\ntrue\n",
}
VARIABLES: Files = {"code/train.py": b"pass\n", "input/data/train/a.csv": b"1\n"}
TREES: tuple[tuple[Files, dict[str, str]], ...] = (
    (PLAIN, {}),
    (CLUSTER, {}),
    (EVERYTHING, {}),
    (PACKED, {}),
    (SHELL, {}),
    (
        VARIABLES,
        {
            "SM_HPS": '{"sagemaker_program": "train.py", "epochs": "3"}',
            "SM_RESOURCE_CONFIG": json.dumps({"current_host": "a", "hosts": ["a"]}),
            "SM_INPUT_DATA_CONFIG": json.dumps(CHANNELS),
        },
    ),
    (
        VARIABLES,
        {
            "SAGEMAKER_PROGRAM": "train.py",
            "SM_HP_EPOCHS": "3",
            "SM_HOSTS": '["a-1", "a-2"]',
            "SM_CURRENT_HOST": "a-1",
            "SM_CHANNEL_TRAIN": "/data",
            "TRAINSHED_GRACE_SECONDS": "5",
        },
    ),
)

# Values of every kind, most of them wrong somewhere.
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e308, float("nan"), float("inf"), 2**70, "", " ", "0", "null", "true", "train.py"),
    *([], [[]], [None], [1, "a"], ["a", "a"], {}, {"": ""}, {"a": {"b": [1, {"c": None}]}}),
    *("\0", "a\0b", "\ud800", "\ud83d\ude82", "é", "日本語", "a\nb\r\n\tc", "\x1b[31m", "../../etc/passwd", ".", ".."),
    *("/no", "-m x", "-m os.path", "--help", "=", "a=b", "$(id)", "'", '"', "\\", "%s{0}", "s3://bucket/key", "http://x/y", "file:///nowhere"),
    *("1" * 5000, "9" * 300, "1e99999", "x" * 300, "[" * 3000, '{"a":' * 3000, "[" * 400 + "]" * 400),
    *('["\\ud800"]', '{"\\u0000": "\\ud800"}', "²", "٣", "(((", "a{99999999999}"),
    *("INFO", "yes", "torchrun", "mpi", "pipeline", "Script", "jsn", "65536", "1.0", "1_000"),
)  # fmt: skip
LONG = "y" * 200_000
RESERVED = (
    *("sagemaker_program", "sagemaker_submit_directory", "sagemaker_job_name", "sagemaker_region", "sagemaker_progam"),
    *("sagemaker_container_log_level", "sagemaker_mpi_enabled", "sagemaker_mpi_num_of_processes_per_host"),
    *("sagemaker_distribution_instance_groups", "sagemaker_torch_distributed_enabled", "sagemaker_pytorch_ddp_enabled"),
    *("trainshed_distribution", "trainshed_processes_per_host", "trainshed_engine", "trainshed_max_restarts"),
    *("trainshed_argv", "trainshed_grace_seconds", "trainshed_master_port", "trainshed_program", "trainshed_source"),
    *("trainshed_hots_timeout", "trainshed_", "_tuning_objective_metric", "", "=", "a=b", "api_key", "k" * 3000),
)
ODD_TEXTS = (
    *("", " ", "0", "x", "²", "-1", "70000", "[", "{}", "[]", "null", "a,b", ",", "é", "\udcff", "a\udcffb", "a/b", "GPU-1"),
    *("no,no", "1,1", "['a']", '["a"]', '{"a": 1}', '"a"', "1" * 5000, "[" * 3000, "[" * 300 + "]" * 300, "z" * 140_000),
)
VARIABLE_NAMES = (
    *("SM_HPS", "SM_HOSTS", "SM_CURRENT_HOST", "SM_RESOURCE_CONFIG", "SM_INPUT_DATA_CONFIG", "SM_CHANNEL_", "SM_CHANNEL_A"),
    *("SM_HP_", "SM_HP_A", "SM_HP_SAGEMAKER_PROGRAM", "SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR", "SM_NETWORK_INTERFACE_NAME"),
    *("SAGEMAKER_PROGRAM", "SAGEMAKER_SUBMIT_DIRECTORY", "SM_ENTRY_SCRIPT", "SM_SOURCE_DIR", "SM_USER_ENTRY_POINT"),
    *("TRAINING_JOB_NAME", "AWS_REGION", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "NEURON_RT_NUM_CORES"),
    *("CHECKPOINT_CONFIG_FILE_PATH", "SAGEMAKER_CONTAINER_LOG_LEVEL", "TRAINSHED_DISTRIBUTION", "TRAINSHED_ENGINE"),
    *(
        "TRAINSHED_NOTHING",
        "TRAINSHED_MASTER_PORT",
        "TRAINSHED_SOURCE",
        "PYTHONPATH",
        "HF_TOKEN",
        "OTHER",
        "OMP_NUM_THREADS",
    ),
)


class Damage:
    """One damaged job: its files, its variables, what is to be done to the disk, and a description of it all."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(f"trainshed-{number}")
        files, environ = TREES[number % len(TREES)]
        self.files, self.environ = dict(files), dict(environ)
        self.on_disk: list[Callable[[Path], None]] = []
        self.notes: list[str] = []
        for _ in range(self.random.choice((1, 1, 1, 2, 2, 3))):
            self.random.choice(MUTATIONS)(self)

    def build(self, base: Path) -> None:
        """Writes the folder, then damages it."""
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir()
        for name, data in self.files.items():
            path = base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.replace(b"BASE", os.fsencode(base)))
        for change in self.on_disk:
            try:
                change(base)
            except OSError:  # what was to be damaged is damaged already
                pass


def _a_file(damage: Damage) -> str:
    return damage.random.choice(list(damage.files))


def _config(damage: Damage) -> tuple[str, Any] | None:
    """A config file that still is JSON, and its value."""
    names = [name for name in damage.files if name.startswith(CONFIG)]
    damage.random.shuffle(names)
    for name in names:
        try:
            return name, json.loads(damage.files[name])
        except (ValueError, RecursionError):
            continue
    return None


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a JSON value, itself first."""
    found = [path]
    if len(path) > 6:
        return found
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += _places(item, (*path, key))
    return found


def _store(damage: Damage, name: str, value: Any) -> None:
    damage.files[name] = json.dumps(value).encode()  # lone surrogates as \ud800, NaN as NaN


def flip_bytes(damage: Damage) -> None:
    name = _a_file(damage)
    data = bytearray(damage.files[name])
    for _ in range(damage.random.choice((1, 1, 2, 8))):
        if data:
            data[damage.random.randrange(len(data))] ^= 1 << damage.random.randrange(8)
    damage.files[name] = bytes(data)
    damage.notes.append(f"flipped bits in {name}")


def truncate(damage: Damage) -> None:
    name = _a_file(damage)
    damage.files[name] = damage.files[name][: damage.random.randrange(len(damage.files[name]) + 1)]
    damage.notes.append(f"truncated {name}")


def insert_bytes(damage: Damage) -> None:
    name = _a_file(damage)
    data = damage.files[name]
    at = damage.random.randrange(len(data) + 1)
    piece = damage.random.choice(
        (b"\0", b"\xff", b"\xef\xbb\xbf", b'"', b"{", b"]", b",", b"\n", b"\\", b"\xed\xa0\x80", b"1e999")
    )
    damage.files[name] = data[:at] + piece * damage.random.choice((1, 1, 3)) + data[at:]
    damage.notes.append(f"inserted {piece!r} into {name} at {at}")


def replace_content(damage: Damage) -> None:
    name = _a_file(damage)
    depth = damage.random.choice((50, 300, 900, 5000, 100_000))
    contents = (
        *(b"", b" \n", b"\0" * 64, b"\xff\xfe{\0}\0", b"null", b"[]", b'""', b"1", b"true", b"NaN", b"{}", b"not json"),
        *(b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth),
        *(b'{"a":' + b"9" * 5000 + b"}", b'{"a": 1, "a": 2}', b"\xef\xbb\xbf{}", bytes(range(256)), b"'", b"{'a': 1}"),
    )
    damage.files[name] = damage.random.choice(contents)
    damage.notes.append(f"replaced the content of {name} by {damage.files[name][:20]!r} ({len(damage.files[name])} bytes)")


def change_value(damage: Damage) -> None:
    if (found := _config(damage)) is None:
        return
    name, value = found
    path = damage.random.choice(_places(value))
    new = damage.random.choice((*ODD_VALUES, *ODD_VALUES, LONG))
    if damage.random.random() < 0.2:
        for _ in range(damage.random.choice((1, 20, 200, 700))):
            new = [new] if damage.random.random() < 0.7 else {"a": new}
    if path:
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = new
    else:
        value = new
    try:
        _store(damage, name, value)
    except RecursionError:
        return
    damage.notes.append(f"{name}: {path} = {repr(new)[:60]}")


def delete_value(damage: Damage) -> None:
    if (found := _config(damage)) is None or len(places := _places(found[1])) == 1:
        return
    name, value = found
    path = damage.random.choice(places[1:])
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    _store(damage, name, value)
    damage.notes.append(f"{name}: deleted {path}")


def rename_key(damage: Damage) -> None:
    if (found := _config(damage)) is None:
        return
    name, value = found
    paths = [path for path in _places(value) if path and isinstance(path[-1], str)]
    if not paths:
        return
    path = damage.random.choice(paths)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    old = path[-1]
    at = damage.random.randrange(len(old) + 1)
    texts = [text for text in ODD_VALUES if isinstance(text, str)]
    new = damage.random.choice(
        (
            old[:at] + old[at + 1 :],
            old[:at] + "x" + old[at:],
            old.upper(),
            old.lower(),
            old + "\0",
            damage.random.choice(texts),
            LONG,
        )
    )
    parent[new] = parent.pop(old)
    _store(damage, name, value)
    damage.notes.append(f"{name}: {path} renamed to {new[:40]!r}")


def add_hyperparameter(damage: Damage) -> None:
    name = f"{CONFIG}/hyperparameters.json"
    try:
        value = json.loads(damage.files.get(name, b"{}"))
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict):
        return
    key, new = damage.random.choice(RESERVED), damage.random.choice(ODD_VALUES)
    value[key] = new if isinstance(new, str) or damage.random.random() < 0.5 else json.dumps(new)
    _store(damage, name, value)
    damage.notes.append(f"hyperparameter {key[:40]!r} = {repr(value[key])[:60]}")


def set_variable(damage: Damage) -> None:
    name, value = damage.random.choice(VARIABLE_NAMES), damage.random.choice(ODD_TEXTS)
    damage.environ[name] = value
    damage.notes.append(f"variable {name} = {value[:40]!r}")


def damage_disk(damage: Damage) -> None:
    folders = ("input", "input/config", "input/data", "input/data/train", "code", "output", "output/data", "model")
    files = (
        "output/failure",
        "output/success",
        "code/requirements.txtx",
        "code/pyproject.toml",
        "input/data/train-manifest",
    )
    name = damage.random.choice((*damage.files, *damage.files, *folders, *files))
    kind = damage.random.choice((*_INSTEAD, "unreadable"))
    damage.on_disk.append(lambda base: _change_on_disk(base / name, kind))
    damage.notes.append(f"{name} is {kind}")


def _change_on_disk(path: Path, kind: str) -> None:
    if kind == "unreadable":
        path.chmod(0)
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    _INSTEAD[kind](path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


# What is there instead, once what was there is gone.
_INSTEAD: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: None,
    "an empty folder": Path.mkdir,
    "a folder with something in it": lambda path: (path / "x").mkdir(parents=True),
    "a FIFO": os.mkfifo,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a file": lambda path: path.write_bytes(b"x"),
    "a socket": _socket,
}
MUTATIONS: tuple[Callable[[Damage], None], ...] = (
    *(flip_bytes, truncate, insert_bytes, replace_content, change_value, change_value, delete_value, rename_key),
    *(add_hyperparameter, set_variable, damage_disk),
)
