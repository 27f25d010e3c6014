"""The JSON schema that editors use says what the reader says."""

from __future__ import annotations

import json

import pytest
import yaml

from support.extras import needs
from support.lazy import Lazy
from support.paths import DOCS
from support.runner_project import Project
from trainshed.runner.job.fields import BY_NAME
from trainshed.runner.job.schema_json import schema, text
from unit.runner.job.test_read import FULL

needs("jsonschema")
jsonschema = Lazy("jsonschema")

GOOD = [
    FULL,
    "program: train.py",
    "image: a/b:1\nentrypoint: [/bin/sh, -c]\narguments: [echo, 1]\nnetwork_isolation: true",
    "program: a\nspot: true\nretries: 3",
    "program: a\nspot: {interrupt_after: '20s,40s', max_wait_seconds: 60, price: 0.3}",
    "program: a\nspot: {interrupt_after: [20, 1.5m]}",
    "program: a\nenvironment: {A: {env: B}, C: {file: ~/d}, E: {secret: f}, G: 1, H: }",
    "program: a\nchannels: {a: x, b: {path: s3://b/c, input_mode: Pipe, record_wrapper: RecordIO, shuffle_seed: 0}}",
    "program: a\ncheckpoints: {folder: c, local_path: /opt/ml/saved, auto: true, copy_to: 's3://bucket/run'}",
    "program: a\nmetric_definitions: [{Name: loss, Regex: '(.)'}]\nresources: {gpus: 2, memory: 8}",
]
BAD = [
    "name: x",
    "program: a\nnme: x",
    "program: a\nname: my_job",
    "program: a\ninstances: 0",
    "program: a\ninstances: two",
    "program: a\nchannels: {a: {input_mode: File}}",
    "program: a\nchannels: {a: {path: b, input_mode: Stream}}",
    "program: a\nenvironment: {A: {env: B, file: C}}",
    "program: a\ndistribution: {kind: torchrn}",
    "program: a\nspot: {price: 2}",
    "program: a\nretries: 31",
    "program: a\nresources: {memory: lots}",
    "program: a\nargv: flag",
    "program: a\ncheckpoints: {copy_to: bucket}",
]


def test_the_published_schema_is_the_one_of_this_version() -> None:
    assert (DOCS / "job.schema.json").read_text() == text(), "trainshed schema > docs/job.schema.json"


def test_the_schema_is_printed(project: Project) -> None:
    assert json.loads(project.trainshed("schema").stdout) == schema()


def test_the_schema_is_a_schema_and_names_every_field() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["properties"].keys() == BY_NAME.keys()


@pytest.mark.parametrize("job", GOOD)
def test_good_job_files_fit(job: str) -> None:
    jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(job))


@pytest.mark.parametrize("job", BAD)
def test_bad_job_files_do_not(job: str) -> None:
    assert not jsonschema.Draft202012Validator(schema()).is_valid(yaml.safe_load(job))
