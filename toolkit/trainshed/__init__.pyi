"""What is loaded late, with its types. Made from the tables of fields: python tests/support/doc_tables.py"""

# ruff: noqa
# fmt: off
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from .checkpoint.in_place import resumable as resumable
from .runner.api import JobFailed as JobFailed
from .runner.api import Training as Training
from .runner.api import find as find
from .runner.api import predict as predict
from .runner.api import runs as runs
from .studio.python_api import Comparison as Comparison
from .studio.python_api import Pipeline as Pipeline
from .studio.python_api import Tuning as Tuning
from .studio.python_api import compare as compare
from .studio.python_api import report as report
from trainshed.runner.job.job import Job as _Job

__version__: str
_Program = str | PathLike[str] | Callable[..., Any]
What = _Program | Mapping[str, Any]

_Channels = TypedDict(
    "_Channels",
    {
        "path": str | PathLike[str] | None,  # a folder, a file, a glob, or an address: s3, gs, rclone, http, https, hf
        "input_mode": Literal["File", "FastFile", "Pipe"] | None,  # how the data reaches the script
        "content_type": str | None,  # MIME type, like text/csv
        "s3_type": Literal["S3Prefix", "ManifestFile", "AugmentedManifestFile"] | None,  # ManifestFile where the path is a manifest of objects, AugmentedManifestFile where it is JSON Lines with attributes of samples
        "attributes": Sequence[str] | None,  # of an augmented manifest: those that are sent, in this order
        "distribution": Literal["FullyReplicated", "ShardedByS3Key"] | None,  # ShardedByS3Key gives each host about 1/n of the files
        "access": Literal["ro", "rw"] | None,  # rw: the folder itself may be written to; ro: containers cannot (the default)
        "compression": Literal["None", "Gzip"] | None,  # Gzip: decompress in Pipe mode
        "record_wrapper": Literal["None", "RecordIO"] | None,  # RecordIO: wrap each file as a record in Pipe mode
        "shuffle_seed": int | None,  # shuffle the files of each epoch in Pipe mode
        "instance_groups": Sequence[str] | None,  # groups whose hosts get it (default: all)
    },
    total=False,
)
_InstanceGroups = TypedDict(
    "_InstanceGroups",
    {
        "instances": int | None,  # number of hosts
        "instance_type": str | None,  # what its hosts are told they are
        "cpus": float | None,  # CPUs of each container of the group; default: as in `resources`
        "memory": str | int | None,  # memory of each container, like 8g of the group; default: as in `resources`
        "gpus": int | Literal["all"] | None,  # GPUs of each host of the group; default: as in `resources`
        "shm_size": str | int | None,  # /dev/shm of each container of the group; default: as in `resources`
    },
    total=False,
)
_Distribution = TypedDict(
    "_Distribution",
    {
        "kind": Literal["script", "torchrun", "horovod", "mpi", "xla", "pipeline", "tensorflow", "jax", "parameter_server", "ray", "pytorchxla", "parallel"] | str | None,  # how ranks are started: script is one process a host
        "processes_per_host": int | None,  # ranks on each host
        "engine": Literal["trainshed", "torchrun", "mpi"] | None,  # what starts the ranks: trainshed (default) or torchrun
        "reduce": Literal["auto", "exact", "bf16", "powersgd", "off"] | None,  # how DistributedDataParallel sends gradients between hosts (docs/data-parallel.md)
        "accelerate": str | None,  # Accelerate's or DeepSpeed's configuration file in the code, for torchrun
        "max_restarts": int | None,  # how often failed ranks are started again, on all hosts together
        "parameters": Mapping[str, Any] | None,  # settings of a pipeline
        "roles": Mapping[str, Any] | None,  # processes of a parameter_server job, like {worker: 4, ps: 2} (docs/parameter-servers.md)
        "servers": Literal["script", "tensorflow"] | None,  # what its parameter servers run: the script (default), or TensorFlow's own server
        "instance_groups": Sequence[str] | None,  # groups that take part; hosts of others run the program once (default: all)
        "smdistributed": Mapping[str, Any] | None,  # Amazon's libraries as SageMaker's estimators take them
        "mpi": Mapping[str, Any] | None,  # MPI's options, beside `smdistributed`
    },
    total=False,
)
_Environment = TypedDict(
    "_Environment",
    {
        "env": str | PathLike[str] | None,  # a variable of the caller
        "file": str | PathLike[str] | None,  # a file on this machine
        "secret": str | PathLike[str] | None,  # a file in /run/secrets
    },
    total=False,
)
_Resources = TypedDict(
    "_Resources",
    {
        "cpus": float | None,  # CPUs of each container
        "memory": str | int | None,  # memory of each container, like 8g
        "gpus": int | Literal["all"] | None,  # GPUs of each host (default: an equal part of all)
        "shm_size": str | int | None,  # /dev/shm of each container (default: 2g, or half of the memory)
    },
    total=False,
)
_Checkpoints = TypedDict(
    "_Checkpoints",
    {
        "folder": str | PathLike[str] | None,  # folder for checkpoints that outlives the run
        "local_path": str | None,  # what the hosts call it, below /opt/ml
        "auto": bool | None,  # make transformers' and Lightning's Trainer use it
        "every": str | None,  # auto: an interval found by measurement (docs/goodput.md); with bounds: auto,least=30s,most=20m
        "memory": Mapping[str, Any] | None,  # copies in the hosts' memory, like {every_steps: 1, copies: 1} (docs/checkpoints.md)
        "copy_to": str | None,  # storage that gets a copy of every checkpoint, like s3://bucket/run
    },
    total=False,
)
_Spot = TypedDict(
    "_Spot",
    {
        "interrupt_after": str | Sequence[str | float] | None,  # interrupt the attempts after so much training: 20s,40s
        "max_wait_seconds": float | None,  # bound on a spot job with all its interruptions
        "price": float | None,  # price of a spot second as a fraction of an on-demand one
    },
    total=False,
)
_Notify = TypedDict(
    "_Notify",
    {
        "kind": Literal["webhook", "slack", "teams", "email", "command"] | None,  # how they are told
        "to": str | None,  # an address without a secret in it, or a command of the shell
        "to_env": str | None,  # the variable of the caller that holds the address, for those that are secrets
        "on": Sequence[str] | None,  # when: start, end, failure, interruption, rule (default: all)
        "template": str | None,  # what is sent, with $title, $text, $name, $event, $state, $reason and so on
        "server": str | None,  # of e-mail: the mail server, like mail.example.com:587 (default: localhost)
        "sender": str | None,  # of e-mail: the address that it comes from
        "login_env": str | None,  # of e-mail: the variable of the caller that holds `user:password`
    },
    total=False,
)
_Compiler = TypedDict(
    "_Compiler",
    {
        "backend": Literal["auto", "inductor", "xla", "neuron", "off"] | None,  # which compiler
        "mode": Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None,  # torch.compile's mode
        "regional": Literal["auto", "on", "off", "true", "false"] | bool | None,  # compile repeated layers once
        "dynamic": Literal["auto", "on", "off", "true", "false"] | bool | None,  # compile for shapes that change
        "cache": Literal["auto", "off", "true", "false"] | bool | None,  # keep compiled code for the next job
    },
    total=False,
)
_Ray = TypedDict(
    "_Ray",
    {
        "address": str | None,  # HOST:PORT of the cluster's head, ray://HOST:PORT of its door for clients, or auto, that of this machine (default: auto)
        "placement": Literal["auto", "strict_spread", "spread", "pack", "strict_pack"] | None,  # a strategy of Ray's placement groups, or auto: a node for each host where there are enough of them (default: auto)
        "resources": Mapping[str, Any] | None,  # what each host needs beside CPUs, GPUs and memory, by Ray's names
        "python": str | None,  # the interpreter that runs the job on the nodes (default: that of Ray's workers)
        "folder": str | None,  # where nodes keep the job while it runs (default: their folder for temporary files)
        "shared": Sequence[str] | None,  # folders that all nodes see under the same path as this machine: channels and checkpoints in them stay there
        "wait_seconds": float | None,  # that the job may wait for resources, 0 for any time (default: 0)
        "autoscaling": bool | None,  # whether the cluster grows when it is asked for more than it has (default: false)
    },
    total=False,
)
_Ssh = TypedDict(
    "_Ssh",
    {
        "python": str | None,  # interpreter there (default: that of the `train` on the PATH, else python3)
        "folder": str | None,  # folder of all runs there; `~` is the user's home there (default: ~/.trainshed)
        "toolkit": Literal["auto", "there", "send"] | None,  # whose trainshed runs there: there (what the interpreter has), send (ours), or auto: what it has if it is of our version, else ours (default: auto)
        "config": str | None,  # a configuration file for ssh instead of the user's
        "addresses": Sequence[str] | None,  # by which the machines reach each other, one for each (default: found out)
        "data": Mapping[str, str | float | bool] | None,  # folders that are there already, by channel; nothing is sent of these
        "patience": float | None,  # seconds that a machine may be out of reach before it counts as lost (default: 1800)
        "engine": Literal["docker", "podman"] | None,  # what runs the job's image there
    },
    total=False,
)
_Kubernetes = TypedDict(
    "_Kubernetes",
    {
        "kubeconfig": str | None,  # a file (default: KUBECONFIG's, then ~/.kube/config, then the service account of the pod that we are in)
        "context": str | None,  # of that file (default: its current one)
        "namespace": str | None,  # of all objects (default: the context's)
        "queue": str | None,  # a LocalQueue of Kueue (default: none)
        "jobset": bool | None,  # whether the job becomes a JobSet (default: false)
        "start_seconds": float | None,  # that pods may be unable to start for a reason that seldom mends itself: an image that cannot be pulled, a volume that cannot be mounted; time in a queue does not count
        "volumes": Mapping[str, Any] | None,  # PersistentVolumeClaims by channel: a name, or `{claim, path}`; `code` for large code
        "output": str | None,  # claim for the model, below the job's name
        "checkpoints": str | None,  # claim for checkpoints (default: the claim of `output`)
        "secrets": Mapping[str, Any] | None,  # variables from Secrets of the cluster: `{NAME: {name: SECRET, key: KEY}}`
        "retries": int | None,  # starts of the whole job beyond the first (default: the job's `retries`; 3 in an export)
        "labels": Mapping[str, str | float | bool] | None,  # labels of all objects
        "annotations": Mapping[str, str | float | bool] | None,  # annotations of the pods
        "pod": Mapping[str, Any] | None,  # anything of a pod's spec: merged with ours, lists of named things by name
        "gpu_resource": str | None,  # the resource that GPUs are (default: nvidia.com/gpu)
    },
    total=False,
)
_Sagemaker = TypedDict(
    "_Sagemaker",
    {
        "role": str | None,  # ARN of the role that runs the job; needed
        "instance_type": str | None,  # type of the hosts; needed
        "output": str | None,  # s3:// address for the model; needed
        "code": str | None,  # s3:// address of the packed code (`--code` packs it)
        "channels": Mapping[str, str | float | bool] | None,  # s3:// addresses by channel
        "checkpoints": str | None,  # s3:// address for checkpoints
        "volume_gb": int | None,  # disk of each host (default: 30)
        "spot": bool | None,  # whether spot capacity is used (default: false)
        "max_wait_seconds": int | None,  # bound on a spot job with its interruptions (default: twice its own time)
        "subnets": Sequence[str] | None,  # of the VPC; with `security_groups`
        "security_groups": Sequence[str] | None,  # of the VPC; with `subnets`
        "tags": Mapping[str, str | float | bool] | None,  # tags of the training job, beside the job's own
        "keep_alive_seconds": int | None,  # how long hosts stay for the next job (default: the job's `keep_alive`)
        "encrypt_traffic": bool | None,  # whether traffic between hosts is encrypted (default: false)
        "network_isolation": bool | None,  # whether hosts reach nothing else (default: false)
    },
    total=False,
)
_Strategy = TypedDict(
    "_Strategy",
    {
        "kind": Literal["grid", "random", "bayesian", "hyperband", "population"] | None,  # how values are chosen
        "sampler": Literal["auto", "tpe", "gp"] | None,  # model of bayesian; gp needs torch and scipy
        "size": int | None,  # of population: members
        "generations": int | None,  # of population: how often members are compared
        "length": str | None,  # of population: the hyperparameter that says how long a job trains
        "interval": int | None,  # of population: what each generation adds to it
        "quantile": float | None,  # of population: the part that is replaced by the best
        "seed": int | None,  # other seeds choose other values
    },
    total=False,
)
_EarlyStopping = TypedDict(
    "_EarlyStopping",
    {
        "kind": Literal["off", "median", "asha"] | None,  # which trials end before they are over
        "min_resource": int | None,  # of asha: where trials are compared first
        "max_resource": int | None,  # of asha: beyond which they are not compared
        "reduction_factor": int | None,  # of asha: one in so many goes on
        "brackets": int | None,  # of asha: how many first resources there are
        "resource": Literal["step", "epoch", "report"] | None,  # what counts
    },
    total=False,
)
_Completion = TypedDict(
    "_Completion",
    {
        "target": float | None,  # an objective that is good enough
        "not_improving": int | None,  # trials in a row without a new best one
    },
    total=False,
)
_WarmStart = TypedDict(
    "_WarmStart",
    {
        "parents": Sequence[str] | None,  # earlier tuning jobs: names or folders
        "type": Literal["identical", "transfer"] | None,  # data and algorithm are the same, or not
    },
    total=False,
)
_Register = TypedDict(
    "_Register",
    {
        "model": str | None,  # name of the model in the store
        "from": str | None,  # step whose model it is
        "stage": Sequence[str] | None,  # stages that then point to this version, such as champion
        "licence": str | None,  # licence of the model, like apache-2.0
        "note": str | None,  # a note
        "metrics": Sequence[str] | None,  # steps whose metrics are kept with it
    },
    total=False,
)
_Steps = TypedDict(
    "_Steps",
    {
        "run": What | None,  # a job file, or the fields of a job
        "tune": str | Mapping[str, Any] | None,  # a tuning file, or the fields of a tuning job
        "condition": str | None,  # a comparison of numbers and texts, such as `${steps.evaluate.metrics.accuracy} >= 0.9`
        "register": _Register | None,  # makes a version in the model store
        "after": str | Sequence[str] | None,  # steps that must be over before it, though it uses nothing of theirs
        "when": str | None,  # name of a condition, or `not NAME`; where it does not hold, the step is skipped
    },
    total=False,
)
def make_job(
    file: What = ...,
    /,
    *,
    name: str | None = ...,  # base of the run's name; the time is added (default: the script's name)
    image: str | None = ...,  # container image; without one the hosts are processes
    program: _Program | None = ...,  # a script, `-m package.module`, or a program that the image has
    source_dir: str | PathLike[str] | None = ...,  # folder or archive with the code (default: the script's folder)
    hyperparameters: Mapping[str, Any] | None = ...,  # what the script gets; numbers keep their spelling
    channels: Mapping[str, str | PathLike[str] | _Channels] | None = ...,  # input data by name: a path each, or a mapping
    from_run: str | None = ...,  # an earlier run, by name or folder, whose model is the channel `model`
    instances: int | None = ...,  # number of hosts (default: 1)
    instance_groups: Mapping[str, int | _InstanceGroups] | None = ...,  # hosts of several kinds, instead of `instances`: how many by group, or a mapping
    hosts: Sequence[str] | None = ...,  # machines for `--on ssh`, one a host: user@machine, user@machine:port
    distribution: Literal["script", "torchrun", "horovod", "mpi", "xla", "pipeline", "tensorflow", "jax", "parameter_server", "ray", "pytorchxla", "parallel"] | str | _Distribution | None = ...,  # how ranks are started on the hosts
    environment: Mapping[str, str | float | bool | _Environment] | None = ...,  # variables: text, or a secret by reference
    output: str | PathLike[str] | None = ...,  # folder of this run (default: runs/NAME-TIME), or s3:// for archives
    max_runtime_seconds: float | None = ...,  # stop the job after so long
    keep_alive: str | float | None = ...,  # keep packages and data so long for the next run: 10m (docs/warm.md)
    host_price: float | None = ...,  # what an hour of a host costs, in any currency: lost time is told in it (docs/goodput.md)
    grace_seconds: float | None = ...,  # time from a stop signal to SIGKILL (default: 110)
    metric_definitions: Mapping[str, str | float | bool] | Sequence[Mapping[str, str]] | None = ...,  # metrics to read from the log: regular expressions by name
    profile: Literal["auto", "off"] | None = ...,  # measure where the time of each step goes (docs/profiler.md)
    fingerprint: Literal["sampled", "whole", "off"] | None = ...,  # what of each channel's data the run record keeps (docs/data.md)
    resources: _Resources | None = ...,  # what each host may use
    checkpoints: str | PathLike[str] | _Checkpoints | None = ...,  # the checkpoint folder, kept from run to run
    argv: Literal["sagemaker", "json", "flags"] | None = ...,  # how hyperparameters reach the script: sagemaker, json or flags
    rules: str | None = ...,  # what watches the training: metrics, all, or names of rules (docs/rules.md)
    spot: bool | _Spot | None = ...,  # spot capacity, simulated
    retries: int | None = ...,  # start a failed job again so often, with its checkpoints
    entrypoint: Sequence[str] | None = ...,  # command of the containers, instead of `train`
    arguments: Sequence[str] | None = ...,  # arguments of the containers' command
    network_isolation: bool | None = ...,  # containers reach each other and nothing else
    tags: Mapping[str, str | float | bool] | Sequence[Mapping[str, str]] | None = ...,  # texts kept with the run and shown by `trainshed status`
    notify: Mapping[str, str | _Notify] | None = ...,  # who is told how the run stands: an address by name, or a mapping (docs/notify.md)
    compiler: Literal["auto", "inductor", "xla", "neuron", "off"] | _Compiler | None = ...,  # compile the training steps: a backend, or a mapping
    slurm: Mapping[str, Any] | None = ...,  # options for `--on slurm`
    ray: _Ray | None = ...,  # options for `--on ray`
    ssh: _Ssh | None = ...,  # options for `--on ssh`
    kubernetes: _Kubernetes | None = ...,  # options for `--on kubernetes` and `trainshed export kubernetes`
    sagemaker: _Sagemaker | None = ...,  # options for `trainshed export sagemaker`
) -> _Job: ...
def run(
    file: What | _Job = ...,
    /,
    *,
    on: str = ...,
    wait: bool = ...,
    echo: bool = ...,
    check: bool = ...,
    name: str | None = ...,  # base of the run's name; the time is added (default: the script's name)
    image: str | None = ...,  # container image; without one the hosts are processes
    program: _Program | None = ...,  # a script, `-m package.module`, or a program that the image has
    source_dir: str | PathLike[str] | None = ...,  # folder or archive with the code (default: the script's folder)
    hyperparameters: Mapping[str, Any] | None = ...,  # what the script gets; numbers keep their spelling
    channels: Mapping[str, str | PathLike[str] | _Channels] | None = ...,  # input data by name: a path each, or a mapping
    from_run: str | None = ...,  # an earlier run, by name or folder, whose model is the channel `model`
    instances: int | None = ...,  # number of hosts (default: 1)
    instance_groups: Mapping[str, int | _InstanceGroups] | None = ...,  # hosts of several kinds, instead of `instances`: how many by group, or a mapping
    hosts: Sequence[str] | None = ...,  # machines for `--on ssh`, one a host: user@machine, user@machine:port
    distribution: Literal["script", "torchrun", "horovod", "mpi", "xla", "pipeline", "tensorflow", "jax", "parameter_server", "ray", "pytorchxla", "parallel"] | str | _Distribution | None = ...,  # how ranks are started on the hosts
    environment: Mapping[str, str | float | bool | _Environment] | None = ...,  # variables: text, or a secret by reference
    output: str | PathLike[str] | None = ...,  # folder of this run (default: runs/NAME-TIME), or s3:// for archives
    max_runtime_seconds: float | None = ...,  # stop the job after so long
    keep_alive: str | float | None = ...,  # keep packages and data so long for the next run: 10m (docs/warm.md)
    host_price: float | None = ...,  # what an hour of a host costs, in any currency: lost time is told in it (docs/goodput.md)
    grace_seconds: float | None = ...,  # time from a stop signal to SIGKILL (default: 110)
    metric_definitions: Mapping[str, str | float | bool] | Sequence[Mapping[str, str]] | None = ...,  # metrics to read from the log: regular expressions by name
    profile: Literal["auto", "off"] | None = ...,  # measure where the time of each step goes (docs/profiler.md)
    fingerprint: Literal["sampled", "whole", "off"] | None = ...,  # what of each channel's data the run record keeps (docs/data.md)
    resources: _Resources | None = ...,  # what each host may use
    checkpoints: str | PathLike[str] | _Checkpoints | None = ...,  # the checkpoint folder, kept from run to run
    argv: Literal["sagemaker", "json", "flags"] | None = ...,  # how hyperparameters reach the script: sagemaker, json or flags
    rules: str | None = ...,  # what watches the training: metrics, all, or names of rules (docs/rules.md)
    spot: bool | _Spot | None = ...,  # spot capacity, simulated
    retries: int | None = ...,  # start a failed job again so often, with its checkpoints
    entrypoint: Sequence[str] | None = ...,  # command of the containers, instead of `train`
    arguments: Sequence[str] | None = ...,  # arguments of the containers' command
    network_isolation: bool | None = ...,  # containers reach each other and nothing else
    tags: Mapping[str, str | float | bool] | Sequence[Mapping[str, str]] | None = ...,  # texts kept with the run and shown by `trainshed status`
    notify: Mapping[str, str | _Notify] | None = ...,  # who is told how the run stands: an address by name, or a mapping (docs/notify.md)
    compiler: Literal["auto", "inductor", "xla", "neuron", "off"] | _Compiler | None = ...,  # compile the training steps: a backend, or a mapping
    slurm: Mapping[str, Any] | None = ...,  # options for `--on slurm`
    ray: _Ray | None = ...,  # options for `--on ray`
    ssh: _Ssh | None = ...,  # options for `--on ssh`
    kubernetes: _Kubernetes | None = ...,  # options for `--on kubernetes` and `trainshed export kubernetes`
    sagemaker: _Sagemaker | None = ...,  # options for `trainshed export sagemaker`
) -> Training: ...
def tune(
    file: str | PathLike[str] | Mapping[str, Any] = ...,
    /,
    *,
    job: What = ...,
    wait: bool = ...,
    echo: bool = ...,
    check: bool = ...,
    name: str | None = ...,  # name of the tuning job and its folder (default: the file's)
    on: Literal["here", "slurm"] | None = ...,  # where trials run
    search: Mapping[str, Any] | str | None = ...,  # ranges of hyperparameters by name, or lists of values
    objective: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = ...,  # `minimize METRIC` or `maximize METRIC`, a mapping, or a list of them
    strategy: Literal["grid", "random", "bayesian", "hyperband", "population"] | _Strategy | None = ...,  # how values are chosen
    max_jobs: int | None = ...,  # trials
    max_parallel_jobs: int | None = ...,  # trials beside each other
    max_runtime_seconds: float | None = ...,  # time in which trials run
    max_billable_seconds: float | None = ...,  # time of all trials together, times hosts
    max_failed_jobs: int | None = ...,  # failures after which it is given up, if nothing succeeds
    early_stopping: Literal["off", "median", "asha"] | _EarlyStopping | None = ...,  # which trials end before they are over
    completion: _Completion | None = ...,  # when it is good enough
    warm_start: Sequence[str] | _WarmStart | None = ...,  # earlier tuning jobs whose trials are known
    notify: Mapping[str, str | _Notify] | None = ...,  # who is told how the run stands: an address by name, or a mapping (docs/notify.md)
) -> Tuning: ...
def steps(
    file: str | PathLike[str] | Mapping[str, Any] = ...,
    /,
    *,
    params: Mapping[str, Any] | None = ...,
    from_step: str = ...,
    no_cache: bool = ...,
    wait: bool = ...,
    echo: bool = ...,
    check: bool = ...,
    name: str | None = ...,  # name of the pipeline and its folder (default: the file's)
    max_parallel: int | None = ...,  # runs beside each other (default: 1)
    steps: Mapping[str, _Steps] | None = ...,  # steps by name: each has one of run, tune, condition, register
) -> Pipeline: ...
