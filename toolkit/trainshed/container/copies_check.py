"""Checks whether the storage for copies of checkpoints takes them, before the ranks start and not after hours."""

from __future__ import annotations

from trainshed.base import s3
from trainshed.base.errors import TrainshedError
from trainshed.base.secrets import mask_text
from trainshed.contract.outcome import writable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER = "file://"


def check_copies(url: str, environ: Mapping[str, str]) -> None:
    """Nothing is left there. Only S3, where boto3 is installed, and folders are asked.

    Args:
        url: the job's `checkpoint_copy_to`, "" for none.

    Raises:
        TrainshedError: copies would be refused.
    """
    if url.startswith(s3.SCHEME):
        _check_bucket(url, environ)
    elif url.startswith(_FOLDER) and not writable(url.removeprefix(_FOLDER)):
        raise TrainshedError(
            f"checkpoint_copy_to: {mask_text(url)} cannot be written", hint="mount it writable, or name another folder"
        )


def _check_bucket(url: str, environ: Mapping[str, str]) -> None:
    try:
        bucket, prefix = s3.split_uri(url.rstrip("/"))
        s3.check_writable(s3.make_client(environ), bucket, f"{prefix}/checked".lstrip("/"))
    except ImportError:  # the ranks may have another package for it, and tell what they miss
        pass
    except Exception as error:  # boto3's have no common base
        message = f"checkpoint_copy_to: no copy can be put to {mask_text(url)}: {s3.explain(error)}"
        raise TrainshedError(message, hint=s3.CHECK) from error
