"""Downloads source code from S3 through boto3, which the image or the extra `s3` installs."""

from __future__ import annotations

import os

from trainshed.base.errors import ProgramError, shorten
from trainshed.base.secrets import mask_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def download(uri: str, folder: str, environ: Mapping[str, str], say: Callable[[str], None]) -> str:
    """Downloads one object into `folder`, or all objects below a prefix that ends in `/`; returns the file or folder.

    The endpoint is that of S3_ENDPOINT_URL (SDK v3) or AWS_ENDPOINT_URL_S3 (SDK v2; boto3 itself reads it).

    Raises:
        ProgramError: boto3 is missing, or S3 refuses.
    """
    bucket, _, key = uri[len("s3://") :].partition("/")
    if not bucket or not key:
        raise ProgramError(
            f"{uri} is not a valid S3 URI", hint="it must look like s3://bucket/key.tar.gz or s3://bucket/prefix/"
        )
    try:
        import boto3
    except ImportError:
        raise ProgramError(
            f"{uri} cannot be fetched: boto3 is not installed", hint="pip install 'trainshed[s3]' in the image"
        ) from None
    say(f"downloading {uri}")
    try:
        client = boto3.client(
            "s3",
            endpoint_url=environ.get("S3_ENDPOINT_URL") or None,
            region_name=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None,
        )
        if not key.endswith("/"):
            target = f"{folder}/{os.path.basename(key)}"
            client.download_file(bucket, key, target)
            return target
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
        names = [item["Key"] for page in pages for item in page.get("Contents", []) if not item["Key"].endswith("/")]
        if not names:
            raise ProgramError(f"{uri}: no objects under this prefix")
        for name in names:
            target = os.path.normpath(f"{folder}/{name[len(key) :]}")
            if not target.startswith(folder + "/"):
                raise ProgramError(f"{uri}: the object {shorten(name)} would be written outside the code folder")
            os.makedirs(os.path.dirname(target), exist_ok=True)
            client.download_file(bucket, name, target)
        return folder
    except ProgramError:
        raise
    except Exception as error:  # botocore's many errors have no common base worth naming
        raise ProgramError(
            f"{uri} cannot be fetched: {mask_text(shorten(str(error), 300))}",
            hint="check the URI, the job's credentials and region, and the endpoint (AWS_ENDPOINT_URL_S3)",
        ) from None
