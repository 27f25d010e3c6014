"""The job's key: what only the hosts of one job know, and by which they prove that they belong together."""

from __future__ import annotations

import hashlib
import hmac
import json

from trainshed.contract.wire.variables import ROSTER_TOKEN

from .authentication import DIGEST_BYTES, JobKey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainshed.contract.cluster import Cluster
    from trainshed.contract.job import TrainingJob


def job_key(job: TrainingJob, cluster: Cluster, environ: Mapping[str, str], purpose: str = "") -> JobKey:
    """The key of a job's hosts.

    With the variable ROSTER_TOKEN the secret is made of it alone. Without it, of all that hosts have in common: the job's
    name, ARN, program, hosts and hyperparameters; whoever knows all of these knows the key.

    Args:
        purpose: tells keys of one job apart that are used for different things.
    """
    parts = [
        [job.name],
        list(cluster.hosts),
        [job.program],
        sorted((key, str(value)) for key, value in job.hyperparameters.user.items()),
    ]
    texts = [json.dumps(part).encode() for part in parts]
    token = environ.get(ROSTER_TOKEN, "")
    shared = [token.encode("utf-8", "surrogateescape")] if token else [environ.get("TRAINING_JOB_ARN", "").encode(), *texts]
    hashes = [hashlib.sha256(text).digest() for text in (purpose.encode(), *shared)]
    secret = hashlib.sha256(b"trainshed roster" + b"".join(hashes)).digest()
    digests = b"".join(hmac.digest(secret, text, "sha256")[:DIGEST_BYTES] for text in texts)
    return JobKey(secret, digests, named=bool(token))
