"""Runs inside an SDK's own virtual environment: takes jobs as JSON lines on stdin, answers each with a JSON line.

Importing an SDK takes seconds, so one process serves all jobs of a test module. What the SDK logs and what the containers
print goes to a file for each job. It imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

ROLE = "arn:aws:iam::123456789012:role/trainshed-test"


def sdk2_fit(job: dict[str, Any]) -> dict[str, Any]:
    """One job of an SDK v2 estimator in local mode.

    job: estimator (`module:Class`), arguments (of its constructor), inputs (channel -> URI), content_types (of channels),
    local_code (whether the code stays here or goes by way of S3).
    """
    from sagemaker.inputs import TrainingInput

    session = _local_session()
    # Compose's ten seconds after a stop are too few on a machine that has other things to do.
    patient = {"container_config": {"stop_grace_period": "120s"}}
    session.config = {"local": {"local_code": job.get("local_code", True), **patient}}
    module, _, name = job["estimator"].partition(":")
    estimator = getattr(importlib.import_module(module), name)(
        role=ROLE, sagemaker_session=session, **{"instance_type": "local", "instance_count": 1, **job["arguments"]}
    )
    types = job.get("content_types", {})
    inputs = {
        channel: TrainingInput(uri, content_type=types[channel]) if channel in types else uri
        for channel, uri in job.get("inputs", {}).items()
    }
    estimator.fit(inputs or None)
    return {"model_data": estimator.model_data, "job_name": estimator.latest_training_job.job_name}


@functools.cache
def _local_session() -> Any:
    """One session for all jobs: making one takes a second."""
    from sagemaker.config.config_schema import SAGEMAKER_PYTHON_SDK_CONFIG_SCHEMA
    from sagemaker.local import LocalSession

    _check_once(SAGEMAKER_PYTHON_SDK_CONFIG_SCHEMA)
    return LocalSession()


def _check_once(schema: dict[str, Any]) -> None:
    """Checks the schema of an SDK's configuration now and not again.

    The SDKs read their configuration up to twenty times a job, and check it and its schema each time. The schema stays as it
    is, and checking it takes four of five seconds of a job.
    """
    from jsonschema.validators import validator_for

    validator = validator_for(schema)
    check = validator.check_schema
    check(schema)

    def check_others(other: Any, *arguments: Any, **options: Any) -> None:
        if other is not schema:
            check(other, *arguments, **options)

    validator.check_schema = check_others


@functools.cache
def _prepare_sdk3() -> None:
    """What one process does once."""
    from sagemaker.core.config.config_schema import SAGEMAKER_PYTHON_SDK_CONFIG_SCHEMA

    _check_once(SAGEMAKER_PYTHON_SDK_CONFIG_SCHEMA)


def sdk3_train(job: dict[str, Any]) -> dict[str, Any]:
    """One job of SDK v3's ModelTrainer in local mode.

    job: image, source (of SourceCode), compute, hyperparameters, environment, inputs (channel -> path or URI), distributed
    ({"kind": "Torchrun" | "MPI", ...}), container_root, session (whether to give one).
    """
    from sagemaker.core.helper.session_helper import Session
    from sagemaker.train.configs import Compute, InputData, SourceCode
    from sagemaker.train.distributed import MPI, Torchrun
    from sagemaker.train.model_trainer import Mode, ModelTrainer

    _prepare_sdk3()
    distributed = dict(job.get("distributed") or {})
    kind = {"Torchrun": Torchrun, "MPI": MPI}.get(distributed.pop("kind", ""))
    trainer = ModelTrainer(
        training_image=job["image"],
        training_mode=Mode.LOCAL_CONTAINER,
        role=ROLE,
        base_job_name=job["name"],
        source_code=SourceCode(**job["source"]) if job.get("source") else None,
        distributed=kind(**distributed) if kind else None,
        compute=Compute(**{"instance_type": "local_cpu", "instance_count": 1, **job.get("compute", {})}),
        hyperparameters=job.get("hyperparameters") or {},
        environment=job.get("environment") or {},
        local_container_root=job["container_root"],
        sagemaker_session=Session() if job.get("session") else None,
    )
    inputs = [InputData(channel_name=name, data_source=where) for name, where in job.get("inputs", {}).items()]
    trainer.train(input_data_config=inputs or None, wait=True, logs=True)
    return {}


def s3(job: dict[str, Any]) -> dict[str, Any]:
    """Makes a bucket, puts objects, lists and downloads them: make (name), put (URI -> text), list (URI), download, to."""
    import boto3

    client = boto3.client("s3")

    def parts(uri: str) -> tuple[str, str]:
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        return bucket, key

    if "make" in job:
        client.create_bucket(Bucket=job["make"])
    for uri, text in job.get("put", {}).items():
        bucket, key = parts(uri)
        client.put_object(Bucket=bucket, Key=key, Body=text.encode())
    answer: dict[str, Any] = {}
    if "list" in job:
        bucket, key = parts(job["list"])
        found = client.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", [])
        answer["keys"] = sorted(item["Key"][len(key) :] for item in found)
    if "download" in job:
        bucket, key = parts(job["download"])
        client.download_file(bucket, key, job["to"])
    return answer


CALLS = {"sdk2_fit": sdk2_fit, "sdk3_train": sdk3_train, "s3": s3}


def serve() -> None:
    """Until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing but answers goes where the answers go
    for line in sys.stdin:
        job = json.loads(line)
        with Path(job["log"]).open("w", errors="backslashreplace") as log, contextlib.redirect_stdout(log):
            handler = logging.StreamHandler(log)
            logging.getLogger().addHandler(handler)
            try:
                answer = {"ok": True, **CALLS[job["call"]](job)}
            except BaseException as error:  # an SDK's failure is what some tests are about
                traceback.print_exc(file=log)
                answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            finally:
                logging.getLogger().removeHandler(handler)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
