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
    """Does nothing if `path` has code, as it does under `train`; else copies a folder or a single file there.

    Raises:
        errors.ClientError: `uri` is an archive or lies elsewhere: unpacking is for `train`, before the script.
    """
    from . import errors

    if os.path.isdir(path) and os.listdir(path):
        return
    if os.path.isdir(uri):
        shutil.copytree(uri, path, dirs_exist_ok=True)
    elif os.path.isfile(uri) and not uri.endswith((".tar.gz", ".tgz", ".tar", ".zip")):
        os.makedirs(path, exist_ok=True)
        shutil.copy2(uri, path)
    else:
        raise errors.ClientError(
            f"{uri} is not unpacked here: set the hyperparameter sagemaker_submit_directory to it, so that train unpacks it"
        )
