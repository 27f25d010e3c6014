"""The table of job-file fields: one row a field.

Made from it: the checker (checker.py, read.py), the JSON schema (schema_json.py), the flags of
`trainshed run` (flags.py), the translation of CreateTrainingJob requests (request.py), the job file
that `trainshed clone` writes (write.py), the settings handed to `train` (files/platform_files.py) and
the table in docs/reference/job.md (tests/support/reference_job.py).

To add a field:

1. Add its row to `FIELDS`, and an attribute with the same name and default to `Job` (job.py).
2. Where the kind does not say it all, add a function to `MEANINGS` (meanings.py).
3. Use the attribute where the field takes effect. With `setting`, `train` gets it as that setting.
4. Add a test for the effect; the tests of the table cover schema, flag, clone and request.
5. Run `python tests/support/doc_tables.py`.
"""

from __future__ import annotations

from trainshed.contract.distributions import DEFAULT, OTHERS, TRAITS, WORDS, added
from trainshed.contract.hyperparameters import ARGV_STYLES
from trainshed.contract.settings import ENGINES, FINGERPRINTS, REDUCTIONS, SERVERS
from trainshed.contract.wire import compile_plan
from trainshed.contract.wire.checkpoint_every import FORM as EVERY_FORM

from .field import DAY, Field
from .job import DEFAULT_GRACE
from .places import BUILT_IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LONGEST_RUNTIME = 28 * DAY  # the platform's limit
_SWITCH = (*compile_plan.SWITCHES, "true", "false")
LONGEST_NAME = 39  # the platform takes 63; the time needs 24
MOST_GROUPS = 5  # the platform's limit
MOST_RANKS = 4096  # on one host
MOST_MACHINES = 512  # as many as a job has hosts at most
LOCATED = ("program", "source_dir")  # fields that program.py reads together


def _kept(prefix: str, *rows: Field) -> tuple[Field, ...]:
    """Rows with the attribute of the same name below `prefix`, unless they name another."""
    return tuple(row if row.attribute else row.replace(attribute=f"{prefix}{row.name}") for row in rows)


CHANNEL = (
    Field(
        "path", "path", "a folder, a file, a glob, or an address: s3, gs, rclone, http, https, hf", default="", required=True
    ),
    Field(
        "input_mode", "choice", "how the data reaches the script", default="File",
        choices=("File", "FastFile", "Pipe"), request="InputMode",
    ),
    Field(
        "content_type", "text", "MIME type, like text/csv", default="", request="ContentType"
    ),
    Field(
        "s3_type", "choice", "ManifestFile where the path is a manifest of objects, "
        "AugmentedManifestFile where it is JSON Lines with attributes of samples",
        default="S3Prefix", choices=("S3Prefix", "ManifestFile", "AugmentedManifestFile"),
        request="DataSource.S3DataSource.S3DataType",
    ),
    Field(
        "attributes", "words", "of an augmented manifest: those that are sent, in this order", default=(), most=16,
        request="DataSource.S3DataSource.AttributeNames",
    ),
    Field(
        "distribution", "choice", "ShardedByS3Key gives each host about 1/n of the files",
        default="FullyReplicated", choices=("FullyReplicated", "ShardedByS3Key"),
        request="DataSource.S3DataSource.S3DataDistributionType",
    ),
    Field(
        "access", "choice", "rw: the folder itself may be written to; ro: containers cannot (the default)",
        choices=("ro", "rw"), default="", request="DataSource.FileSystemDataSource.FileSystemAccessMode",
    ),
    Field(
        "compression", "choice", "Gzip: decompress in Pipe mode", default="None",
        choices=("None", "Gzip"), request="CompressionType",
    ),
    Field(
        "record_wrapper", "choice", "RecordIO: wrap each file as a record in Pipe mode",
        default="None", choices=("None", "RecordIO"), request="RecordWrapperType",
    ),
    Field(
        "shuffle_seed", "whole", "shuffle the files of each epoch in Pipe mode",
        low=0, high=2**63 - 1, request="ShuffleConfig.Seed",
    ),
    Field(
        "instance_groups", "words", "groups whose hosts get it (default: all)", default=(), most=MOST_GROUPS,
        request="DataSource.S3DataSource.InstanceGroupNames",
    ),
)  # fmt: skip

