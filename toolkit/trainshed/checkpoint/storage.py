"""A prefix on another storage: S3 through boto3, everything else through fsspec.

Object stores have no folders and no rename; the users of this need neither. Every failure is an OSError whose file name is
the URL.
"""

from __future__ import annotations

import errno
import os
import threading

from trainshed.base import s3
from trainshed.base.secrets import mask_text

from .errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Storage(Protocol):
        """Files below one URL; names are relative to it, with `/` between their parts. All methods raise OSError."""

        url: str

        def names(self, folder: str = "") -> list[str]:
            """The last parts of the names of what lies right below a folder, asked of the storage each time."""

        def put(self, source: str, name: str) -> None:
            """Copies a file of this machine there; it appears whole or not at all where the storage is an object store."""

        def get(self, name: str, target: str) -> None:
            """Copies a file from there to this machine."""

        def read(self, name: str) -> bytes:
            """Returns the content of a small file."""

        def remove(self, name: str) -> None:
            """Deletes a file if it exists."""

        def remove_folder(self, folder: str) -> None:
            """Deletes a folder and everything below it if it exists."""


# Stores without folders: no folder is created before a file is put (s3fs would create a bucket of a misspelled name).
_FLAT = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "r2"})
TRIES = 10  # at deleting a folder that another host deletes as well


def open_storage(url: str) -> Storage:
    """The storage that a URL leads to.

    Raises:
        CheckpointError: what is needed for this kind of storage is not installed.
    """
    if url.startswith(s3.SCHEME):
        try:
            return S3(url)
        except ImportError:
            pass  # without boto3, s3fs serves as well
    return Fsspec(url)


class S3:
    """`s3://bucket/prefix`; endpoint, region and credentials as `base.s3` has them.

    Raises:
        ImportError: boto3 is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.bucket, self.prefix = s3.split_uri(self.url)
        with as_os_errors(self.url):
            self._client = s3.make_client(os.environ)

    def names(self, folder: str = "") -> list[str]:
        start = self._key(folder, "")
        found = []
        with as_os_errors(self._place(folder)):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=start, Delimiter="/")
            for page in pages:
                found += [item["Prefix"][len(start) : -1] for item in page.get("CommonPrefixes", [])]
                found += [item["Key"][len(start) :] for item in page.get("Contents", [])]
        return [name for name in found if name]

    def put(self, source: str, name: str) -> None:
        from boto3.s3.transfer import TransferConfig

        def upload(threads: bool) -> None:
            config = TransferConfig(use_threads=threads)
            self._client.upload_file(source, self.bucket, self._key(name), Config=config)

        with as_os_errors(self._place(name)):
            if threading.main_thread().is_alive():
                try:
                    return upload(True)
                except RuntimeError:  # the script has ended meanwhile: Python starts no more threads
                    if threading.main_thread().is_alive():
                        raise
            upload(False)

    def get(self, name: str, target: str) -> None:
        with as_os_errors(self._place(name)):
            self._client.download_file(self.bucket, self._key(name), target)

    def read(self, name: str) -> bytes:
        with as_os_errors(self._place(name)):
            return self._client.get_object(Bucket=self.bucket, Key=self._key(name))["Body"].read()

    def remove(self, name: str) -> None:
        with as_os_errors(self._place(name)):
            self._client.delete_object(Bucket=self.bucket, Key=self._key(name))

    def remove_folder(self, folder: str) -> None:
        with as_os_errors(self._place(folder)):
            for key in s3.list_keys(self._client, self.bucket, self._key(folder, "")):
                self._client.delete_object(Bucket=self.bucket, Key=key)

    def _key(self, *parts: str) -> str:
        """The key of a name; with "" as the last part, the prefix of all keys below it."""
        given = [part for part in (self.prefix, *parts[:-1]) if part]
        return "/".join([*given, parts[-1]])

    def _place(self, name: str) -> str:
        return f"{self.url}/{name}".rstrip("/")


class Fsspec:
    """A URL of any kind that fsspec knows.

    Raises:
        CheckpointError: fsspec, or its package for this kind of storage, is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = mask_text(url.rstrip("/"))  # for messages: the URL may hold a login
        try:
            import fsspec

            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            extra = "trainshed[s3]" if url.startswith(s3.SCHEME) else "trainshed[fsspec] and the storage's own package"
            raise CheckpointError(f"{self.url}: {error}; install {extra}") from error
        self._root = root.rstrip("/")
        protocols = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
        self._flat = bool(protocols & _FLAT)

    def names(self, folder: str = "") -> list[str]:
        self._fs.invalidate_cache()
        with as_os_errors(self._place(folder)):
            try:
                found = self._fs.ls(self._path(folder), detail=False)
            except FileNotFoundError as error:
                if getattr(error.__cause__, "response", {}).get("Error", {}).get("Code") == "NoSuchBucket":
                    raise
                return []
        return [entry.rstrip("/").rpartition("/")[2] for entry in found]

    def put(self, source: str, name: str) -> None:
        with as_os_errors(self._place(name)):
            if not self._flat:
                self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
            self._fs.put_file(source, self._path(name))

    def get(self, name: str, target: str) -> None:
        with as_os_errors(self._place(name)):
            self._fs.get_file(self._path(name), target)

    def read(self, name: str) -> bytes:
        with as_os_errors(self._place(name)):
            return self._fs.cat_file(self._path(name))

    def remove(self, name: str) -> None:
        with as_os_errors(self._place(name)):
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:  # another host was faster
                pass

    def remove_folder(self, folder: str) -> None:
        with as_os_errors(self._place(folder)):
            for _ in range(TRIES):  # another host may be at it as well
                self._fs.invalidate_cache()
                if not self._fs.exists(self._path(folder)):
                    return
                try:
                    self._fs.rm(self._path(folder), recursive=True)
                except FileNotFoundError:
                    continue

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def _place(self, name: str) -> str:
        return f"{self.url}/{name}".rstrip("/")


class as_os_errors:
    """Within the block, what a storage's package raises becomes an OSError that names the place; ImportError stays."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, ImportError):
            number = getattr(error, "errno", None) or errno.EIO
            said = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
            raise OSError(number, said, self._place) from error
