"""Jobs with data, code, results and checkpoints on S3: an S3 of this machine's own, reached as any other."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.own_s3 import BUCKET, client, keys, own_s3, put
from support.runner_project import Project
from unit.runner.job.test_channels import SHOW, shown

# Saves every third step, and ends at the step that `--until` names.
SAVING = """\
import argparse
import torch
from trainshed.checkpoint import Checkpointer
parser = argparse.ArgumentParser()
parser.add_argument("--until", type=int)
until = parser.parse_args().until
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
with Checkpointer.for_job(model=model, every_steps=3) as checkpointer:
    step = checkpointer.restore()
    print("starting at", step, flush=True)
    while step < until:
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None
        step += 1
        checkpointer.step(step)
print("weights", model.weight.tolist(), flush=True)
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """Variables that lead to it, with objects in its bucket."""
    objects = {f"data/part-{n}": str(n) for n in range(4)} | {
        "data/deep/x": "x",
        "data/": "",
        "other/y": "y",
        "evil/../../up": "!",
        "code/train.py": "import helper; print('helped by', helper.NAME)",
        "code/helper.py": "NAME = 'an object'",
    }
    objects["manifest"] = json.dumps([{"prefix": f"s3://{BUCKET}/data/"}, "part-1", "deep/x", "part-1"])
    objects["no-manifest"] = "{"
    with own_s3() as environment:
        put(environment, {key: body.encode() for key, body in objects.items()})
        yield environment


@pytest.fixture
def files(project: Project) -> Project:
    """A project whose scripts show their channel, and save."""
    return project.write({"show.py": SHOW, "saving.py": SAVING})