REFERENCE = (
    Field("env", "path", "a variable of the caller"),
    Field("file", "path", "a file on this machine"),
    Field("secret", "path", "a file in /run/secrets"),
)

DISTRIBUTION = _kept(
    "distribution.",
    Field(
        "kind", "choice", "how ranks are started: script is one process a host", default=DEFAULT,
        choices=(*TRAITS, *WORDS), added=added,
        flags=("--distribution",), metavar="KIND", group="place",
        flag_help=f"{', '.join((*TRAITS, *WORDS))}, {OTHERS} (default: {DEFAULT})",
    ),
    Field(
        "processes_per_host", "whole", "ranks on each host", default=0, low=1, high=MOST_RANKS,
        flags=("--processes-per-host",), metavar="N", group="place",
        setting="trainshed_processes_per_host",
    ),
    Field(
        "engine", "choice", "what starts the ranks: trainshed (default) or torchrun", default="",
        choices=ENGINES, flags=("--engine",), group="place", setting="trainshed_engine",
    ),
    Field(
        "reduce", "choice", "how DistributedDataParallel sends gradients between hosts (docs/data-parallel.md)", default="",
        choices=REDUCTIONS, group="place", setting="trainshed_reduce",
    ),
    Field(
        "accelerate", "text", "Accelerate's or DeepSpeed's configuration file in the code, for torchrun", default="",
        group="place", setting="trainshed_accelerate",
    ),
    Field(
        "max_restarts", "whole", "how often failed ranks are started again, on all hosts together", default=0,
        low=0, high=1000, flags=("--max-restarts",), metavar="N", group="place",
        setting="trainshed_max_restarts",
    ),
    Field("parameters", "mapping", "settings of a pipeline", default={}),
    Field(
        "roles", "mapping", "processes of a parameter_server job, like {worker: 4, ps: 2} (docs/parameter-servers.md)",
        default={}, setting="trainshed_roles",
    ),
    Field(
        "servers", "choice", "what its parameter servers run: the script (default), or TensorFlow's own server", default="",
        choices=SERVERS, group="place", setting="trainshed_servers",
    ),
    Field(
        "instance_groups", "words", "groups that take part; hosts of others run the program once (default: all)",
        default=(), most=MOST_GROUPS,
    ),
)  # fmt: skip
DISTRIBUTION += (
    Field("smdistributed", "mapping", "Amazon's libraries as SageMaker's estimators take them"),
    Field("mpi", "mapping", "MPI's options, beside `smdistributed`"),
)

RESOURCES = _kept(
    "resources.",
    Field(
        "cpus", "number", "CPUs of each container", low=0.01, high=4096,
        flags=("--cpus",), metavar="N", group="place",
    ),
    Field(
        "memory", "size", "memory of each container, like 8g",
        flags=("--memory",), metavar="SIZE", group="place",
    ),
    Field(
        "gpus", "whole", "GPUs of each host (default: an equal part of all)", low=0, high=1024,
        choices=("all",), flags=("--gpus",), metavar="N|all", group="place",
    ),
    Field(
        "shm_size", "size", "/dev/shm of each container (default: 2g, or half of the memory)",
        flags=("--shm-size",), metavar="SIZE", group="place",
    ),
)  # fmt: skip

GROUP = (
    Field("instances", "whole", "number of hosts", default=1, low=1, high=512),
    Field("instance_type", "text", "what its hosts are told they are", default="local", most=64),
    *(row.replace(flags=(), help=f"{row.help.partition(' (')[0]} of the group; default: as in `resources`")
      for row in RESOURCES),
)  # fmt: skip

