"""Small helpers for files, and the two files that report how a job ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from trainshed.base import s3

from . import environment


def write_success_file() -> None:
    """Writes the success file, which `train` also does at the end."""
    write_file(os.path.join(environment.output_dir, "success"), "")


def write_failure_file(failure_msg: str) -> None:
    """Writes the script's own reason for failing, which `train` then puts first; keeps an earlier one."""
    path = os.path.join(environment.output_dir, "failure")
    if not os.path.exists(path):
        write_file(path, failure_msg)


@contextlib.contextmanager
def tmpdir(suffix: str = "", prefix: str = "tmp", directory: str | None = None) -> Iterator[str]:
    """A temporary folder, removed after the block."""
    folder = tempfile.mkdtemp(suffix=suffix, prefix=prefix, dir=directory)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_file(path: str, data: Any, mode: str = "w") -> None:
    """Writes `data`."""
    with open(path, mode) as file:
        file.write(data)


def read_file(path: str, mode: str = "r") -> Any:
    """The content of a file."""
    with open(path, mode) as file:
        return file.read()


def read_json(path: str) -> Any:
    """A JSON file's value."""
    with open(path) as file:
        return json.load(file)


def s3_download(url: str, dst: str) -> None:
    """Downloads one object.

    Raises:
        ValueError: `url` is not an S3 URI.
        ImportError: boto3 is not installed.
    """
    if not url.startswith(s3.SCHEME):
        raise ValueError(f"Expecting 's3' scheme, got: {url}")
    bucket, key = s3.split_uri(url)
    s3.make_client(os.environ).download_file(bucket, key, dst)


def download_and_extract(uri: str, path: str) -> None:
    """Does nothing if `path` has code, as it does under `train`; else brings a folder, a file or an archive's content.

    Args:
        uri: a folder, a file, an archive, or an archive's address on S3.

    Raises:
        errors.ClientError: it is an address of another kind, or its archive cannot be unpacked.
        ImportError: boto3 is not installed.
    """
    from trainshed.base.archive import unpack
    from trainshed.base.errors import ProgramError

    from . import errors

    os.makedirs(path, exist_ok=True)
    if os.listdir(path):
        return
    try:
        if uri.startswith(s3.SCHEME):
            with tmpdir() as folder:
                s3_download(uri, f"{folder}/source")
                unpack(f"{folder}/source", path)
        elif os.path.isdir(uri):
            shutil.copytree(uri, path, dirs_exist_ok=True)
        elif not os.path.exists(uri):
            raise errors.ClientError(f"{uri} is neither a folder nor a file nor an address on S3")
        elif uri.endswith((".tar.gz", ".tgz", ".tar", ".zip")):
            unpack(uri, path)
        else:
            shutil.copy2(uri, path)
    except ProgramError as error:
        raise errors.ClientError(error.message) from error
