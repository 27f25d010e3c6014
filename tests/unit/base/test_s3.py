"""One way to S3 for all callers: one rule for endpoint and region, errors in words."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.own_s3 import BUCKET, client, own_s3
from trainshed.base import s3


class FakeBoto3(types.ModuleType):
    """Notes how a client is made, and answers in two pages."""

    def __init__(self) -> None:
        super().__init__("boto3")
        self.asked: dict[str, Any] = {}

    def client(self, service: str, **options: Any) -> FakeBoto3:
        self.asked = {"service": service, **options}
        return self

    def get_paginator(self, operation: str) -> FakeBoto3:
        assert operation == "list_objects_v2"
        return self

    def paginate(self, Bucket: str, Prefix: str) -> list[dict[str, Any]]:
        return [{"Contents": [{"Key": f"{Prefix}1"}, {"Key": f"{Prefix}2"}]}, {"Contents": [{"Key": f"{Prefix}3"}]}, {}]


@pytest.fixture
def boto3(monkeypatch: pytest.MonkeyPatch) -> FakeBoto3:
    """A boto3 that reaches nothing."""
    module = FakeBoto3()
    monkeypatch.setitem(sys.modules, "boto3", module)
    return module


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({}, None),
        ({"S3_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": ""}, None),
        ({"AWS_ENDPOINT_URL": "http://all"}, "http://all"),
        ({"AWS_ENDPOINT_URL": "http://all", "AWS_ENDPOINT_URL_S3": "http://s3"}, "http://s3"),
        ({"AWS_ENDPOINT_URL_S3": "http://s3", "S3_ENDPOINT_URL": "http://sdk"}, "http://sdk"),
    ],
)
def test_the_most_special_variable_names_the_endpoint(
    environ: dict[str, str], endpoint: str | None, boto3: FakeBoto3
) -> None:
    s3.make_client(environ)

    assert boto3.asked == {"service": "s3", "endpoint_url": endpoint, "region_name": None}


@pytest.mark.parametrize(
    ("environ", "region"),
    [
        ({"SAGEMAKER_REGION": "c"}, "c"),
        ({"SAGEMAKER_REGION": "c", "AWS_DEFAULT_REGION": "b"}, "b"),
        ({"SAGEMAKER_REGION": "c", "AWS_DEFAULT_REGION": "b", "AWS_REGION": "a"}, "a"),
    ],
)
def test_the_region_is_that_of_the_first_variable(environ: dict[str, str], region: str, boto3: FakeBoto3) -> None:
    s3.make_client(environ)

    assert boto3.asked["region_name"] == region


def test_without_boto3_a_client_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ImportError):
        s3.make_client({})


def test_keys_of_all_pages_are_listed(boto3: FakeBoto3) -> None:
    assert s3.list_keys(s3.make_client({}), "bucket", "data/") == ["data/1", "data/2", "data/3"]


@pytest.mark.parametrize(
    ("uri", "parts"),
    [("s3://b/k/e/y", ("b", "k/e/y")), ("s3://b", ("b", "")), ("s3://b/", ("b", "")), ("s3://", ("", ""))],
)
def test_a_uri_has_a_bucket_and_a_key(uri: str, parts: tuple[str, str]) -> None:
    assert s3.split_uri(uri) == parts


def test_what_is_not_a_uri_of_s3_is_refused() -> None:
    with pytest.raises(ValueError, match="'gs://b/k' is not an S3 URI"):
        s3.split_uri("gs://b/k")


def test_an_error_is_one_line_without_a_login() -> None:
    said = s3.explain(RuntimeError("cannot\nreach https://me:hunter22@host/x"))

    assert said.startswith("cannot reach https://") and "hunter22" not in said
    assert s3.explain(RuntimeError()) == "RuntimeError"


# --- what has arrived -------------------------------------------------------------------------------------------------


class Careless:
    """A way to S3 that loses or changes bytes, and says nothing of it; or a storage that knows no checksums."""

    def __init__(self, client: Any, arrives: bytes | None = None, checksums: bool = True) -> None:
        self.client, self.arrives, self.checksums = client, arrives, checksums

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def upload_file(self, path: str, bucket: str, key: str, **options: Any) -> None:
        if self.arrives is None:
            self.client.upload_file(path, bucket, key, **options)
        else:
            self.client.put_object(Bucket=bucket, Key=key, Body=self.arrives, ChecksumAlgorithm="SHA256")

    def head_object(self, **asked: Any) -> dict[str, Any]:
        answer = self.client.head_object(**asked)
        return answer if self.checksums else {key: value for key, value in answer.items() if "Checksum" not in key}


@pytest.fixture(scope="module")
def storage() -> Iterator[Any]:
    """A client of an S3 of this machine's own."""
    with own_s3() as environment:
        yield client(environment)


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("size", [0, 1, 5 << 20, (11 << 20) + 7])
def test_an_upload_arrives_as_it_was_in_one_part_or_several(
    storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, checksums: bool
) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 << 20)
    (tmp_path / "file").write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))

    assert s3.upload_verified(Careless(storage, checksums=checksums), str(tmp_path / "file"), BUCKET, "key", "abc") == ""
    there = storage.get_object(Bucket=BUCKET, Key="key")
    assert there["Body"].read() == (tmp_path / "file").read_bytes() and there["Metadata"] == {"sha256": "abc"}


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize(
    ("arrives", "says"),
    [(b"hal", "3 of 6 bytes arrived"), (b"", "0 of 6 bytes arrived"), (b"wholE!", "what arrived has another checksum")],
)
def test_an_upload_that_arrives_otherwise_is_told(
    storage: Any, tmp_path: Path, arrives: bytes, says: str, checksums: bool
) -> None:
    (tmp_path / "file").write_bytes(b"whole!")

    assert says in s3.upload_verified(Careless(storage, arrives, checksums), str(tmp_path / "file"), BUCKET, "key")
