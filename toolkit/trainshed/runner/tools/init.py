"""`trainshed init`: a job file and a Dockerfile beside a script, made from the script's source."""

from __future__ import annotations

import ast
import json
import os
import re
from dataclasses import dataclass, field

from trainshed import __version__
from trainshed.base.errors import TrainshedError, did_you_mean
from trainshed.base.files import write_atomic

from ..job.field_parsers import usable_name
from ..job.nodes import scalar
from ..job.schema_json import text as schema_text

SCHEMA = ".job.schema.json"  # beside the job file: no address is needed, and it is that of this version
LARGEST = 1 << 20  # bytes of a script that is looked at
SCRIPT = '''\
"""Fits a line to points by gradient descent: a training script without a single package, to try trainshed with."""

import argparse
import json
import os
import random

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.1)
arguments = parser.parse_args()

# `trainshed` sets the SM_* variables; plain `python train.py` keeps the model alone, below the working directory.
checkpoints = os.environ.get("SM_CHECKPOINT_DIR", "")
models = os.environ.get("SM_MODEL_DIR", "model")
checkpoint = os.path.join(checkpoints, "state.json")
writer = os.environ.get("SM_CURRENT_HOST", ""), os.environ.get("RANK", "")
unfinished = ".".join([checkpoint, *writer])  # ranks share the folder, and hosts may
slope, offset, first = 0.0, 0.0, 0
if checkpoints and os.path.exists(checkpoint):
    with open(checkpoint) as file:
        slope, offset, first = json.load(file)
    print(f"going on at epoch {first}", flush=True)

source = random.Random(0)
points = [(x, 2 * x + 1 + source.gauss(0, 0.05)) for x in (source.uniform(-1, 1) for _ in range(2000))]

for epoch in range(first, arguments.epochs):
    loss = 0.0
    for x, y in points:
        error = slope * x + offset - y
        loss += error * error / len(points)
        slope -= arguments.lr * error * x / 100
        offset -= arguments.lr * error / 100
    print(f"metric loss={loss:.5f} epoch={epoch}", flush=True)
    if checkpoints:
        with open(unfinished, "w") as file:
            json.dump([slope, offset, epoch + 1], file)
        os.replace(unfinished, checkpoint)  # whole or not there, whenever the job is stopped

os.makedirs(models, exist_ok=True)
with open(os.path.join(models, "line.json"), "w") as file:
    json.dump({"slope": slope, "offset": offset}, file)
'''
_CHANNEL = re.compile(r"SM_CHANNEL_([A-Z0-9_]+)")


@dataclass
class ScriptFacts:
    """Findings in a script: hyperparameters with their defaults, channels, whether it is distributed."""

    hyperparameters: dict[str, object] = field(default_factory=dict)
    channels: list[str] = field(default_factory=list)
    distributed: bool = False


def write(script: str, *, force: bool = False) -> list[str]:
    """Writes what is missing; one line for each file about what was done with it.

    Raises:
        TrainshedError: there is no such script, or a file cannot be written.
    """
    path = os.path.abspath(script or "train.py")
    folder, name = os.path.split(path)
    said = []
    try:
        if not os.path.exists(path):
            if script:
                near = did_you_mean(name, [one for one in _listing(folder) if one.endswith((".py", ".sh"))])
                raise TrainshedError(
                    f"{script} does not exist" + (f": {near}" if near else ""),
                    hint="without a name, `trainshed init` writes one",
                )
            write_atomic(path, SCRIPT)
            said.append("wrote train.py: a small script to begin with")
        found = look(path)
        requirements = os.path.isfile(f"{folder}/requirements.txt")
        for file, text, use in (
            ("job.yaml", job_file(name, found, _channels(folder, found)), "trainshed run {}"),
            (SCHEMA, schema_text(), "editors check job.yaml with it"),
            ("Dockerfile", dockerfile(name, requirements), "docker build -t my-training {}"),
            (".dockerignore", "runs\n", "keeps runs/ out of the image"),
        ):
            target = f"{folder}/{file}"
            shown = os.path.relpath(target)
            if os.path.lexists(target) and not (force and file != ".dockerignore"):
                said.append(f"kept {shown}, which exists")
                continue
            write_atomic(target, text)
            said.append(f"wrote {shown}: {use.format(shown if file == 'job.yaml' else os.path.dirname(shown) or '.')}")
    except OSError as error:
        raise TrainshedError(f"{error.filename} cannot be written: {error.strerror}") from error
    return said


