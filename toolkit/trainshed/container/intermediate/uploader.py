"""The process that uploads: `python -m trainshed.container.intermediate.uploader FOLDER s3://BUCKET/PREFIX/`.

It uploads a file when that has been closed, once more when it changes, and everything that is left when its standard input
ends, which is how `train` says that the job is over. A line on standard output says that it watches.
"""

from __future__ import annotations

import os
import sys

from trainshed.base.errors import shorten
from trainshed.base.secrets import mask_text

from ..console import say
from .inotify import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Put = Callable[[str, str, str], None]  # path, bucket, key


class Uploader:
    """What has been uploaded of a folder, and in which state."""

    def __init__(self, folder: str, uri: str, put: Put, say: Callable[[str], None]) -> None:
        self.folder, self.put, self.say = folder, put, say
        self.bucket, _, self.prefix = uri[len("s3://") :].partition("/")
        self.done: dict[str, tuple[int, int, int]] = {}  # path -> what it was like when it was uploaded

    def upload(self, path: str, again: bool = False) -> bool:
        """Uploads a file unless it is there already as it is; False where that failed, which is said.

        Args:
            again: whether this is the last attempt, so that failing is final.
        """
        try:
            status = os.stat(path)
        except OSError:  # gone already
            return True
        state = (status.st_mtime_ns, status.st_size, status.st_ino)
        if self.done.get(path) == state:
            return True
        try:
            self.put(path, self.bucket, self.prefix + os.path.relpath(path, self.folder))
        except Exception as error:  # S3's many errors have no common base worth naming
            if os.path.exists(path):
                later = "" if again else "; tried again at the end"
                reason = mask_text(shorten(str(error), 300))
                self.say(f"intermediate output: {path} cannot be uploaded{later}: {reason}")
            return False
        self.done[path] = state
        return True

    def rest(self) -> None:
        """Everything that is not there yet, or has changed."""
        for folder, _, names in os.walk(self.folder):
            for name in sorted(names):
                self.upload(f"{folder}/{name}", again=True)


def s3(environ: dict[str, str]) -> Put:
    """Puts a file into a bucket. The endpoint is S3_ENDPOINT_URL's, else what boto3 finds.

    Raises:
        ImportError: boto3 is not installed.
    """
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=environ.get("S3_ENDPOINT_URL") or None,
        region_name=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None,
    )
    return lambda path, bucket, key: client.upload_file(path, bucket, key)


def main(folder: str, uri: str) -> int:
    """Watches and uploads until standard input ends; 1 where nothing can be uploaded at all."""
    try:
        watch = Watch(folder)
        print("watching", flush=True)
        uploader = Uploader(folder, uri, s3(dict(os.environ)), say)
    except ImportError:
        say("warning: intermediate output stays in this container: boto3 is not installed (pip install 'trainshed[s3]')")
        return 1
    except Exception as error:
        say(f"warning: intermediate output stays in this container: {mask_text(shorten(str(error), 300))}")
        return 1
    over = False
    while not over:
        over = watch.wait(0)
        for path in watch.take():
            uploader.upload(path)
    uploader.rest()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
