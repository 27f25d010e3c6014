"""Channels in jobs: what `trainshed run` hands over is what `trainshed.data` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from support.data_files import frame
from support.own_s3 import own_s3, put
from support.runner_project import Project

READ = """\
import json
from trainshed.data import channel
samples = channel("train")
for epoch in range(2):
    found = [{name: value.decode() if isinstance(value, bytes) else value for name, value in one.items()} for one in samples]
    print("epoch", json.dumps(found), flush=True)
"""
LOADED = """\
import os
from trainshed.data import channel
batches = channel("train").loader(4)
for epoch in range(2):
    print("rank", epoch, *[record.decode() for batch in batches for record in batch], flush=True)
"""
LINES = [
    {"source-ref": "s3://bucket/images/a.png", "label": 3, "text": "first"},
    {"label": [1, 2], "source-ref": "s3://bucket/images/b.png", "text": "{not JSON", "more": 1},
    {"source-ref": "s3://bucket/images/a.png", "label": None, "text": ""},
]
SAMPLES = [
    {"source-ref": "image A", "label": 3, "text": "first"},
    {"source-ref": "image B", "label": [1, 2], "text": "{not JSON"},
    {"source-ref": "image A", "label": None, "text": ""},
]
AUGMENTED = """\
program: read.py
channels:
  train:
    path: PATH
    s3_type: AugmentedManifestFile
    attributes: [source-ref, label, text]
    input_mode: Pipe
    record_wrapper: RecordIO
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with own_s3() as environment:
        manifest = "\n".join(map(json.dumps, LINES)) + "\n\n"
        evil = json.dumps({**LINES[0], "source-ref": "/etc/passwd"})
        put(environment, {
            "manifest": manifest.encode(), "images/a.png": b"image A", "images/b.png": b"image B", "evil": evil.encode(),
            "gone": json.dumps({**LINES[0], "source-ref": "s3://bucket/nothing"}).encode(),
        })  # fmt: skip
        yield environment


def epochs(printed: str) -> list[object]:
    return [json.loads(line.partition("epoch ")[2]) for line in printed.splitlines() if "epoch [" in line]


@pytest.mark.spine
def test_an_augmented_manifest_on_s3_comes_as_samples(project: Project, s3: dict[str, str]) -> None:
    project.write({"read.py": READ, "job.yaml": AUGMENTED.replace("PATH", "s3://bucket/manifest")})
    done = project.trainshed("run", "job.yaml", **s3)

    assert done.status == 0, done.output
    assert epochs(done.output) == [SAMPLES, SAMPLES]
    found = json.loads((project.run / "status.json").read_text())["InputDataConfig"][0]["DataSource"]["S3DataSource"]
    assert (found["S3DataType"], found["AttributeNames"]) == ("AugmentedManifestFile", ["source-ref", "label", "text"])


def test_an_augmented_manifest_of_this_machine_names_files_beside_it(project: Project) -> None:
    lines = [{**line, "source-ref": line["source-ref"].rpartition("/")[2]} for line in LINES]  # type: ignore[union-attr]
    project.write({
        "data/manifest.jsonl": "\n".join(map(json.dumps, lines)), "data/a.png": "image A", "data/b.png": "image B",
        "read.py": READ, "job.yaml": AUGMENTED.replace("PATH", "data/manifest.jsonl") + "    shuffle_seed: 5\n",
    })  # fmt: skip
    done = project.trainshed("run", "job.yaml")
    found = epochs(done.output)

    assert done.status == 0 and len(found) == 2, done.output
    for epoch in found:
        assert sorted(map(json.dumps, epoch)) == sorted(map(json.dumps, SAMPLES))  # type: ignore[call-overload]


@pytest.mark.exact
def test_hosts_share_the_lines_of_an_augmented_manifest(project: Project, s3: dict[str, str]) -> None:
    job = AUGMENTED.replace("PATH", "s3://bucket/manifest") + "    distribution: ShardedByS3Key\ninstances: 2\n"
    project.write({"read.py": READ, "job.yaml": job})
    done = project.trainshed("run", "job.yaml", **s3)

    assert done.status == 0, done.output
    assert sorted(map(str, epochs(done.output))) == sorted(map(str, [SAMPLES[::2], SAMPLES[1::2]] * 2))


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        ("evil", "/etc/passwd is not on S3, as all must be that a manifest on S3 names"),
        ("gone", "s3://bucket/nothing: An error occurred (NoSuchKey)"),
    ],
)
def test_a_manifest_that_names_what_cannot_be_sent_fails_the_job(
    manifest: str, problem: str, project: Project, s3: dict[str, str]
) -> None:
    project.write({"read.py": READ, "job.yaml": AUGMENTED.replace("PATH", f"s3://bucket/{manifest}")})
    done = project.trainshed("run", "job.yaml", **s3)

    assert done.status != 0 and epochs(done.output) == []  # no epoch that is silently short
    assert f"cannot feed the channel train: {problem}" in done.output, done.output


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("    attributes: [source-ref, label, text]\n", ""), "needs `attributes`"),
        (("Pipe", "File"), "is only for Pipe mode (set input_mode to Pipe)"),
        (("    record_wrapper: RecordIO\n", ""), "(set record_wrapper to RecordIO)"),
        (("    s3_type: AugmentedManifestFile\n", ""), "are for augmented manifests (set s3_type to AugmentedManifestFile)"),
    ],
)
def test_an_augmented_manifest_that_nobody_could_read_is_refused(
    change: tuple[str, str], problem: str, project: Project
) -> None:
    project.write({"read.py": READ, "job.yaml": AUGMENTED.replace("PATH", "s3://bucket/manifest").replace(*change)})
    done = project.trainshed("run", "job.yaml")

    assert done.status == 2 and problem in done.output, done.output


@pytest.mark.exact
@pytest.mark.spine
@pytest.mark.torch
def test_two_ranks_share_a_pipe_of_records(project: Project) -> None:
    pytest.importorskip("torch")
    for part in range(2):
        path = project.folder / "data" / f"{part}.rec"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(frame(str(number).encode()) for number in range(50 * part, 50 * part + 50)))
    project.write({
        "loaded.py": LOADED,
        "job.yaml": "program: loaded.py\ndistribution: {kind: torchrun, processes_per_host: 2}\nchannels:\n"
        "  train: {path: data, input_mode: Pipe, content_type: application/x-recordio}\n",
    })  # fmt: skip
    done = project.trainshed("run", "job.yaml")
    each = [line.partition("rank ")[2].split() for line in done.output.splitlines() if "rank " in line]

    assert done.status == 0, done.output
    for epoch in "01":
        numbers = [int(number) for words in each if words[0] == epoch for number in words[1:]]
        assert sorted(numbers) == list(range(100)), done.output