CHECKPOINTS = (
    Field(
        "folder", "folder", "folder for checkpoints that outlives the run", default="",
        attribute="checkpoints", flags=("--checkpoints",), metavar="DIR", group="course",
        request="CheckpointConfig.S3Uri",
    ),
    Field(
        "local_path", "text", "what the hosts call it, below /opt/ml",
        default="/opt/ml/checkpoints", request="CheckpointConfig.LocalPath",
    ),
    Field(
        "auto", "switch", "make transformers' and Lightning's Trainer use it", default=False,
        attribute="checkpoint_auto",
    ),
    Field(
        "every", "text", "auto: an interval found by measurement (docs/goodput.md); with bounds: auto,least=30s,most=20m",
        default="", pattern=EVERY_FORM, attribute="checkpoint_every", setting="trainshed_checkpoint_every",
    ),
    Field(
        "memory", "mapping", "copies in the hosts' memory, like {every_steps: 1, copies: 1} (docs/checkpoints.md)",
        default={}, attribute="checkpoint_memory", setting="trainshed_checkpoint_memory",
    ),
    Field(
        "copy_to", "text", "storage that gets a copy of every checkpoint, like s3://bucket/run",
        default="", pattern=r"[a-z][a-z0-9+.-]*://[^\s]+", attribute="checkpoint_copy_to",
        flags=("--copy-to",), metavar="URL", group="course",
        setting="trainshed_checkpoint_copy_to",
    ),
)  # fmt: skip

SPOT = _kept(
    "spot.",
    Field(
        "interrupt_after", "durations", "interrupt the attempts after so much training: 20s,40s",
        default=(), flags=("--spot-interrupt-after",), metavar="TIMES", group="course",
        flag_help="simulate spot capacity: notice, grace, SIGKILL and a new start after so long, "
        "as in 20s,40s",
    ),
    Field(
        "max_wait_seconds", "number", "bound on a spot job with all its interruptions",
        default=0.0, low=0, high=LONGEST_RUNTIME, flags=("--max-wait",), metavar="SECONDS",
        group="course", request="StoppingCondition.MaxWaitTimeInSeconds",
    ),
    Field(
        "price", "number", "price of a spot second as a fraction of an on-demand one",
        default=1.0, low=0.01, high=1,
    ),
)  # fmt: skip

NOTICES = ("webhook", "slack", "teams", "email", "command")  # kinds of `notify.senders.SENDERS`
EVENTS = ("start", "end", "failure", "interruption", "rule")
NOTIFY = (
    Field("kind", "choice", "how they are told", default="webhook", choices=NOTICES),
    Field("to", "text", "an address without a secret in it, or a command of the shell", default=""),
    Field("to_env", "text", "the variable of the caller that holds the address, for those that are secrets", default=""),
    Field("on", "words", f"when: {', '.join(EVENTS)} (default: all)", default=(), most=len(EVENTS)),
    Field("template", "text", "what is sent, with $title, $text, $name, $event, $state, $reason and so on", default=""),
    Field("server", "text", "of e-mail: the mail server, like mail.example.com:587 (default: localhost)", default=""),
    Field("sender", "text", "of e-mail: the address that it comes from", default=""),
    Field("login_env", "text", "of e-mail: the variable of the caller that holds `user:password`", default=""),
)  # fmt: skip

COMPILER = (
    Field(
        "backend", "choice", "which compiler", default="auto", choices=compile_plan.BACKENDS,
        setting="trainshed_compiler",
    ),
    Field(
        "mode", "choice", "torch.compile's mode", default="default", choices=compile_plan.MODES,
        setting="trainshed_compiler_mode",
    ),
    Field(
        "regional", "choice", "compile repeated layers once", default="auto",
        choices=_SWITCH, setting="trainshed_compiler_regional",
    ),
    Field(
        "dynamic", "choice", "compile for shapes that change", default="auto",
        choices=_SWITCH, setting="trainshed_compiler_dynamic",
    ),
    Field(
        "cache", "choice", "keep compiled code for the next job", default="auto",
        choices=("auto", "off", "true", "false"), setting="trainshed_compiler_cache",
    ),
)  # fmt: skip

