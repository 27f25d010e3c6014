"""The way of a model from a run into the store, and from there into another run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.finished import Finished
from support.own_s3 import BUCKET, own_s3
from support.runner_project import Project

TRAIN = """\
import argparse, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--api_key", default="")
given = parser.parse_args()
print(f"metric loss={given.lr / 2}", flush=True)
with open(os.environ["SM_MODEL_DIR"] + "/weights", "w") as file:
    file.write(f"weights of {given.lr}")
sys.exit(given.lr > 5)
"""
# Says which model it got, as the script of a further training would find it.
AGAIN = """\
import os, shutil
with open(os.environ["SM_CHANNEL_MODEL"] + "/weights") as file:
    print("got", file.read(), flush=True)
shutil.copy(os.environ["SM_CHANNEL_MODEL"] + "/weights", os.environ["SM_MODEL_DIR"])
"""


class Models:
    """A project with a store of its own."""

    def __init__(self, project: Project, place: str, environment: dict[str, str]) -> None:
        self.project, self.environment = project, {"TRAINSHED_MODEL_STORE": place, **environment}

    def __call__(self, *arguments: str) -> Finished:
        return self.project.trainshed(*arguments, **self.environment)

    def told(self, *arguments: str) -> Any:
        """What a command prints as JSON."""
        done = self("models", *arguments, "--json")
        assert done.status == 0, done.output
        return json.loads(done.stdout)


@pytest.fixture
def models(project: Project, tmp_path: Path) -> Models:
    project.write({"train.py": TRAIN, "again.py": AGAIN})
    return Models(project, str(tmp_path / "store"), {})


@pytest.mark.spine
def test_a_run_becomes_a_version_with_its_card_and_another_run_goes_on_from_it(models: Models, tmp_path: Path) -> None:
    models.project.write({"data/a.csv": "1,2\n"})
    words = ["--channel", "train=data", "--hp", "lr=0.5", "--hp", "api_key=s3cr3t-of-ann", "--output", "first"]
    assert models("run", "train.py", *words).status == 0
    done = models("models", "add", "digits", "./first", "--stage", "champion", "--licence", "apache-2.0")
    assert (done.status, done.stdout) == (0, "digits:1\n"), done.output
    assert models("models", "add", "digits", "./first").stdout == "digits:1\n", "the same content is the same version"

    (told,) = models.told("ls", "digits")
    run = json.loads((models.project.folder / "first/status.json").read_text())
    assert told["facts"]["metrics"] == {"loss": 0.25} and told["stages"] == ["champion"]
    made = told["facts"]["run"]
    assert made["id"] == run["Trainshed"]["RunId"] and made["hyperparameters"]["lr"] == "0.5"
    assert made["data"]["train"] == run["Trainshed"]["Data"]["train"] and made["data"]["train"]
    assert made["code"] == json.loads((models.project.folder / "first/provenance.json").read_text())["code"]["digest"]
    assert made["archive_sha256"] == run["Trainshed"]["Archives"][0]["Sha256"]

    assert models("models", "get", "digits@champion", "out").status == 0
    card = (models.project.folder / "out/README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["license"] == "apache-2.0"
    assert "| lr | 0.5 |" in card and "| loss | 0.25 |" in card and made["data"]["train"]["algo-1"]["digest"] in card
    everything = "".join(path.read_text() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert "s3cr3t-of-ann" not in everything + card

    done = models("run", "again.py", "--channel", "model=model://digits@champion", "--output", "second")
    assert done.status == 0 and "got weights of 0.5" in done.output, done.output
    assert "the channel model: digits@champion is digits:1" in done.stderr
    (channel,) = json.loads((models.project.folder / "second/status.json").read_text())["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "model://digits:1"


@pytest.mark.safety
def test_a_run_that_did_not_complete_is_added_only_where_that_is_asked_for(models: Models) -> None:
    assert models("run", "train.py", "--hp", "lr=9", "--output", "failed").status == 1
    done = models("models", "add", "digits", "./failed")

    assert done.status == 1 and "has the status Failed" in done.stderr and "--any-status" in done.stderr
    assert "no models" in models("models", "ls").stderr
    assert models("models", "add", "digits", "./failed", "--any-status").stdout == "digits:1\n"
    assert models.told("show", "digits")["facts"]["run"]["status"] == "Failed"


@pytest.mark.safety
def test_an_archive_that_was_changed_since_is_not_added(models: Models) -> None:
    assert models("run", "train.py", "--output", "first").status == 0
    archive = models.project.folder / "first/output/model.tar.gz"
    archive.write_bytes(archive.read_bytes() + b"\0")
    done = models("models", "add", "digits", "./first")

    assert done.status == 1 and "is not what the run has made" in done.stderr


@pytest.mark.safety
def test_a_changed_byte_fails_get_verify_and_a_job_before_it_starts(models: Models, tmp_path: Path) -> None:
    models.project.write({"made/weights": "one", "made/deep/er/b": "two"})
    models("models", "add", "digits", "made/")
    (path,) = (tmp_path / "store/digits/files").rglob("weights")
    os.chmod(path, 0o644)
    path.write_text("onf")

    for words in (("get", "digits", "out"), ("verify",), ("verify", "digits:1")):
        done = models("models", *words)
        assert done.status == 1 and "digits:1 is damaged: weights is not the file that was added" in done.stderr
    done = models("run", "again.py", "--channel", "model=model://digits:1")
    assert done.status == 1 and "arrived 3 times with another checksum" in done.stderr
    assert not (models.project.folder / "runs").exists() and not (models.project.folder / "out").exists()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("model://digits@champion", "there is no model 'digits'"),
        ("model://../x", "does not name a model"),
        ("model://", "does not name a model"),
        ("modle://digits", "did you mean 'model'?"),
    ],
)
def test_a_channel_without_its_model_is_said_before_anything_starts(models: Models, address: str, said: str) -> None:
    done = models("run", "again.py", "--channel", f"model={address}")

    assert done.status == 2 and said in done.stderr, done.output
    assert not (models.project.folder / "runs").exists()


@pytest.mark.safety
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("add", "../x", "made/"), 2, "is not a valid model name"),
        (("add", "digits", "made/", "--stage", "Best!"), 2, "is not a valid stage name"),
        (("add", "digits", "made/", "--tag", "x"), 2, "must be NAME=VALUE"),
        (("add", "digits", "made/", "--metric", "loss=nan"), 1, "must be a finite number"),
        (("add", "digits", "nothing"), 2, "no run"),
        (("show", "digits:x"), 2, "is not a version"),
        (("rm", "digits"), 2, "is not one version for ever"),
        (("tag", "digits"), 2, "nothing to change"),
        (("get", "digits", "made"), 2, "there is no model 'digits'"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    models: Models, words: tuple[str, ...], status: int, said: str
) -> None:
    models.project.write({"made/weights": "one"})
    done = models("models", *words, "--store", "store-of-its-own")

    assert done.status == status and said in done.stderr, done.output
    assert not (models.project.folder / "store-of-its-own").exists()


def test_a_store_on_s3_serves_get_and_channels(project: Project) -> None:
    project.write({"again.py": AGAIN, "made/weights": "from afar"})
    with own_s3() as environment:
        models = Models(project, f"s3://{BUCKET}/models", environment)
        assert models("models", "add", "digits", "made/", "--stage", "champion").stdout == "digits:1\n"
        done = models("run", "again.py", "--channel", "model=model://digits@champion")
        assert done.status == 0 and "got from afar" in done.output, done.output
        assert models("models", "get", "digits", "out").status == 0
        assert models("models", "verify").stdout == "digits:1 is as it was added: 1 file\n"
    assert (project.folder / "out/weights").read_text() == "from afar"
