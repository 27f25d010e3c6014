"""Canaries: secrets planted through every way in, and looked for wherever text leaves."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runner_project import Project

pytestmark = pytest.mark.safety
# Way in -> what must be found nowhere. None is part of another.
CANARIES = {
    "a variable with a telling name": "canary-plain-variable",
    "a variable that holds JSON": "canary-nested-variable",
    "a variable by reference": "canary-reference",
    "a file by reference, of several lines": "canary-first-line-of-three",
    "its second line": "canary-second-line-of-three",
    "an awkward value": 'canary "quoted" \\ it\'s \u00fc',
    "a hyperparameter": "canary-hyperparameter",
    "a nested hyperparameter": "canary-nested-hyperparameter",
    "the login of an index of packages": "canary-login-of-index",
    "the login of a database": "canary%2Flogin%2Fof%2Fdatabase",
    "that login as the script has it": "canary/login/of/database",
}
AWKWARD = CANARIES["an awkward value"]
KEY_FILE = (
    "-----BEGIN PRIVATE KEY-----\n"
    f"{CANARIES['a file by reference, of several lines']}\n{CANARIES['its second line']}\n"
    "-----END PRIVATE KEY-----\n"
)
NAMES = ("WANDB_API_KEY", "SETTINGS", "FANCY", "TLS", "DB_PASSWORD", "PIP_INDEX_URL", "DATABASE")
# Says all it knows, in every way that a script has, asks for a hang report, and fails on the second host.
SCRIPT = f"""\
import glob, json, os, signal, sys, time
host = os.environ["SM_CURRENT_HOST"]
values = {{name: os.environ[name] for name in {NAMES!r}}}
print("names", " ".join(values), os.environ["TRAINSHED_SECRET_NAMES"], flush=True)
for name, value in values.items():
    print(name, value, flush=True)
    print("on stderr", name, repr(value), file=sys.stderr, flush=True)
    sys.stdout.write("in two writes " + value[: len(value) // 2]); sys.stdout.flush()
    time.sleep(0.05)
    sys.stdout.write(value[len(value) // 2 :] + "\\n"); sys.stdout.flush()
    sys.stdout.write("\\r10% " + value.replace("\\n", " ") + "\\r20%"); sys.stdout.flush()
    sys.stdout.write("\\n")
print(sys.argv, os.environ["SM_HPS"], os.environ["SM_TRAINING_ENV"], os.environ["SM_USER_ARGS"], flush=True)
print(open(os.environ["SM_INPUT_CONFIG_DIR"] + "/hyperparameters.json").read(), flush=True)
print("x" * (1 << 20) + values["WANDB_API_KEY"] + "y" * 100, flush=True)
if host == "algo-1":
    os.kill(os.getppid(), signal.SIGUSR1)
    while not glob.glob(os.environ["SM_OUTPUT_DATA_DIR"] + "/hang-*.txt"):
        time.sleep(0.02)
    open(os.environ["SM_OUTPUT_DATA_DIR"] + "/reported", "w").close()
    time.sleep(600)
while not os.path.exists(os.environ["SM_OUTPUT_DATA_DIR"].replace("algo-2", "algo-1") + "/reported"):
    time.sleep(0.02)
with open(os.environ["SM_OUTPUT_DIR"] + "/failure", "w") as file:
    file.write("the script's own reason: " + values["FANCY"])
def connect(text):
    raise ValueError(f"cannot log in with {{text}}")
connect(values)
"""
JOB = f"""\
name: canaries
program: show.py
source_dir: code
instances: 2
image_placeholder
environment:
  WANDB_API_KEY: {CANARIES["a variable with a telling name"]}
  SETTINGS: '{{"deep": {{"password": "{CANARIES["a variable that holds JSON"]}"}}}}'
  FANCY: {{env: MINE}}
  TLS: {{file: secrets/key.pem}}
  DB_PASSWORD: {json.dumps(AWKWARD)}
  PIP_INDEX_URL: https://me:{CANARIES["the login of an index of packages"]}@localhost:1/simple
  DATABASE: postgres://me:{CANARIES["the login of a database"]}@localhost:1/x
hyperparameters:
  api_key: {CANARIES["a hyperparameter"]}
  wandb: {{api_key: {CANARIES["a nested hyperparameter"]}, project: shown-project}}
"""


def leaks(text: str | bytes) -> list[str]:
    """The ways in whose canary is in a text, in any spelling that contains most of it."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return [way for way, canary in CANARIES.items() if canary.encode() in data or b"it\\'s \\u00fc" in data]


def files_of(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(path, content) of all files of a run but those that hosts need in the clear; archives opened."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.parts[-3:-1] == ("input", "config") or "code" in path.parts:
            continue
        yield str(path), path.read_bytes()
        if path.name.endswith(".tar.gz"):
            yield f"{path}, unpacked", gzip.decompress(path.read_bytes())


@pytest.fixture
def canaries(project: Project) -> Project:
    """A project whose job has them all."""
    return project.write(
        {
            "code/show.py": SCRIPT,
            "secrets/key.pem": KEY_FILE,
            "job.yaml": JOB.replace("image_placeholder\n", ""),
            "export.yaml": JOB.replace("image_placeholder", "image: registry/image:1"),
        }
    )


@pytest.mark.spine
def test_no_canary_leaves_a_run_by_any_way(canaries: Project, tmp_path: Path) -> None:
    mine = {"MINE": CANARIES["a variable by reference"], "XDG_STATE_HOME": str(tmp_path / "state")}
    dry = canaries.command("run", "job.yaml", "--dry-run", **mine)
    assert dry.status == 0 and "shown-project" in dry.stdout and not leaks(dry.output), leaks(dry.output)

    done = canaries.trainshed("run", "job.yaml", **mine)

    assert done.status == 1, done.output
    assert "cannot log in with" in done.output and "shown-project" in done.output
    assert f"names {' '.join(NAMES)} FANCY,TLS" in done.stdout, "names are never masked"
    assert not leaks(done.output), (leaks(done.output), done.output[:6000])
    for name, data in (*files_of(canaries.run), *files_of(tmp_path / "state")):
        assert not leaks(data), (name, leaks(data))
    with tarfile.open(canaries.run / "output/output.tar.gz") as tar:
        names = tar.getnames()
    assert len([name for name in names if "logs/" in name]) >= 2, names
    assert any("hang-" in name for name in names), "a hang report was made and looked at"
    for command in (
        ["status"],
        ["status", "--json"],
        ["ps", "--all"],
        ["logs"],
        ["clone"],
        ["compare", canaries.run.name],
        ["watch", "--once"],
        ["report"],
    ):
        shown = canaries.command(*command, **mine)
        assert "trainshed itself failed" not in shown.output and not leaks(shown.output), (command, leaks(shown.output))
    page = (canaries.run / "report.html").read_text()
    assert "cannot log in with" in page and not leaks(page), leaks(page)


@pytest.mark.parametrize("place", [["kubernetes"], ["sagemaker"], ["slurm"]])
def test_no_canary_is_in_an_export(canaries: Project, place: list[str]) -> None:
    full = canaries.folder / "export.yaml"
    role = "arn:aws:iam::123456789012:role/x"
    where = f"sagemaker: {{role: '{role}', output: s3://b/o, code: s3://b/c, instance_type: ml.c5.xlarge}}"
    without = JOB.replace("image_placeholder", "image: registry/image:1").partition("hyperparameters:")[0] + where + "\n"
    canaries.write({"without.yaml": without})
    for file, status in ((full.name, 2), ("without.yaml", 0)):
        command = ["run", file, "--on", "slurm", "--dry-run"] if place == ["slurm"] else ["export", *place, file]
        done = canaries.command(*command, MINE=CANARIES["a variable by reference"])
        assert done.status == (0 if place == ["slurm"] else status), done.output
        assert not leaks(done.output), leaks(done.output)
        assert "FANCY" in done.output or status, "a variable by reference is not forgotten"


def test_no_canary_leaves_train_itself_by_any_way(job_tree, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    job_tree.code("train.py", "import os, sys\nprint(os.environ['TLS'])\nraise ValueError(f'{sys.argv} {dict(os.environ)}')")
    job_tree.configure(
        hyperparameters={
            "api_key": CANARIES["a hyperparameter"],
            "wandb": {"api_key": CANARIES["a nested hyperparameter"], "project": "shown-project"},
        }
    )
    variables = {
        "WANDB_API_KEY": CANARIES["a variable with a telling name"],
        "SETTINGS": json.dumps({"deep": {"password": CANARIES["a variable that holds JSON"]}}),
        "TLS": KEY_FILE,
        "DB_PASSWORD": AWKWARD,
        "DATABASE": f"postgres://me:{CANARIES['the login of a database']}@localhost:1/x",
        "TRAINSHED_SECRET_NAMES": "TLS",
    }
    for arguments in (("--dry-run",), ()):
        done = job_tree.train(*arguments, **variables)
        assert "shown-project" in done.output and not leaks(done.output), (arguments, leaks(done.output))
    doctor = Project(tmp_path).command("doctor", SAGEMAKER_BASE_DIR=str(job_tree.base), **variables)
    assert doctor.stdout and not leaks(doctor.output), leaks(doctor.output)
    for name, data in files_of(job_tree.base):
        assert not leaks(data), (name, leaks(data))
