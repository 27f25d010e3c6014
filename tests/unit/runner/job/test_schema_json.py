"""The JSON schema that editors use says what the reader says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.extras import needs
from support.lazy import Lazy
from support.paths import DOCS, ENTRYPOINTS, ROOT
from support.runner_project import Project
from trainshed.base.wings import has_wing
from trainshed.runner.job.fields import BY_NAME
from trainshed.runner.job.schema_json import KINDS, schema, text
from trainshed.runner.job.yamlfile import read_nodes
from unit.runner.job.test_read import FULL

needs("jsonschema")
jsonschema = Lazy("jsonschema")

EXAMPLES = ROOT / "examples"
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


def kinds() -> list[str]:
    """The schemas that there are without the studio, and with it."""
    return [kind for kind in KINDS if kind not in ("tune", "steps") or has_wing("studio")]


def test_the_published_schemas_are_those_of_this_version() -> None:
    for kind in kinds():
        jsonschema.Draft202012Validator.check_schema(schema(kind))
        assert (DOCS / f"{kind}.schema.json").read_text() == text(kind), "run: python tests/support/doc_tables.py"


def test_the_schema_is_printed(project: Project) -> None:
    assert json.loads(project.trainshed("schema").stdout) == schema()
    assert json.loads(project.trainshed("schema", "algorithm").stdout) == schema("algorithm")


def test_the_files_of_the_project_fit(tmp_path: Path) -> None:
    needs("trainshed.studio")
    found = {"job": [*EXAMPLES.rglob("job.yaml")], "steps": [*EXAMPLES.rglob("pipeline.yaml")]}
    found |= {"algorithm": [*ENTRYPOINTS.glob("*.algorithm.yaml")], "tune": []}
    for page, kind in (("tune.md", "tune"), ("steps.md", "steps"), ("running.md", "job")):
        blocks = re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
        for number, block in enumerate(block for block in blocks if block.startswith("name: ")):
            found[kind].append(tmp_path / f"{kind}-{number}.yaml")
            found[kind][-1].write_text(block)
    for kind, paths in found.items():
        assert paths, kind
        for path in paths:
            root = read_nodes(str(path), [])  # as the readers do: in YAML 1.1, `on` is true and 1e-5 a text
            assert root is not None
            jsonschema.Draft202012Validator(schema(kind)).validate(root.plain())


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        ("job", "program: a\ninstances: 0", "must be a whole number from 1 to 512"),
        ("job", "program: a\ndistribution: {engine: torch}", "must be one of trainshed, torchrun, mpi"),
        ("job", "program: a\nssh: {patience: soon}", "must be a number from 1 to 2419200"),
        ("tune", "max_jobs: many", "must be a whole number from 1 to 100000"),
        ("tune", "search: {lr: {low: a}}", "must be a number"),
        ("steps", "max_parallel: 0", "must be a whole number from 1 to 100"),
        ("algorithm", "hyperparameters: {lr: {type: real}}", "must be one of"),
    ],
)
def test_what_is_wrong_is_said_in_words(kind: str, wrong: str, words: str) -> None:
    if kind not in kinds():
        needs("trainshed.studio")
    errors = list(jsonschema.Draft202012Validator(schema(kind)).iter_errors(yaml.safe_load(wrong)))
    assert any(words in said for error in errors for said in said_of(error))


def said_of(error: Any) -> list[str]:
    """The words of an error, and of those inside it."""
    own = [error.schema["errorMessage"]] if "errorMessage" in error.schema else []
    return own + [said for inner in error.context for said in said_of(inner)]


def test_the_schema_is_a_schema_and_names_every_field() -> None:
    assert schema()["properties"].keys() == BY_NAME.keys()


@pytest.mark.parametrize("job", GOOD)
def test_good_job_files_fit(job: str) -> None:
    jsonschema.Draft202012Validator(schema()).validate(yaml.safe_load(job))


@pytest.mark.parametrize("job", BAD)
def test_bad_job_files_do_not(job: str) -> None:
    assert not jsonschema.Draft202012Validator(schema()).is_valid(yaml.safe_load(job))