@pytest.mark.spine
def test_a_channel_is_fetched_by_prefix(files: Project, s3: dict[str, str]) -> None:
    done = files.trainshed("run", "show.py", "--channel", "train=s3://bucket/data/", **s3)
    assert shown(done) == {"algo-1": {**{f"part-{n}": str(n) for n in range(4)}, "deep/x": "x"}}
    found = json.loads((files.run / "status.json").read_text())
    assert [one["Status"] for one in found["SecondaryStatusTransitions"]][:3] == ["Starting", "Downloading", "Training"]
    assert found["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] == "s3://bucket/data/"


def test_half_a_name_is_a_prefix_too(files: Project, s3: dict[str, str]) -> None:
    assert shown(files.trainshed("run", "show.py", "--channel", "train=s3://bucket/data/part", **s3)) == {
        "algo-1": {f"part-{n}": str(n) for n in range(4)}
    }


def test_a_manifest_names_the_objects(files: Project, s3: dict[str, str]) -> None:
    files.write({"job.yaml": "program: show.py\nchannels: {train: {path: s3://bucket/manifest, s3_type: ManifestFile}}\n"})
    assert shown(files.trainshed("run", "job.yaml", **s3)) == {"algo-1": {"part-1": "1", "deep/x": "x"}}


def test_shards_of_a_prefix_are_fetched_by_the_host_they_are_for(files: Project, s3: dict[str, str]) -> None:
    files.write({
        "job.yaml": "program: show.py\ninstances: 2\n"
        "channels: {train: {path: s3://bucket/data/part, distribution: ShardedByS3Key}}\n"
    })  # fmt: skip
    seen = shown(files.trainshed("run", "job.yaml", **s3))
    assert seen == {"algo-1": {"part-0": "0", "part-2": "2"}, "algo-2": {"part-1": "1", "part-3": "3"}}


def test_code_is_fetched_by_prefix_or_as_an_archive(files: Project, s3: dict[str, str]) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, text in {
            "train.py": "import helper; print('helped by', helper.NAME)",
            "helper.py": "NAME = 'a tar'",
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    put(s3, {"source.tar.gz": archive.getvalue()})
    for source, said in (("s3://bucket/code/", "an object"), ("s3://bucket/source.tar.gz", "a tar")):
        files.write({"job.yaml": f"program: train.py\nsource_dir: {source}\n"})
        done = files.trainshed("run", "job.yaml", **s3)
        assert (done.status, done.stdout) == (0, f"helped by {said}\n"), done.output


@pytest.mark.spine
def test_results_go_where_the_job_says(files: Project, s3: dict[str, str]) -> None:
    files.write({"train.py": "import os; open(os.environ['SM_MODEL_DIR'] + '/m', 'w').close()"})
    done = files.trainshed("run", "train.py", "--output", "s3://bucket/results", "--name", "digits", **s3)
    assert done.status == 0, done.output
    name = files.run.name
    found = json.loads((files.run / "status.json").read_text())
    assert found["ModelArtifacts"] == {"S3ModelArtifacts": f"s3://bucket/results/{name}/output/model.tar.gz"}
    body = client(s3).get_object(Bucket=BUCKET, Key=f"results/{name}/output/model.tar.gz")["Body"].read()
    assert body == (files.run / "output/model.tar.gz").read_bytes()


@pytest.mark.exact
@pytest.mark.torch
def test_a_machine_that_has_never_seen_the_job_goes_on_from_the_copies_of_its_checkpoints(
    files: Project, s3: dict[str, str], tmp_path: Path
) -> None:
    job = "program: saving.py\nhyperparameters: {until: %d}\ncheckpoints: {copy_to: 's3://bucket/runs/first'}\n"
    files.write({"job.yaml": job % 7})
    done = files.trainshed("run", "job.yaml", **s3)
    assert done.status == 0, done.output
    steps = {key.partition("/")[0] for key in keys(s3, "runs/first/")}
    assert steps == {"step-000000000003", "step-000000000006"} == set(os.listdir(files.run / "checkpoints"))
    elsewhere = Project(tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    elsewhere.write({"saving.py": SAVING, "job.yaml": job % 10})
    done = elsewhere.trainshed("run", "job.yaml", **s3)
    assert done.status == 0, done.output
    assert "starting at 6\n" in done.stdout and "fetched s3://bucket/runs/first/step-000000000006" in done.output
    straight = files.trainshed("run", "saving.py", "--hp", "until=10", **s3)
    assert re.findall("^weights .*$", straight.stdout, re.M) == re.findall("^weights .*$", done.stdout, re.M)


def test_a_flag_says_where_copies_go(files: Project, s3: dict[str, str]) -> None:
    files.write({"env.py": "import os; print(os.environ['TRAINSHED_CHECKPOINT_COPY_TO'], os.environ['SM_CHECKPOINT_DIR'])"})
    done = files.trainshed("run", "env.py", "--copy-to", "s3://bucket/runs/flag", "--checkpoints", "kept", **s3)
    assert done.stdout == f"s3://bucket/runs/flag {files.run}/algo-1/checkpoints\n", done.output
    assert os.path.realpath(files.run / "algo-1/checkpoints") == str(files.folder / "kept")


@pytest.mark.parametrize(
    ("uri", "kind", "says"),
    [
        ("s3://bucket/evil/", "S3Prefix", "which points outside its folder: refused"),
        ("s3://bucket/nothing/", "S3Prefix", "no object has this prefix"),
        ("s3://missing-bucket/x", "S3Prefix", "s3://missing-bucket/x: "),
        ("s3://bucket/no-manifest", "ManifestFile", "is not a manifest"),
    ],
)
def test_what_s3_does_not_give_is_one_line(files: Project, s3: dict[str, str], uri: str, kind: str, says: str) -> None:
    files.write({"job.yaml": f"program: show.py\nchannels: {{train: {{path: {uri}, s3_type: {kind}}}}}\n"})
    done = files.command("run", "job.yaml", **s3)
    assert done.status == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (files.folder / "runs").exists()
    assert not list(files.folder.rglob("up"))


@pytest.mark.parametrize("uri", ["s3://bucket/no-code/", "s3://bucket/no-code.tar.gz"])
def test_code_that_s3_does_not_have_fails_the_job_with_its_address(files: Project, s3: dict[str, str], uri: str) -> None:
    files.write({"job.yaml": f"program: train.py\nsource_dir: {uri}\n"})
    done = files.trainshed("run", "job.yaml", **s3)
    assert done.status != 0
    assert uri in json.loads((files.run / "status.json").read_text())["FailureReason"]
    assert "Traceback" not in done.output
