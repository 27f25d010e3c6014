"""The `TRAINSHED_*` variables that pass between images, the runner, `train`, its helpers and the ranks.

`TABLE`, shown in docs/reference/variables.md, says who sets and who reads each variable. Settings are not in it: each has a
variable, too, whose name `of_setting` makes. No other module spells a name that begins with `PREFIX`.

This module imports nothing, and hooks that may run without trainshed installed execute this file by its path.
"""

from __future__ import annotations

PREFIX = "TRAINSHED_"

AGENT_CHECKPOINTS = "TRAINSHED_AGENT_CHECKPOINTS"
AGENT_EVENTS = "TRAINSHED_AGENT_EVENTS"
AGENT_LOST = "TRAINSHED_AGENT_LOST"
AGENT_PID = "TRAINSHED_AGENT_PID"
AUTOPATCH = "TRAINSHED_AUTOPATCH"
AZURE_METADATA = "TRAINSHED_AZURE_METADATA"
CHANNEL_CACHE = "TRAINSHED_CHANNEL_CACHE"
CHANNEL_CACHE_SIZE = "TRAINSHED_CHANNEL_CACHE_SIZE"
CLIENT_OF = "TRAINSHED_CLIENT_OF"
COMPILE_PLAN = "TRAINSHED_COMPILE_PLAN"
ENTRYPOINTS = "TRAINSHED_ENTRYPOINTS"
HOST = "TRAINSHED_HOST"
HOSTS = "TRAINSHED_HOSTS"
IN_PLACE = "TRAINSHED_IN_PLACE"
LOG_LEVEL = "TRAINSHED_LOG_LEVEL"
MODEL_STORE = "TRAINSHED_MODEL_STORE"
MPI_SOCKET = "TRAINSHED_MPI_SOCKET"
NOTICE_FILE = "TRAINSHED_NOTICE_FILE"
OWN_PACKAGES_STAY = "TRAINSHED_OWN_PACKAGES_STAY"
PACKAGES = "TRAINSHED_PACKAGES"
PIPELINE_BEGUN = "TRAINSHED_PIPELINE_BEGUN"
PLAN_HOW = "TRAINSHED_PLAN_HOW"
PLAN_ONLY = "TRAINSHED_PLAN_ONLY"
PROBE = "TRAINSHED_PROBE"
ROSTER_TOKEN = "TRAINSHED_ROSTER_TOKEN"
RUN_ID = "TRAINSHED_RUN_ID"
SECRET_NAMES = "TRAINSHED_SECRET_NAMES"
STEP_PROFILE = "TRAINSHED_STEP_PROFILE"
TENSORS = "TRAINSHED_TENSORS"
TRAIN_ID = "TRAINSHED_TRAIN_ID"
WARM_SOCKET = "TRAINSHED_WARM_SOCKET"

