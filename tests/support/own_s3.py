"""An S3 of this machine's own for tests: moto's server on a free port, with a bucket in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest

BUCKET = "bucket"


@contextmanager
def own_s3() -> Iterator[dict[str, str]]:
    """The variables that lead programs there; skips where moto is not installed."""
    moto = pytest.importorskip("moto.server", reason="needs moto: pip install 'trainshed[dev]'")
    pytest.importorskip("boto3")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": host,
    }
    try:
        client(environment).create_bucket(Bucket=BUCKET)
        yield environment
    finally:
        # All servers of a process share one state, which outlives them.
        with urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")):
            server.stop()


def client(environment: dict[str, str]) -> Any:
    """A boto3 client for it."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL_S3"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


def put(environment: dict[str, str], objects: dict[str, bytes]) -> None:
    """Makes objects by their keys."""
    for key, body in objects.items():
        client(environment).put_object(Bucket=BUCKET, Key=key, Body=body)


def keys(environment: dict[str, str], prefix: str = "") -> list[str]:
    """The keys of all objects below a prefix, without it, sorted."""
    found = client(environment).list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return sorted(item["Key"].removeprefix(prefix) for item in found)