def look(path: str) -> ScriptFacts:
    """Returns what the script's source reveals; nothing if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(LARGEST)
    except OSError:
        return ScriptFacts()
    found = ScriptFacts(channels=list(dict.fromkeys(name.lower() for name in _CHANNEL.findall(text))))
    found.distributed = "torch.distributed" in text or "init_process_group" in text
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            _argument(node, found)
    return found


def _argument(call: ast.Call, found: ScriptFacts) -> None:
    """`add_argument("--epochs", default=3)`."""
    names = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    name = next((name[2:] for name in names if name.startswith("--")), "")
    given = {word.arg: word.value for word in call.keywords}
    default = given.get("default")
    if not name or "action" in given or not isinstance(default, ast.Constant):
        return
    if isinstance(default.value, (int, float, str)) and default.value != "" and not isinstance(default.value, bool):
        found.hyperparameters[name] = default.value


def _channels(folder: str, found: ScriptFacts) -> dict[str, str]:
    """Channel -> folder, for those that lie beside the script, also below `data`."""
    places = {
        name: next((at for at in (name, f"data/{name}") if os.path.isdir(f"{folder}/{at}")), "") for name in found.channels
    }
    return {name: place for name, place in places.items() if place}


def _listing(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def job_file(script: str, found: ScriptFacts, channels: dict[str, str]) -> str:
    """A job file that works as it is, with what else there is in comments."""
    lines = [
        f"# yaml-language-server: $schema={SCHEMA}",
        "# A training job. `trainshed run job.yaml` runs it; `trainshed schema` prints what may be in here.",
        f"name: {_word(usable_name(os.path.splitext(script)[0]))}",
        f"program: {_word(script)}",
        "# image: my-training         # without one the hosts are processes of this machine",
    ]
    if found.hyperparameters:
        lines.append("hyperparameters:")
        lines += [f"  {_word(name)}: {_word(value)}" for name, value in found.hyperparameters.items()]
    else:
        lines.append("# hyperparameters: {epochs: 3}")
    if channels:
        lines.append("channels:")
        lines += [f"  {_word(name)}: {_word(place)}" for name, place in channels.items()]
    missing = [name for name in found.channels if name not in channels]
    if missing:
        lines.append(f"# channels: {{{missing[0]}: PATH}}   # a folder, a file, data/*.csv or s3://bucket/prefix")
    elif not channels:
        lines.append("# channels: {train: data}      # a folder, a file, data/*.csv or s3://bucket/prefix")
    lines.append(f"{'' if found.distributed else '# '}distribution: {{kind: torchrun, processes_per_host: 2}}")
    lines += [
        "# instances: 2               # hosts",
        "# environment: {WANDB_API_KEY: {env: WANDB_API_KEY}}   # a secret by reference: it is kept nowhere",
        "# max_runtime_seconds: 3600",
        "# resources: {cpus: 4, memory: 8g, gpus: all}          # of each host, with an image",
    ]
    return "\n".join(lines) + "\n"


def _word(value: object) -> str:
    """A value in YAML, without quotes where it needs none."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", value) and isinstance(scalar(value), str):
        return value
    return json.dumps(value)


def dockerfile(script: str, requirements: bool) -> str:
    """A Dockerfile that makes any image with Python a training image with this script in it."""
    lines = [
        "# docker build -t my-training . && docker run --rm my-training",
        "ARG BASE_IMAGE=python:3.12-slim-trixie",
        "FROM ${BASE_IMAGE}",
        "",
        "# Where no index has trainshed, put its wheel beside this file, from a checkout or a git address:",
        "#     pip wheel --no-deps -w . CHECKOUT        or        pip wheel --no-deps -w . git+ADDRESS",
        "# and take the second of these lines.",
        "ARG TRAINSHED=trainshed",
        f"# ARG TRAINSHED=./trainshed-{__version__}-py3-none-any.whl",
        "ARG PIP_INDEX_URL=",
        "WORKDIR /app",
    ]
    if requirements:
        lines += ["COPY requirements.txt .", "RUN python3 -m pip install --no-cache-dir -r requirements.txt"]
    lines += [
        "COPY . .",
        'RUN python3 -m pip install --no-cache-dir "$TRAINSHED"',
        "",
        "# The script lies outside /opt/ml, which a job covers with its folders; a job that brings code runs its own.",
        f"ENV SAGEMAKER_SUBMIT_DIRECTORY=/app SAGEMAKER_PROGRAM={json.dumps(script)} PYTHONUNBUFFERED=1",
        "",
        "# No ENTRYPOINT: a platform runs `IMAGE train`, and `train` must be process 1 to get its signals.",
        "STOPSIGNAL SIGTERM",
        'CMD ["train"]',
    ]
    return "\n".join(lines) + "\n"