# (name, who sets it, who reads it, what it holds). Plain tuples of constants: every start of `train` loads this module.
TABLE: tuple[tuple[str, str, str, str], ...] = (
    (
        AGENT_CHECKPOINTS,
        "`train`, for torchrun's agent",
        "the agent",
        "folder of checkpoints; an attempt that leaves a newer one there made progress",
    ),
    (
        AGENT_EVENTS,
        "`train`, for torchrun's agent",
        "the agent",
        "file that gets one JSON object a line for each restart of the ranks",
    ),
    (
        AGENT_LOST,
        "`train`, for torchrun's agent",
        "the agent",
        "file whose every new content means that a host is lost",
    ),
    (
        AGENT_PID,
        "torchrun's agent",
        "the error hook in its ranks",
        "the agent's process id: tells ranks from the processes that they start",
    ),
    (
        AUTOPATCH,
        "`train`, for the ranks",
        "the ranks (`trainshed.autopatch`)",
        "hooks to install, separated by commas: checkpoint, compile, metrics, reduce, steps, tensors, xla, probe",
    ),
    (
        AZURE_METADATA,
        "the environment",
        "`train`, `trainshed doctor`",
        "address of Azure's metadata service; default: `http://169.254.169.254`",
    ),
    (
        CHANNEL_CACHE,
        "the user",
        "`trainshed run`, `trainshed cache`",
        "folder that keeps what was fetched for channels (default: ~/.cache/trainshed/channels); `off` for none",
    ),
    (
        CHANNEL_CACHE_SIZE,
        "the user",
        "`trainshed run`, `trainshed cache`",
        "what the cache may hold between runs, like 50g (default: a tenth of its disk)",
    ),
    (
        CLIENT_OF,
        "the runner, for its commands to a container engine",
        "a later runner, in /proc",
        "id of the run that the command works for",
    ),
    (
        COMPILE_PLAN,
        "`train`, for the ranks",
        "the ranks (`trainshed.compiler`)",
        "how to compile, as JSON (contract/wire/compile_plan.py)",
    ),
    (
        ENTRYPOINTS,
        "the image",
        "`train`, the runner, `trainshed demo`",
        "folder of ready-made training programs",
    ),
    (HOST, "the environment", "`train`", "this host's name in `TRAINSHED_HOSTS`; default: the machine's name"),
    (HOSTS, "the environment", "`train`", "all hosts of the job in one order, separated by commas"),
    (
        IN_PLACE,
        "`train`, for the ranks",
        "the ranks (`trainshed.resumable`)",
        "folder where ranks say that they live on when another one is lost (contract/wire/in_place.py)",
    ),
    (LOG_LEVEL, "the environment", "`trainshed`", "`DEBUG` shows the traceback of an internal error"),
    (
        MODEL_STORE,
        "the user",
        "`trainshed models`, `trainshed steps`, `trainshed run`",
        "the model store: a folder, or `s3://bucket/prefix` (default: ~/.local/share/trainshed/models)",
    ),
    (
        MPI_SOCKET,
        "`train`, for mpirun and its daemons",
        "the helpers that Open MPI starts",
        "socket on which `train` serves them",
    ),
    (
        NOTICE_FILE,
        "`train`, for the ranks",
        "the ranks (`trainshed.checkpoint`)",
        "file that appears when an interruption is announced (contract/wire/notice.py)",
    ),
    (
        OWN_PACKAGES_STAY,
        "the runner, for a job with `keep_alive`",
        "`train`",
        "1 where the interpreter's own packages outlive the job: requirements go there, and their folder gets a note",
    ),
    (
        PACKAGES,
        "the runner, for a job with `keep_alive`",
        "`train`",
        "folder that stays for the next run: for the installed requirements.txt, or a note that it is installed",
    ),
    (
        PIPELINE_BEGUN,
        "`train`, with the distribution `pipeline`",
        "the ranks (`trainshed.parallel`)",
        "file that `init` makes: without it, N ranks have trained N models",
    ),
    (
        PLAN_HOW,
        "`trainshed plan`, for the script",
        "the ranks (`trainshed.parallel`)",
        "JSON: whether operations are counted instead of timed, ranks to choose degrees for, their links",
    ),
    (
        PLAN_ONLY,
        "`trainshed plan`, for the script",
        "the ranks (`trainshed.parallel`)",
        "file for the pipeline's plan; the script ends when it is written",
    ),
    (
        PROBE,
        "the runner, when it looks for a batch size; `train`, for the ranks",
        "`train`, the ranks (`trainshed.compiler`)",
        "steps to measure; for the ranks as JSON (contract/wire/batch_search.py)",
    ),
    (
        ROSTER_TOKEN,
        "the runner, for several hosts; or the environment",
        "`train`, the sshd of our images",
        "secret that all hosts of a job share, by which they know each other",
    ),
    (
        RUN_ID,
        "the runner",
        "a later runner, in /proc",
        "id of the run, by which it finds processes that outlived it",
    ),
    (
        SECRET_NAMES,
        "the runner",
        "`train`",
        "names of variables whose values are never shown, separated by commas",
    ),
    (
        STEP_PROFILE,
        "`train`, for the ranks",
        "the ranks (`trainshed.observe`)",
        "where to write how long the parts of a step take, as JSON (contract/wire/step_profile.py)",
    ),
    (
        TENSORS,
        "`train`, for the ranks",
        "the ranks (`trainshed.studio.rules`)",
        "optimizer steps between two looks at tensors, and the folder for what is seen: `100:/opt/ml/output/tensors`",
    ),
    (
        TRAIN_ID,
        "`train`, for all that it starts",
        "`train`'s guardian, in /proc",
        "which `train` started a process: what a killed one leaves is ended; ids of nested ones are separated by `;`",
    ),
    (
        WARM_SOCKET,
        "`train`, with `trainshed_warm_start`",
        "the interpreter that ranks are forked from (`container/warm_start`)",
        "number of the socket between both, with a `:` behind it before that interpreter is the script's",
    ),
)


def of_setting(name: str) -> str:
    """The variable of a setting: `of_setting("roster_port")` is `TRAINSHED_ROSTER_PORT`."""
    return PREFIX + name.upper()
