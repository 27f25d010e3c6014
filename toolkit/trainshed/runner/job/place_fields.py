"""The tables of what a job says of its place: the mappings `slurm`, `ssh`, `ray`, `kubernetes` and `sagemaker`."""

from __future__ import annotations

from .field import DAY, Field

_MONTH = 28 * DAY
SLURM_FIELDS = (
    Field("runtime", "choice", "what starts the image on the nodes: pyxis (enroot) through srun, apptainer (or "
          "singularity), none, or the first of these that is there (default: auto); every other name is an option "
          "of sbatch by its long name, like partition: gpu, or true for one without a value",
          choices=("auto", "pyxis", "apptainer", "none")),
)  # fmt: skip
SSH_FIELDS = (
    Field("python", "text", "interpreter there (default: that of the `train` on the PATH, else python3)"),
    Field("folder", "text", "folder of all runs there; `~` is the user's home there (default: ~/.trainshed)"),
    Field("toolkit", "choice", "whose trainshed runs there: there (what the interpreter has), send (ours), or auto: "
          "what it has if it is of our version, else ours (default: auto)", choices=("auto", "there", "send")),
    Field("config", "text", "a configuration file for ssh instead of the user's"),
    Field("addresses", "words", "by which the machines reach each other, one for each (default: found out)"),
    Field("data", "mapping", "folders that are there already, by channel; nothing is sent of these", of="text"),
    Field("patience", "number", "seconds that a machine may be out of reach before it counts as lost (default: 1800)",
          low=1, high=_MONTH),
    Field("engine", "choice", "what runs the job's image there", choices=("docker", "podman")),
)  # fmt: skip
RAY_FIELDS = (
    Field("address", "text", "HOST:PORT of the cluster's head, ray://HOST:PORT of its door for clients, or auto, that "
          "of this machine (default: auto)"),
    Field("placement", "choice", "a strategy of Ray's placement groups, or auto: a node for each host where there are "
          "enough of them (default: auto)", choices=("auto", "strict_spread", "spread", "pack", "strict_pack")),
    Field("resources", "mapping", "what each host needs beside CPUs, GPUs and memory, by Ray's names"),
    Field("python", "text", "the interpreter that runs the job on the nodes (default: that of Ray's workers)"),
    Field("folder", "text", "where nodes keep the job while it runs (default: their folder for temporary files)"),
    Field("shared", "words", "folders that all nodes see under the same path as this machine: channels and checkpoints "
          "in them stay there"),
    Field("wait_seconds", "number", "that the job may wait for resources, 0 for any time (default: 0)", high=1e12),
    Field("autoscaling", "switch", "whether the cluster grows when it is asked for more than it has (default: false)"),
)  # fmt: skip
KUBERNETES_FIELDS = (
    Field("kubeconfig", "text", "a file (default: KUBECONFIG's, then ~/.kube/config, then the service account of the "
          "pod that we are in)"),
    Field("context", "text", "of that file (default: its current one)"),
    Field("namespace", "text", "of all objects (default: the context's)"),
    Field("queue", "text", "a LocalQueue of Kueue (default: none)"),
    Field("jobset", "switch", "whether the job becomes a JobSet (default: false)"),
    Field("start_seconds", "number", "that pods may be unable to start for a reason that seldom mends itself: an image "
          "that cannot be pulled, a volume that cannot be mounted; time in a queue does not count",
          low=1, high=_MONTH),
    Field("volumes", "mapping", "PersistentVolumeClaims by channel: a name, or `{claim, path}`; `code` for large code"),
    Field("output", "text", "claim for the model, below the job's name"),
    Field("checkpoints", "text", "claim for checkpoints (default: the claim of `output`)"),
    Field("secrets", "mapping", "variables from Secrets of the cluster: `{NAME: {name: SECRET, key: KEY}}`"),
    Field("retries", "whole", "starts of the whole job beyond the first (default: the job's `retries`; 3 in an export)",
          low=0, high=1000),
    Field("labels", "mapping", "labels of all objects", of="text"),
    Field("annotations", "mapping", "annotations of the pods", of="text"),
    Field("pod", "mapping", "anything of a pod's spec: merged with ours, lists of named things by name"),
    Field("gpu_resource", "text", "the resource that GPUs are (default: nvidia.com/gpu)"),
)  # fmt: skip
SAGEMAKER_FIELDS = (
    Field("role", "text", "ARN of the role that runs the job; needed"),
    Field("instance_type", "text", "type of the hosts; needed"),
    Field("output", "text", "s3:// address for the model; needed"),
    Field("code", "text", "s3:// address of the packed code (`--code` packs it)"),
    Field("channels", "mapping", "s3:// addresses by channel", of="text"),
    Field("checkpoints", "text", "s3:// address for checkpoints"),
    Field("volume_gb", "whole", "disk of each host (default: 30)", low=1, high=16_384),
    Field("spot", "switch", "whether spot capacity is used (default: false)"),
    Field("max_wait_seconds", "whole", "bound on a spot job with its interruptions (default: twice its own time)",
          low=1, high=_MONTH),
    Field("subnets", "words", "of the VPC; with `security_groups`"),
    Field("security_groups", "words", "of the VPC; with `subnets`"),
    Field("tags", "mapping", "tags of the training job, beside the job's own", of="text"),
    Field("keep_alive_seconds", "whole", "how long hosts stay for the next job (default: the job's `keep_alive`)",
          low=0, high=21_600),
    Field("encrypt_traffic", "switch", "whether traffic between hosts is encrypted (default: false)"),
    Field("network_isolation", "switch", "whether hosts reach nothing else (default: false)"),
)  # fmt: skip