FIELDS = _kept(
    "",
    Field(
        "name", "text", "base of the run's name; the time is added (default: the script's name)",
        default="", pattern="[A-Za-z0-9](-*[A-Za-z0-9])*", most=LONGEST_NAME, flags=("--name",),
    ),
    Field(
        "image", "text", "container image; without one the hosts are processes", default="",
        flags=("--image",), metavar="IMAGE", group="place",
        request="AlgorithmSpecification.TrainingImage",
    ),
    Field(
        "program", "text", "a script, `-m package.module`, or a program that the image has",
        default="",
    ),
    Field(
        "source_dir", "path", "folder or archive with the code (default: the script's folder)",
        default="", flags=("--source-dir",), metavar="DIR",
    ),
    Field(
        "hyperparameters", "mapping", "what the script gets; numbers keep their spelling",
        default={}, flags=("--hyperparameter", "--hp"), metavar="K=V",
        flag_help="one hyperparameter; numbers keep their spelling", request="HyperParameters",
    ),
    Field(
        "channels", "mapping", "input data by name: a path each, or a mapping", default=(),
        of="record", rows=CHANNEL, short="path", most=20,  # the platform's limit
        flags=("--channel",), metavar="NAME=PATH", flag_help="one input channel",
        request="InputDataConfig",
    ),
    Field(
        "from_run", "text", "an earlier run, by name or folder, whose model is the channel `model`", default="",
        flags=("--from-run",), metavar="RUN", setting="trainshed_from_run",
    ),
    Field(
        "instances", "whole", "number of hosts (default: 1)", default=1, low=1, high=512,
        flags=("--instances",), metavar="N", group="place", request="ResourceConfig.InstanceCount",
    ),
    Field(
        "instance_groups", "mapping", "hosts of several kinds, instead of `instances`: how many by group, or a mapping",
        default=(), of="record", rows=GROUP, short="instances", most=MOST_GROUPS,
        flags=("--instance-group",), metavar="NAME=N", flag_help="a group of hosts of one kind, instead of --instances",
        group="place", request="ResourceConfig.InstanceGroups",
    ),
    Field(
        "hosts", "words", "machines for `--on ssh`, one a host: user@machine, user@machine:port", default=(),
        most=MOST_MACHINES, attribute="machines", flags=("--hosts",), metavar="A,B", group="place",
        flag_help="with --on ssh: the machines, like user@a,user@b:2222",
    ),
    Field(
        "distribution", "record", "how ranks are started on the hosts", rows=DISTRIBUTION,
        short="kind",
    ),
    Field(
        "environment", "mapping", "variables: text, or a secret by reference", default={},
        of="text", rows=REFERENCE, flags=("--env",), metavar="K=V",
        flag_help="one variable; K alone takes yours", request="Environment",
    ),
    Field(
        "output", "folder", "folder of this run (default: runs/NAME-TIME), or s3:// for archives",
        default="", flags=("--output",), metavar="DIR", group="course", attribute="upload",
        request="OutputDataConfig.S3OutputPath",
    ),
    Field(
        "max_runtime_seconds", "number", "stop the job after so long", default=0.0,
        low=0, high=LONGEST_RUNTIME, flags=("--max-runtime",), metavar="SECONDS", group="course",
        request="StoppingCondition.MaxRuntimeInSeconds",
    ),
    Field(
        "keep_alive", "duration", "keep packages and data so long for the next run: 10m (docs/warm.md)",
        default=0.0, low=0, high=DAY, flags=("--keep-alive",), metavar="TIME", group="course",
        request="ResourceConfig.KeepAlivePeriodInSeconds",
    ),
    Field(
        "host_price", "number", "what an hour of a host costs, in any currency: lost time is told in it (docs/goodput.md)",
        default=0.0, low=0, high=1e6,
    ),
    Field(
        "grace_seconds", "number", "time from a stop signal to SIGKILL (default: 110)",
        default=DEFAULT_GRACE, low=0, high=DAY, flags=("--grace",), metavar="SECONDS",
        group="course", setting="trainshed_grace_seconds",
    ),
    Field(
        "metric_definitions", "mapping", "metrics to read from the log: regular expressions by name",
        default=(), of="text", pair=("Name", "Regex"), most=40,  # the platform's limit
        flags=("--metric",), metavar="NAME=REGEX", flag_help="a metric to read from the log",
        request="AlgorithmSpecification.MetricDefinitions",
    ),
    Field(
        "profile", "choice", "measure where the time of each step goes (docs/profiler.md)", default="off",
        choices=("auto", "off"), flags=("--profile",), metavar="MODE", group="course", setting="trainshed_profile",
    ),
    Field(
        "fingerprint", "choice", "what of each channel's data the run record keeps (docs/data.md)", default="sampled",
        choices=FINGERPRINTS, flags=("--fingerprint",), metavar="HOW", group="course", setting="trainshed_fingerprint",
    ),
    Field("resources", "record", "what each host may use", rows=RESOURCES),
    Field(
        "checkpoints", "record", "the checkpoint folder, kept from run to run", rows=CHECKPOINTS,
        short="folder",
    ),
    Field(
        "argv", "choice", "how hyperparameters reach the script: sagemaker, json or flags",
        default="", choices=ARGV_STYLES, flags=("--argv",), metavar="STYLE",
        setting="trainshed_argv",
    ),
    Field(
        "rules", "text", "what watches the training: metrics, all, or names of rules (docs/rules.md)",
        default="", flags=("--rules",), metavar="RULES", group="course", setting="trainshed_rules",
    ),
    Field("spot", "record", "spot capacity, simulated", rows=SPOT, short="true",
          request="EnableManagedSpotTraining"),
    Field(
        "retries", "whole", "start a failed job again so often, with its checkpoints", default=0,
        low=0, high=30, flags=("--retries",), metavar="N", group="course",
        request="RetryStrategy.MaximumRetryAttempts",
    ),
    Field(
        "entrypoint", "words", "command of the containers, instead of `train`", default=(),
        most=100, needs_image=True, request="AlgorithmSpecification.ContainerEntrypoint",
    ),
    Field(
        "arguments", "words", "arguments of the containers' command", default=(), most=100,
        needs_image=True, request="AlgorithmSpecification.ContainerArguments",
    ),
    Field(
        "network_isolation", "switch", "containers reach each other and nothing else",
        default=False, needs_image=True, request="EnableNetworkIsolation",
    ),
    Field(
        "tags", "mapping", "texts kept with the run and shown by `trainshed status`", default={},
        of="text", pair=("Key", "Value"), most=50,  # the platform's limit
        flags=("--tag",), metavar="NAME=VALUE", flag_help="a text to keep with the run", request="Tags",
    ),
    Field(
        "notify", "mapping", "who is told how the run stands: an address by name, or a mapping (docs/notify.md)", default=(),
        of="record", rows=NOTIFY, short="to", most=10,
    ),
    Field(
        "compiler", "record", "compile the training steps: a backend, or a mapping", rows=COMPILER,
        short="backend", flags=("--compiler",), metavar="BACKEND",
        flag_help="compile the training steps: auto, inductor, xla, neuron or off",
    ),
)  # fmt: skip
PLACES = tuple(place.name for place in BUILT_IN.values() if place.options)
FIELDS += tuple(Field(name, "mapping", BUILT_IN[name].options, rows=BUILT_IN[name].fields) for name in PLACES)
BY_NAME = {row.name: row for row in FIELDS}


def every(rows: Iterable[Field] = FIELDS, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """All fields with their dotted names, in order, each mapping before the fields inside it."""
    for row in rows:
        yield f"{prefix}{row.name}", row
        if row.kind == "record":
            yield from every(row.rows, f"{prefix}{row.name}.")
