"""`trainshed rerun`: months later, with other code, other packages and other data around, the same loss to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from support.finished import Finished
from support.paths import TOOLKIT
from support.runner_project import LIMIT, Project
from support.wheels import make_wheel

# The loss depends on everything that a rerun is to bring back: code, package, hyperparameters, data.
TRAIN = """\
import os, random
import helper, shaky
random.seed(os.environ["SM_HP_SEED"] + shaky.VERSION + open(os.environ["SM_CHANNEL_TRAIN"] + "/a.csv").read())
loss = 1.0
for step in range(1, 4):
    loss *= helper.FACTOR * random.random()
    print(f"metric loss={loss!r} step={step}", flush=True)
"""
JOB = """\
program: train.py
source_dir: src
hyperparameters: {seed: 7, epochs: 0.1}
channels: {train: data}
"""


class Months:
    """A project whose run is of long ago: `old` is the run, since when code and packages have changed.

    python: of the user, whose environment has `shaky` alone; pip: variables that lead to the wheels.
    """

    def __init__(self, project: Project, root: Path) -> None:
        self.project, self.root = project, root
        self.python = root / "mine/bin/python"
        self.pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": os.fspath(root / "wheels"), "PIP_NO_CACHE_DIR": "1"}
        core = root / "core"  # what trainshed needs, without saying that it is installed
        core.mkdir()
        for module in (psutil, yaml):
            (core / module.__name__).symlink_to(os.path.dirname(str(module.__file__)))
        (core / "_yaml").symlink_to(Path(str(yaml.__file__)).parent.parent / "_yaml")
        self.environment = {"PYTHONPATH": f"{TOOLKIT}:{core}", "XDG_STATE_HOME": os.fspath(root / "state"), **self.pip}

    def install(self, version: str) -> None:
        """Puts a version of `shaky` into the user's environment."""
        command = [sys.executable, "-m", "pip", "--python", os.fspath(self.python), "install", "-q", "--no-deps"]
        environment = {**os.environ, **self.pip}
        subprocess.run([*command, "--force-reinstall", f"shaky=={version}"], check=True, env=environment)

    def trainshed(self, *arguments: str, **environment: str) -> Finished:
        """`trainshed` by the user's Python."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SM_", "TRAINSHED_"))}
        done = subprocess.run(
            [os.fspath(self.python), "-m", "trainshed.cli", *arguments],
            cwd=self.project.folder, env={**inherited, **self.environment, **environment},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip
        return Finished(done.returncode, done.stdout, done.stderr)


def losses(run: Path) -> list[str]:
    """What a run printed of its losses."""
    return [line for line in (run / "logs/algo-1.log").read_text().splitlines() if "metric loss=" in line]


def status(run: Path) -> dict[str, Any]:
    """A run's status.json."""
    found: dict[str, Any] = json.loads((run / "status.json").read_text())
    return found


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> Months:
    """A run of shaky 1.0, and everything changed since."""
    root = tmp_path_factory.mktemp("months")
    project = Project(root / "project")
    project.folder.mkdir()
    (root / "wheels").mkdir()
    for version in ("1.0", "2.0"):
        make_wheel(root / "wheels", "shaky", version)
    venv.create(root / "mine", with_pip=False)
    made = Months(project, root)
    made.install("1.0")
    project.write({"src/train.py": TRAIN, "src/helper.py": "FACTOR = 0.7\n", "data/a.csv": "1\n", "job.yaml": JOB})
    done = made.trainshed("run", "job.yaml", "--output", "old")
    assert done.status == 0, done.output
    made.install("2.0")
    project.write({"src/train.py": TRAIN.replace("range(1, 4)", "range(1, 9)"), "src/helper.py": "FACTOR = 0.6\n"})
    return made


@pytest.mark.exact
@pytest.mark.spine
def test_the_very_code_packages_and_data_give_the_same_loss_to_the_bit(months: Months) -> None:
    folder = months.project.folder
    old = losses(folder / "old")

    today = months.trainshed("rerun", "./old", "--output", "today")
    exact = months.trainshed("rerun", "./old", "--exact", "--output", "exact")
    shared = months.trainshed("rerun", "./exact", "--exact", "--output", "shared")

    assert (today.status, exact.status, shared.status) == (0, 0, 0), today.output + exact.output + shared.output
    assert losses(folder / "exact") == losses(folder / "shared") == old and len(old) == 3
    assert len(losses(folder / "today")) == 3 and losses(folder / "today") != old, "the packages of today make a difference"
    assert "the same to the bit" in exact.stderr and ", was " in today.stderr
    assert "making an environment with 1 package in" in exact.stderr and "making an environment" not in shared.stderr
    record = json.loads((folder / "exact/algo-1/output/data/run/algo-1.json").read_text())
    assert record["environment"]["packages"] == {"shaky": "1.0"}
    told = json.loads(months.trainshed("lineage", "./shared", "--json").stdout)
    assert [(one["kind"], one["run"]) for one in told["parents"]] == [("rerun", status(folder / "exact")["TrainingJobName"])]


