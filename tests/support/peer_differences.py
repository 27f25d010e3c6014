"""Where a job means something else to trainshed than to sagemaker-training 5.1.4, on purpose.

docs/contract.md has its table from `DIFFERENCES`; tests/clients/peer_trees.py runs jobs through both and refuses any other
difference; the recorded examples of tests/unit/contract/test_golden.py have their own list, by variable.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

TREES = "clients/test_peer_trees.py::test_a_job_means_the_same_to_both"
GOLDEN = "unit/contract/test_golden.py::test_every_variable_of_the_peer_is_set_to_an_equal_value"


@dataclass(frozen=True)
class Difference:
    """One deliberate difference.

    name: short. peer, ours: what each does. why: in a few words.
    what: names of what may differ for it, as `clients.peer_trees.differences` gives them; `*` for any.
    test: below tests/, `file::function`.
    """

    name: str
    peer: str
    ours: str
    why: str
    what: tuple[str, ...]
    test: str = TREES


DIFFERENCES = (
    Difference(
        "exit status",
        "1 for every script that fails; an error's number for a missing file",
        "the script's own status, 128 + n for signal n; 1 for code that is not there",
        "schedulers and people tell failures apart by it",
        ("status",),
    ),
    Difference(
        "status 2",
        "1",
        "2 for a job that cannot be read, with every problem named at once",
        "not the script's fault",
        ("status",),
    ),
    Difference(
        "contradictions",
        "goes on",
        "refuses a host that is not among the hosts, a group that is not among the groups, a program that is a number",
        "such a job waits for ever, or trains on the wrong hosts",
        ("status", "success", "failure", "ran"),
    ),
    Difference(
        "framework errors",
        "`Framework Error:` and a traceback; `sys.exit(n)` and errors without a number end with 0 and without `success`",
        "our form of the failure file; the status that was asked for, 1 for an error without a number",
        "a failed launcher must not count as a success",
        ("status", "success", "failure"),
    ),
    Difference(
        "names of errors",
        "`ExecuteUserScriptError:`, `InstallModuleError:`, `InstallRequirementsError:`, with the whole command",
        "`UserError:` or `ProgramError:`, with the script's own exception or pip's reason; what a job needs is installed "
        "before its launcher starts, which cannot catch that",
        "the reason is what people look for",
        ("failure",),
        "unit/container/report/test_exception.py::test_it_finds",
    ),
    Difference(
        "one outcome",
        "files of an earlier run stay; a reason that a successful script wrote stays beside `success`",
        "`success` or `failure`, never both",
        "who reads one of them must not be misled",
        ("success", "failure"),
    ),
    Difference(
        "runs where the peer stops",
        "stops, often with a traceback",
        "runs with absent, empty or BOM-marked config files; programs with spaces, letters beyond ASCII, `@`, a leading "
        "dash or `./`, absolute ones, none named where there is a usual one; `file://` sources",
        "nothing is unclear about these jobs",
        ("status", "success", "failure", "ran"),
    ),
    Difference(
        "number spelling",
        "numbers as Python prints them: `1.1`, `0.001`, `inf`",
        "as they are written: `1.10`, `1e-3`, `1E400`",
        "a version or a name may look like a number",
        ("argv", "SM_USER_ARGS", "SM_HP_*"),
    ),
    Difference(
        "settings of ours",
        "`trainshed_*` reaches the script",
        "it does not",
        "it is for `train`",
        ("argv", "SM_USER_ARGS", "SM_HPS", "SM_HP_TRAINSHED_*", "SM_TRAINING_ENV.hyperparameters"),
    ),
    Difference(
        "job name",
        "`SAGEMAKER_JOB_NAME` from the hyperparameter alone, `job_name` from `TRAINING_JOB_NAME` alone",
        "the same; where one is absent, the other stands in",
        "an empty name helps nobody",
        ("SAGEMAKER_JOB_NAME", "SM_TRAINING_ENV.job_name"),
    ),
    Difference(
        "region",
        "the hyperparameter, then `AWS_DEFAULT_REGION`, else empty",
        "then also `SAGEMAKER_REGION` and `AWS_REGION`",
        "as above",
        ("SAGEMAKER_REGION",),
    ),
    Difference(
        "log level",
        "`SAGEMAKER_CONTAINER_LOG_LEVEL` is read and has no effect",
        "it counts where the hyperparameter is absent; a level is always a number",
        "that is what the variable is for",
        ("SM_LOG_LEVEL", "SM_TRAINING_ENV.log_level"),
    ),
    Difference(
        "source of the variable",
        "`SAGEMAKER_SUBMIT_DIRECTORY` is read and has no effect",
        "it counts where the hyperparameter is absent",
        "as above",
        ("SM_MODULE_DIR", "SM_TRAINING_ENV.module_dir"),
    ),
    Difference(
        "the image's folders",
        "`SM_MODEL_DIR`, `SM_OUTPUT_DIR` and their like are overwritten",
        "the image's own win",
        "the user's variables always win",
        ("SM_*DIR", "SM_TRAINING_ENV.*_dir"),
    ),
    Difference(
        "folder in place",
        "a source folder is copied to `/opt/ml/code`",
        "it is used where it lies",
        "it may be large, or read-only",
        ("cwd",),
    ),
    Difference(
        "group's other name",
        "`current_instance_group` of its documentation is not read",
        "it is read, as `current_group_name` is",
        "the documentation names it",
        ("SM_CURRENT_INSTANCE_GROUP*", "SM_TRAINING_ENV.current_instance_group*"),
    ),
    Difference(
        "order of hosts",
        "`distribution_hosts` in the platform's order, which differs from group to group; the first is the master",
        "in natural order (`algo-2` before `algo-10`), the same on every host",
        "it is the order of the ranks",
        ("SM_TRAINING_ENV.distribution_hosts", "SM_TRAINING_ENV.master_hostname", "SM_TRAINING_ENV.is_master"),
        GOLDEN,
    ),
    Difference(
        "closed libraries",
        "flags of smdistributed are true in `SM_FRAMEWORK_PARAMS`",
        "they are false there",
        "transformers would import Amazon's closed libraries",
        ("SM_FRAMEWORK_PARAMS",),
        GOLDEN,
    ),
    Difference(
        "CPUs",
        "`SM_NUM_CPUS`: what the machine has",
        "what the container may use",
        "ranks and threads are made from it",
        ("SM_NUM_CPUS", "SM_TRAINING_ENV.num_cpus"),
        "clients/test_peer_api.py::test_every_property_of_the_environment_is_the_same",
    ),
    Difference(
        "module path",
        "`PYTHONPATH` holds all of the launcher's `sys.path`",
        "the code, the user's own path, and our hooks",
        "the launcher's packages are not the script's",
        ("PYTHONPATH",),
        "clients/test_peer_api.py::test_the_stand_in_is_on_the_path_only_where_the_real_one_is_not",
    ),
)


def by_name(name: str) -> Difference:
    """A difference by its name. Raises KeyError."""
    return {one.name: one for one in DIFFERENCES}[name]


def fits(item: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns is for this item."""
    return any(fnmatch.fnmatchcase(item, pattern) for pattern in patterns)
