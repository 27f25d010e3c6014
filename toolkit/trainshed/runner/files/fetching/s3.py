"""Channels and results on S3."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainshed.base import s3
from trainshed.base.errors import TrainshedError

from .items import Item

LARGEST_MANIFEST = 64 << 20  # bytes


class Bucket:
    """One `s3://bucket/key` URI.

    Raises:
        TrainshedError: boto3 is missing, or cannot make a client.
    """

    def __init__(self, uri: str, environ: Mapping[str, str]) -> None:
        self.uri = uri
        self.bucket, self.key = s3.split_uri(uri)
        with _Errors(uri):
            self.client: Any = s3.make_client(environ)

    def at(self, uri: str) -> Bucket:
        """Another URI, through the same connections."""
        other = object.__new__(Bucket)
        other.uri, other.client = uri, self.client
        other.bucket, other.key = s3.split_uri(uri)
        return other

    def read(self) -> bytes:
        """The object itself. Raises TrainshedError: S3 refuses, or there is none."""
        with _Errors(self.uri):
            body: bytes = self.client.get_object(Bucket=self.bucket, Key=self.key)["Body"].read()
        return body

    @property
    def parent(self) -> str:
        """The key's part up to its last slash, which names of files do not have."""
        return self.key[: self.key.rfind("/") + 1]

    def objects(self, kind: str) -> list[Item]:
        """Lists what the URI means, sorted by name.

        `S3Prefix`: every object whose key starts with it; names start behind the prefix's last slash, as the platform's do.
        `ManifestFile`: `[{"prefix": "s3://..."}, "key", ...]`; names are the keys as listed.

        Raises:
            TrainshedError: S3 refuses, no object matches, or the manifest is malformed.
        """
        found = self._manifest() if kind == "ManifestFile" else self._below()
        if not found:
            raise TrainshedError(f"{self.uri}: no object has this prefix")
        return sorted(found, key=lambda item: item.name)

    def is_kms(self, item: Item) -> bool:
        """Returns whether keys of KMS encrypt an object. Raises TrainshedError: S3 does not say."""
        bucket, key = s3.split_uri(item.url)
        with _Errors(item.url):
            found = self.client.head_object(Bucket=bucket, Key=key)
        return str(found.get("ServerSideEncryption", "")).startswith("aws:kms")

    def upload(self, path: str, name: str, sha256: str) -> str:
        """Copies a file below the URI and compares what has arrived; returns the object's URI.

        Args:
            sha256: of the file, hexadecimal; kept with the object as metadata.

        Raises:
            TrainshedError: S3 refuses, or holds something else afterwards.
            OSError: the file cannot be read.
        """
        key = f"{self.key}/{name}".lstrip("/")
        uri = f"s3://{self.bucket}/{key}"
        with _Errors(uri):
            problem = s3.upload_verified(self.client, path, self.bucket, key, sha256)
        if problem:
            raise TrainshedError(f"{uri}: {problem}", hint=f"{path} is whole: upload it again")
        return uri

    def _below(self) -> list[Item]:
        start = len(self.parent)
        with _Errors(self.uri):
            found = s3.list_objects(self.client, self.bucket, self.key)
        return [
            Item(key[start:], f"{s3.SCHEME}{self.bucket}/{key}", size, etag)
            for key, size, etag in found
            if not key.endswith("/")
        ]

    def _manifest(self) -> list[Item]:
        with _Errors(self.uri):
            body = self.client.get_object(Bucket=self.bucket, Key=self.key)["Body"].read(LARGEST_MANIFEST + 1)
        try:
            first, *names = json.loads(body)
            prefix = first["prefix"]
            bucket, start = s3.split_uri(prefix)
            if not all(isinstance(name, str) for name in names):
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise TrainshedError(
                f"{self.uri} is not a manifest", hint='it must be JSON like [{"prefix": "s3://bucket/folder/"}, "a", "b"]'
            ) from None
        return [Item(name, f"{s3.SCHEME}{bucket}/{start}{name}") for name in dict.fromkeys(names)]


class _Errors:
    """Within the block, errors of boto3 become ours; an OSError is about a file here and stays."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ImportError):
            raise TrainshedError(f"{self.uri}: {s3.NOT_INSTALLED}", hint=s3.INSTALL) from None
        if isinstance(error, Exception) and not isinstance(error, (TrainshedError, OSError)):
            raise TrainshedError(f"{self.uri}: {s3.explain(error)}", hint=s3.CHECK) from None


def check_output(prefix: str, run_name: str, environ: Mapping[str, str]) -> None:
    """Checks whether `collect.upload` will be allowed to upload. Raises TrainshedError: boto3 is missing, or S3 refuses."""
    bucket = Bucket(f"{prefix}/{run_name}/output/model.tar.gz", environ)
    with _Errors(bucket.uri):
        s3.check_writable(bucket.client, bucket.bucket, bucket.key)