@pytest.mark.safety
def test_other_data_is_refused_unless_it_is_wanted(months: Months) -> None:
    data = months.project.folder / "data/a.csv"
    data.write_text("2\n")
    try:
        refused = months.trainshed("rerun", "./old", "--output", "refused")
        wanted = months.trainshed("rerun", "./old", "--other-data", "--output", "wanted")
    finally:
        data.write_text("1\n")

    assert refused.status != 0 and refused.stderr.startswith("trainshed: the channel train has other data than then: ")
    assert "--other-data" in refused.stderr and not (months.project.folder / "refused").exists()
    assert wanted.status == 0, wanted.output


@pytest.mark.safety
def test_code_that_is_nowhere_as_it_was_is_refused(months: Months) -> None:
    """The source has changed, and now the kept copy as well; what earlier reruns have put aside is not there either."""
    kept = months.project.folder / "old/algo-1/code/helper.py"
    before = kept.read_text()
    kept.write_text("FACTOR = 0.9\n")
    try:
        done = months.trainshed("rerun", "./old", XDG_STATE_HOME=os.fspath(months.root / "another"))
    finally:
        kept.write_text(before)

    assert done.status != 0 and "is not kept as it was: helper.py has been changed or removed since" in done.stderr


@pytest.mark.safety
def test_a_list_of_code_that_leads_out_of_its_folder_is_refused(months: Months) -> None:
    """Whoever sends a run folder writes what is in code.json."""
    path = months.project.folder / "old/code.json"
    text = path.read_text()
    said = json.loads(text)
    outside = months.root / "state/escaped.py"
    (months.project.folder / "old/algo-1/escaped.py").write_text("FACTOR = 0.7\n")
    said["files"]["../escaped.py"] = said["files"]["helper.py"]
    path.write_text(json.dumps(said))
    try:
        done = months.trainshed("rerun", "./old", XDG_STATE_HOME=os.fspath(months.root / "escape"))
    finally:
        path.write_text(text)

    assert done.status != 0 and "leads out of the folder" in done.stderr
    assert not outside.exists() and not list((months.root / "escape").rglob("escaped.py"))


@pytest.mark.safety
def test_packages_that_cannot_be_had_are_named(months: Months) -> None:
    """Each case is a run record of another machine or time; nothing is installed."""
    record = months.project.folder / "old/algo-1/output/data/run/algo-1.json"
    text = record.read_text()
    here = json.loads(text)["environment"]

    def said(**changes: Any) -> str:
        record.write_text(json.dumps(json.loads(text) | {"environment": {**here, **changes}}))
        done = months.trainshed("rerun", "./old", "--exact", "--output", "never")
        assert done.status != 0 and not (months.project.folder / "never").exists(), done.output
        return done.stderr

    try:
        assert "trained on Solaris sparc, this machine is Linux" in said(platform="Solaris sparc")
        assert "trained with Python 3.2.1, which is not here" in said(python="3.2.1")
        gone = said(packages={"shaky": "7.0"})
        assert "the packages cannot be installed: " in gone and "shaky==7.0" in gone
        cpu = said(packages={"shaky": "2.13.0+cpu"})
        assert "PIP_EXTRA_INDEX_URL" in cpu
        editable = said(packages={"mine": "1"}, sources={"mine": {"kind": "editable", "url": "file:///src/mine"}})
        assert "mine was installed from the folder /src/mine" in editable and "--leave-out mine" in editable
        secret = said(packages={"a": "1"}, sources={"a": {"kind": "vcs", "url": "git+https://******@example.org/a"}})
        assert "whose login was not kept" in secret
        assert "not a valid name or version" in said(packages={"--index-url=x": "1"})
        assert "has not noted its packages" in said(packages={})
    finally:
        record.write_text(text)


@pytest.mark.safety
def test_secrets_are_asked_for_and_nothing_else_can_be_changed(months: Months) -> None:
    folder = months.project.folder
    months.project.write({"secret/train.py": "import os\nassert os.environ['SM_HP_API_TOKEN'] == 'abcdefgh'\n"})
    job = "program: train.py\nsource_dir: secret\nhyperparameters: {api_token: abcdefgh, lr: 0.1}\n"
    months.project.write({"secret.yaml": job})
    assert months.trainshed("run", "secret.yaml", "--output", "secret-run").status == 0

    without = months.trainshed("rerun", "./secret-run")
    other = months.trainshed("rerun", "./secret-run", "--hp", "api_token=abcdefgh", "--hp", "lr=1")
    given = months.trainshed("rerun", "./secret-run", "--hp", "api_token=abcdefgh", "--output", "given")

    assert without.status == 2 and "is a secret, which was not kept" in without.stderr
    assert other.status != 0 and "lr is not a secret" in other.stderr
    assert given.status == 0 and "abcdefgh" not in (folder / "given/job.json").read_text(), given.output
