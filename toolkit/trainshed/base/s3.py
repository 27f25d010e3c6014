"""S3 through boto3, which the user or the extra `trainshed[s3]` installs: imported only where a client is made.

One rule for all callers. The endpoint is that of S3_ENDPOINT_URL (SageMaker's SDK v3 sets it), else AWS's own variables
AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL, else what boto3 finds in its configuration. The region is that of AWS_REGION,
AWS_DEFAULT_REGION or SAGEMAKER_REGION, else boto3's. Credentials are boto3's.
"""

from __future__ import annotations

from .errors import shorten
from .secrets import mask_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SCHEME = "s3://"
NOT_INSTALLED = "boto3 is not installed"
PART_BYTES = 64 << 20  # of an upload
MOST_PARTS = 10_000  # of an object, says S3
INSTALL = "pip install 'trainshed[s3]'"
CHECK = "check the URI, the credentials and region, and the endpoint (AWS_ENDPOINT_URL_S3)"
_ENDPOINTS = ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION", "SAGEMAKER_REGION")


def split_uri(uri: str) -> tuple[str, str]:
    """Bucket and key of `s3://bucket/key`; either may be empty.

    Raises:
        ValueError: it is not an S3 URI.
    """
    if not uri.startswith(SCHEME):
        raise ValueError(f"{uri!r} is not an S3 URI: it must start with {SCHEME}")
    bucket, _, key = uri.removeprefix(SCHEME).partition("/")
    return bucket, key


def make_client(environ: Mapping[str, str], **options: Any) -> Any:
    """A boto3 client for S3.

    Args:
        environ: the variables that name endpoint and region.
        options: fields of botocore's `Config`, where its own are not to hold.

    Raises:
        ImportError: boto3 is not installed.
        Exception: boto3 refuses what it is configured with; `explain` puts it into words.
    """
    import boto3

    places: dict[str, Any] = {"endpoint_url": _first(environ, _ENDPOINTS), "region_name": _first(environ, _REGIONS)}
    if options:
        from botocore.config import Config

        places["config"] = Config(**options)
    return boto3.client("s3", **places)


def list_keys(client: Any, bucket: str, prefix: str) -> list[str]:
    """The keys of all objects whose key starts with `prefix`. Raises boto3's errors."""
    return [key for key, _, _ in list_objects(client, bucket, prefix)]


def list_objects(client: Any, bucket: str, prefix: str) -> list[tuple[str, int, str]]:
    """(key, bytes, ETag without quotes) of all objects whose key starts with `prefix`. Raises boto3's errors."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    items = [item for page in pages for item in page.get("Contents", [])]
    return [(item["Key"], item.get("Size", -1), item.get("ETag", "").strip('"')) for item in items]


def upload_verified(client: Any, path: str, bucket: str, key: str, sha256: str = "") -> str:
    """Uploads a file and compares size and checksum of the object that has arrived.

    S3 compares SHA-256 on arrival, part by part, and keeps it. A storage that speaks S3's language without its
    checksums is read back instead.

    Args:
        sha256: hexadecimal, kept as the object's metadata where it is known.

    Returns:
        What is wrong with the object, "" if it is the file.

    Raises:
        OSError: the file cannot be read.
        Exception: boto3's.
    """
    import os

    from boto3.s3.transfer import TransferConfig

    extra: dict[str, Any] = {"ChecksumAlgorithm": "SHA256"}
    if sha256:
        extra["Metadata"] = {"sha256": sha256}
    before = os.stat(path)
    part = max(PART_BYTES, -(-before.st_size // MOST_PARTS))
    config = TransferConfig(multipart_threshold=part, multipart_chunksize=part)
    client.upload_file(path, bucket, key, ExtraArgs=extra, Config=config)
    there = client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    after = os.stat(path)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        return "the file changed while it was uploaded"
    if there["ContentLength"] != after.st_size:
        return f"{there['ContentLength']} of {after.st_size} bytes arrived"
    kept = there.get("ChecksumSHA256", "").partition("-")[0]  # the number of parts follows
    with open(path, "rb") as file:
        if kept:
            same = kept == (_checksum_in_parts(file, part) if after.st_size >= part else _checksum(file.read))
        else:
            body = client.get_object(Bucket=bucket, Key=key)["Body"]
            same = _checksum(body.read) == _checksum(file.read)
    return "" if same else "what arrived has another checksum than the file"


def _checksum(read: Any) -> str:
    """SHA-256 in base64, as S3 writes it, of all that `read(count)` returns."""
    import base64
    import hashlib

    found = hashlib.sha256()
    while block := read(1 << 20):
        found.update(block)
    return base64.b64encode(found.digest()).decode()


def _checksum_in_parts(file: Any, size: int) -> str:
    """S3's checksum of checksums, in base64, for an object that came in parts of `size` bytes.

    Source: "Checking object integrity" in the user guide of Amazon S3, composite checksums.
    """
    import base64
    import hashlib

    found = hashlib.sha256()
    while first := file.read(1 << 20):
        part, left = hashlib.sha256(first), size - len(first)
        while left and (block := file.read(min(left, 1 << 20))):
            part.update(block)
            left -= len(block)
        found.update(part.digest())
    return base64.b64encode(found.digest()).decode()


def check_writable(client: Any, bucket: str, key: str) -> None:
    """Begins an upload and breaks it off: nothing is left, and what forbids uploads is known early.

    A storage without uploads in parts is not asked.

    Raises:
        Exception: boto3's.
    """
    try:
        begun = client.create_multipart_upload(Bucket=bucket, Key=key)
    except Exception as error:
        response = getattr(error, "response", None) or {}
        if response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (405, 501):
            return
        raise
    try:
        client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=begun["UploadId"])
    except Exception:  # nobody sees an upload without parts; a right that is missing here is needed nowhere else
        pass


def explain(error: BaseException) -> str:
    """Says what boto3 says went wrong, on one line, without logins; its many errors have no common base worth naming."""
    return mask_text(shorten(str(error) or type(error).__name__, 300))


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)
