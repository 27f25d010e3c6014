"""The job file's JSON schema (draft 2020-12), for editors and other programs. `schema` checks more than a schema can say."""

from __future__ import annotations

import json
from typing import Any

from trainshed.contract.hyperparameters import ARGV_STYLES
from trainshed.contract.settings import ENGINES

from . import channels, references
from .read import DISTRIBUTIONS, LONGEST_NAME, LONGEST_REGEX, MOST_ARGUMENTS, MOST_METRICS

_TEXT = {"type": ["string", "number", "boolean"]}
_PATH = {"type": "string", "minLength": 1}
_SIZE = {"type": ["string", "integer"], "pattern": r"^\s*\d{1,15}(\.\d{1,9})?\s*[kKmMgGtT]?([iI]?[bB])?\s*$"}
_DURATION = {"type": ["string", "number"], "pattern": r"^\s*\d+(\.\d+)?(s|m|min|h)?(\s*,\s*\d+(\.\d+)?(s|m|min|h)?)*\s*$"}


def _mapping(values: Any, **more: Any) -> dict[str, Any]:
    return {"type": ["object", "null"], "additionalProperties": values, **more}


def _record(fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    nullable = {name: {"anyOf": [{"type": "null"}, field]} for name, field in fields.items()}
    return {"type": "object", "properties": nullable, "additionalProperties": False, **more}


def schema() -> dict[str, Any]:
    """The schema as a JSON value."""
    channel = _record(
        {
            "path": _PATH | {"description": "a folder, a file, a glob, or s3://bucket/prefix"},
            "input_mode": {"enum": list(channels.MODES)},
            "content_type": {"type": "string"},
            "s3_type": {"enum": list(channels.S3_TYPES)},
            "distribution": {"enum": list(channels.DISTRIBUTIONS)},
            "compression": {"enum": list(channels.COMPRESSIONS)},
            "record_wrapper": {"enum": list(channels.WRAPPERS)},
            "shuffle_seed": {"type": "integer", "minimum": 0},
        },
        required=["path"],
    )
    reference = _record(
        {kind: {"type": "string", "minLength": 1} for kind in references.KINDS}, minProperties=1, maxProperties=1
    )
    distribution = _record(
        {
            "kind": {"enum": list(DISTRIBUTIONS)},
            "processes_per_host": {"type": "integer", "minimum": 1, "maximum": 4096},
            "engine": {"enum": list(ENGINES)},
            "max_restarts": {"type": "integer", "minimum": 0, "maximum": 1000},
            "parameters": {"type": "object", "description": "of a pipeline"},
            "smdistributed": {"type": "object", "description": "as SageMaker's estimators take it"},
            "mpi": {"type": "object"},
        }
    )
    metric = {"type": "object", "required": ["Name", "Regex"]}
    regex = {"type": "string", "maxLength": LONGEST_REGEX}
    fields: dict[str, Any] = {
        "name": {"type": ["string", "integer"], "maxLength": LONGEST_NAME, "pattern": "^[A-Za-z0-9](-*[A-Za-z0-9])*$"},
        "image": {"type": "string", "description": "container image; without one the hosts are processes"},
        "program": {"type": "string", "description": "a script, `-m package.module`, or a program that the image has"},
        "source_dir": _PATH | {"description": "folder or archive with the code, copied for each host"},
        "hyperparameters": {"type": "object"},
        "channels": _mapping({"anyOf": [_PATH, channel]}, maxProperties=channels.MOST_CHANNELS),
        "instances": {"type": "integer", "minimum": 1, "maximum": 512},
        "distribution": {"anyOf": [{"enum": list(DISTRIBUTIONS)}, distribution]},
        "environment": _mapping({"anyOf": [_TEXT, {"type": "null"}, reference]}),
        "output": {"type": "string", "description": "folder of this run, or s3:// for its archives"},
        "max_runtime_seconds": {"type": "number", "minimum": 0, "maximum": 2419200},
        "grace_seconds": {"type": "number", "minimum": 0, "maximum": 86400},
        "metric_definitions": {
            "anyOf": [
                _mapping(regex, maxProperties=MOST_METRICS),
                {"type": "array", "items": metric, "maxItems": MOST_METRICS},
            ]
        },
        "resources": _record(
            {
                "cpus": {"type": "number", "minimum": 0.01, "maximum": 4096},
                "memory": _SIZE,
                "gpus": {"anyOf": [{"const": "all"}, {"type": "integer", "minimum": 0, "maximum": 1024}]},
                "shm_size": _SIZE,
            }
        ),
        "checkpoints": {
            "anyOf": [
                {"type": "string"},
                _record(
                    {
                        "folder": {"type": "string"},
                        "local_path": {"type": "string"},
                        "auto": {"type": "boolean"},
                        "copy_to": {"type": "string", "pattern": "^[a-z][a-z0-9+.-]*://"},
                    }
                ),
            ]
        },
        "argv": {"enum": list(ARGV_STYLES)},
        "spot": {
            "anyOf": [
                {"type": "boolean"},
                _record(
                    {
                        "interrupt_after": {"anyOf": [_DURATION, {"type": "array", "items": _DURATION}]},
                        "max_wait_seconds": {"type": "number", "minimum": 0, "maximum": 2419200},
                        "price": {"type": "number", "minimum": 0.01, "maximum": 1},
                    }
                ),
            ]
        },
        "retries": {"type": "integer", "minimum": 0, "maximum": 30},
        "entrypoint": {"type": "array", "items": _TEXT, "maxItems": MOST_ARGUMENTS},
        "arguments": {"type": "array", "items": _TEXT, "maxItems": MOST_ARGUMENTS},
        "network_isolation": {"type": "boolean"},
        "compiler": {"type": ["string", "object"]},
        **{place: {"type": "object"} for place in ("slurm", "kubernetes", "sagemaker")},
    }
    needs = [{"required": ["program"]}, {"required": ["image"]}, {"required": ["source_dir"]}]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "trainshed job"}
    return {**head, **_record(fields), "anyOf": needs}


def text() -> str:
    """The schema as it is published."""
    return json.dumps(schema(), indent=2) + "\n"
