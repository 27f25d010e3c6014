"""Channels and results on S3."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainshed.base import s3
from trainshed.base.errors import TrainshedError

from .collect import Archive

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

    def objects(self, kind: str) -> list[tuple[str, tuple[str, str]]]:
        """(file name, (bucket, key)) of what the URI means, sorted by name.

        `S3Prefix`: every object whose key starts with it; names start behind the prefix's last slash, as the platform's do.
        `ManifestFile`: `[{"prefix": "s3://..."}, "key", ...]`; names are the keys as listed.

        Raises:
            TrainshedError: S3 refuses, no object matches, or the manifest is malformed.
        """
        found = self._manifest() if kind == "ManifestFile" else self._below()
        if not found:
            raise TrainshedError(f"{self.uri}: no object has this prefix")
        return sorted(found)

    def fetching(self, place: tuple[str, str]) -> Callable[[str], None]:
        """A function that downloads an object to a path."""

        def fetch(target: str) -> None:
            with _Errors(f"s3://{place[0]}/{place[1]}"):
                self.client.download_file(*place, target)

        return fetch

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

    def _below(self) -> list[tuple[str, tuple[str, str]]]:
        start = self.key.rfind("/") + 1
        with _Errors(self.uri):
            keys = s3.list_keys(self.client, self.bucket, self.key)
        return [(key[start:], (self.bucket, key)) for key in keys if not key.endswith("/")]

    def _manifest(self) -> list[tuple[str, tuple[str, str]]]:
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
        return [(name, (bucket, f"{start}{name}")) for name in names]


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


def archives_to(prefix: str, run_name: str, archives: Iterable[Archive], environ: Mapping[str, str]) -> list[str]:
    """Uploads archives to `<prefix>/<run>/output/`, as the platform does, each verified; returns their URIs.

    Raises:
        TrainshedError, OSError: as `Bucket.upload`.
    """
    bucket = Bucket(f"{prefix}/{run_name}/output", environ)
    return [bucket.upload(one.path, os.path.basename(one.path), one.sha256) for one in archives]
