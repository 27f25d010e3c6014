"""Downloads source code from S3."""

from __future__ import annotations

import os

from trainshed.base import s3
from trainshed.base.errors import ProgramError, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def download(uri: str, folder: str, environ: Mapping[str, str], say: Callable[[str], None]) -> str:
    """Downloads one object into `folder`, or all objects below a prefix that ends in `/`; returns the file or folder.

    Raises:
        ProgramError: boto3 is missing, or S3 refuses.
    """
    bucket, key = s3.split_uri(uri)
    if not bucket or not key:
        raise ProgramError(
            f"{uri} is not a valid S3 URI",
            hint="it must look like s3://bucket/key.tar.gz or s3://bucket/prefix/",
        )
    say(f"downloading {uri}")
    try:
        client = s3.make_client(environ)
        if not key.endswith("/"):
            target = f"{folder}/{os.path.basename(key)}"
            client.download_file(bucket, key, target)
            return target
        names = [name for name in s3.list_keys(client, bucket, key) if not name.endswith("/")]
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
    except ImportError:
        raise ProgramError(f"{uri} cannot be fetched: {s3.NOT_INSTALLED}", hint=f"{s3.INSTALL} in the image") from None
    except Exception as error:
        raise ProgramError(f"{uri} cannot be fetched: {s3.explain(error)}", hint=s3.CHECK) from None
