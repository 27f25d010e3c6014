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


def make_client(environ: Mapping[str, str]) -> Any:
    """A boto3 client for S3.

    Args:
        environ: the variables that name endpoint and region.

    Raises:
        ImportError: boto3 is not installed.
        Exception: boto3 refuses what it is configured with; `explain` puts it into words.
    """
    import boto3

    return boto3.client("s3", endpoint_url=_first(environ, _ENDPOINTS), region_name=_first(environ, _REGIONS))


def list_keys(client: Any, bucket: str, prefix: str) -> list[str]:
    """The keys of all objects whose key starts with `prefix`. Raises boto3's errors."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [item["Key"] for page in pages for item in page.get("Contents", [])]


def explain(error: BaseException) -> str:
    """What boto3 says went wrong, on one line, without logins; its many errors have no common base worth naming."""
    return mask_text(shorten(str(error) or type(error).__name__, 300))


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)
