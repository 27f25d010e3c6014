"""A model store on S3. Every object appears at once there; `If-None-Match` has one of two writers win.

Source: "Conditional writes" in the user guide of Amazon S3. A storage that does not know them answers 501, or ignores them:
then what was written is read back, which leaves a moment in which a version can be lost to another writer.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainshed.base import s3
from trainshed.base.errors import TrainshedError
from trainshed.base.files import open_plain

BLOCK = 1 << 20  # bytes
_GONE = ("NoSuchKey", "404", "NotFound")
_TAKEN = (409, 412)  # another writer is at it, or was there first


class InS3:
    """The objects below `s3://bucket/prefix`.

    Raises:
        TrainshedError: boto3 is missing or cannot make a client, or it is not an S3 URI.
    """

    def __init__(self, uri: str, environ: Mapping[str, str]) -> None:
        self.bucket, prefix = s3.split_uri(uri)
        if not self.bucket:
            raise TrainshedError(f"{uri} is not an S3 URI", hint="it must look like s3://bucket/prefix")
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.shown = f"{s3.SCHEME}{self.bucket}/{self.prefix}".rstrip("/")
        try:
            self.client: Any = s3.make_client(environ)
        except ImportError:
            raise TrainshedError(f"{uri}: {s3.NOT_INSTALLED}", hint=s3.INSTALL) from None
        except Exception as error:
            raise TrainshedError(f"{uri}: {s3.explain(error)}", hint=s3.CHECK) from None

    def names(self, folder: str) -> list[str]:
        """What lies directly in a folder, sorted."""
        prefix = f"{self.prefix}{folder}/" if folder else self.prefix
        with self._asking():
            pages = list(
                self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
            )
        found = [item["Key"] for page in pages for item in page.get("Contents", [])]
        found += [item["Prefix"].rstrip("/") for page in pages for item in page.get("CommonPrefixes", [])]
        return sorted(name for key in found if (name := key.removeprefix(prefix)) and not name.startswith("."))

    def keys(self, folder: str) -> dict[str, int]:
        """Bytes of everything below a folder."""
        prefix = f"{self.prefix}{folder}/"
        with self._asking():
            found = s3.list_objects(self.client, self.bucket, prefix)
        return {key.removeprefix(prefix): size for key, size, _ in found}

    def read(self, key: str, limit: int) -> bytes | None:
        """A small object; b"" where it is larger than any of ours."""
        try:
            with self._asking():
                answer = self.client.get_object(Bucket=self.bucket, Key=self.prefix + key)
                data: bytes = answer["Body"].read(limit + 1)
        except FileNotFoundError:
            return None
        return data if len(data) <= limit else b""

    def create(self, key: str, data: bytes) -> bool:
        """Puts an object where there is none, and looks whose it is."""
        from botocore.exceptions import ClientError

        where = {"Bucket": self.bucket, "Key": self.prefix + key}
        with self._asking():
            try:
                self.client.put_object(**where, Body=data, IfNoneMatch="*")
            except ClientError as error:
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
                if status not in (*_TAKEN, 501):
                    raise
                if status == 501 and self.read(key, len(data)) is None:
                    self.client.put_object(**where, Body=data)
        # A try whose answer was lost has put it, too; and a storage may have let another writer replace it.
        return self.read(key, len(data)) == data

    def replace(self, key: str, data: bytes) -> None:
        """Puts an object."""
        with self._asking():
            self.client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=data)

    def put(self, path: str, key: str) -> tuple[int, str]:
        """Uploads a file, and compares size and checksum of what has arrived."""
        with open_plain(path) as file:
            found, before = hashlib.sha256(), os.fstat(file.fileno())
            count = 0
            while block := file.read(BLOCK):
                found.update(block)
                count += len(block)
        with self._asking():
            wrong = s3.upload_verified(self.client, path, self.bucket, self.prefix + key, found.hexdigest())
        after = os.stat(path)
        if (before.st_size, before.st_mtime_ns, before.st_ino) != (after.st_size, after.st_mtime_ns, after.st_ino):
            wrong = "the file changed while it was uploaded"
        if wrong:
            raise TrainshedError(f"{path} could not be added to {self.shown}: {wrong}", hint="add it again")
        return count, found.hexdigest()

    def blocks(self, key: str) -> Iterator[bytes]:
        """The bytes of an object."""
        with self._asking():
            body = self.client.get_object(Bucket=self.bucket, Key=self.prefix + key)["Body"]
            while block := body.read(BLOCK):
                yield block

    def address(self, key: str) -> str:
        """The URI of an object."""
        return f"{s3.SCHEME}{self.bucket}/{self.prefix}{key}"

    def remove(self, key: str) -> None:
        """Removes an object, if it is there."""
        with self._asking():
            self.client.delete_object(Bucket=self.bucket, Key=self.prefix + key)

    def remove_below(self, folder: str) -> None:
        """Removes every object below a folder."""
        for name in self.keys(folder):
            self.remove(f"{folder}/{name}")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Within the block, errors of boto3 become ours; FileNotFoundError where an object is not there."""
        try:
            yield
        except (TrainshedError, FileNotFoundError):
            raise
        except Exception as error:
            code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
            if code in _GONE:
                raise FileNotFoundError(code) from None
            raise TrainshedError(f"the model store {self.shown}: {s3.explain(error)}", hint=s3.CHECK) from None
