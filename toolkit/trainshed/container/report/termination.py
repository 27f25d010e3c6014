"""The message that Kubernetes keeps of an ended container: `kubectl describe pod` and who follows the job read it.

Source: "Determine the Reason for Pod Failure" in Kubernetes' documentation: the file that the kubelet mounts at
`terminationMessagePath`, of at most 4,096 bytes.
"""

from __future__ import annotations

import os

from trainshed.contract.outcome import clip

PATH = "/dev/termination-log"
MOST_BYTES = 4096


def leave(text: str, path: str = PATH) -> None:
    """Writes the beginning of a failure's text there, in a pod; never raises. The file is a mount: it cannot be replaced."""
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)  # never made: without a kubelet there is nobody to read it
    except OSError:
        return
    try:
        os.write(fd, clip(text, MOST_BYTES).encode("utf-8", "replace"))
    except OSError:
        pass
    finally:
        os.close(fd)
