"""What `sagemaker-training` 5.1.4 makes of a job, recorded in golden/ by make_golden.py, against what trainshed makes."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.offenders import check_each
from trainshed.base.errors import JobError
from trainshed.container.cluster import sagemaker, single
from trainshed.contract.cluster import Hardware
from trainshed.contract.environment import script_environment
from trainshed.contract.hyperparameters import decode, to_argv, to_environment_text, variable_names
from trainshed.contract.job import TrainingJob

GOLDEN = Path(__file__).parent / "golden"
ARGV = json.loads((GOLDEN / "argv.json").read_text())["cases"]
ENVIRONMENT = json.loads((GOLDEN / "environment.json").read_text())["cases"]
BY_NAME = {case["name"]: case for case in ENVIRONMENT}


def name_of(case: dict[str, Any]) -> str:
    return ascii(case["name"])


# --- argv ------------------------------------------------------------------------------------------------------------
# The one difference: a JSON number with a point or an exponent, and NaN and Infinity, reach the script as they were
# spelled, not as Python prints the float. Both spellings are read, compared as numbers, and ours must be the raw one's.

_PEER_NUMBER = re.compile(r"-?(?:nan|inf|\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+)")
_JSON_NUMBER = re.compile(r"-?(?:NaN|Infinity|\d+\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)")


def same_but_for_spelling(theirs: str, ours: str, raw: str) -> bool:
    """Whether two arguments differ only in how the floats of `raw` are written, and ours are written as in `raw`."""
    spelled = _JSON_NUMBER.findall(raw)
    printed = _PEER_NUMBER.findall(theirs)
    if not spelled or len(spelled) != len(printed):
        return False
    for one, other in zip(spelled, printed, strict=True):
        a, b = float(one), float(other)
        if a != b and not (math.isnan(a) and math.isnan(b)):
            return False
    rest_of_theirs, rest_of_ours = _PEER_NUMBER.split(theirs), _JSON_NUMBER.split(ours)
    return rest_of_theirs == rest_of_ours and _JSON_NUMBER.findall(ours) == spelled


def test_the_script_gets_the_arguments_that_the_peer_gives_it() -> None:
    def check(case: dict[str, Any]) -> None:
        ours, theirs = to_argv(decode(case["raw"]).user), case["argv"]
        assert ours[::2] == theirs[::2], "the options' names"
        values = {f"--{key}" if len(key) > 1 else f"-{key}" if key else "": value for key, value in case["raw"].items()}
        for option, our_value, their_value in zip(ours[::2], ours[1::2], theirs[1::2], strict=True):
            if our_value != their_value:
                assert isinstance(values[option], str), "values that are no strings have no spelling to keep"
                assert same_but_for_spelling(their_value, our_value, values[option])

    check_each(ARGV, check, name_of)


def test_hyperparameters_become_the_variables_that_the_peer_sets() -> None:
    def check(case: dict[str, Any]) -> None:
        user = decode(case["raw"]).user
        ours = {variable_names("SM_HP_", name)[0]: to_environment_text(value) for name, value in user.items()}
        raw = {variable_names("SM_HP_", name)[0]: value for name, value in case["raw"].items()}
        for name, value in case["hp_env"].items():
            theirs = value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))
            if "=" in name:  # no environment can hold this name; ours is readable and has the same value
                name = variable_names("SM_HP_", name.removeprefix("SM_HP_"))[0]
            if ours[name] != theirs:  # floats as they were spelled; the peer writes them as JSON does
                assert float(ours[name]) == float(theirs)
                assert ours[name] == str(raw[name]).strip()

    check_each(ARGV, check, name_of)


# --- environment -----------------------------------------------------------------------------------------------------
# Where trainshed means something else than the peer: the variable (or the field of SM_TRAINING_ENV), why, and the cases
# in which it shows. A difference that shows nowhere must be taken off the list.

FLAGS = ("mpi on four hosts", "smdistributed model parallel", "sagemaker_distributed_dataparallel_enabled")
HETERO = ("distribution on this one", "distribution on the other", "distribution without groups named")
FOUR_HOSTS = ("torch_distributed on four hosts", "mpi on four hosts", "smdistributed model parallel")
BOTH_GROUPS = "distribution on both groups, second first"
SORTED = tuple(f"two instance groups, {rest}" for rest in HETERO)
DIFFERENCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "SM_CURRENT_INSTANCE_GROUP_HOSTS": (
        "the docs' name of the field, current_instance_group, is read as well",
        ("the group under its other name is not read",),
    ),
    "SM_CURRENT_INSTANCE_GROUP": (
        "the docs' name of the field, current_instance_group, is read as well",
        ("the group under its other name is not read",),
    ),
    "SM_FRAMEWORK_PARAMS": (
        "flags on which transformers would import Amazon's closed libraries are false, since none of ours run on them",
        FLAGS,
    ),
    "SM_MODULE_DIR": (
        "SAGEMAKER_SUBMIT_DIRECTORY counts, as the peer's own documentation says",
        ("SAGEMAKER_SUBMIT_DIRECTORY has no effect",),
    ),
    "SM_LOG_LEVEL": (
        "SAGEMAKER_CONTAINER_LOG_LEVEL counts, as the peer's own documentation says; a level is always a number",
        ("SAGEMAKER_CONTAINER_LOG_LEVEL has no effect", "a log level that is a word"),
    ),
    "SM_HP_B": ("floats keep their spelling", ("infinite and not-a-number hyperparameters",)),
    "SM_USER_ARGS": ("floats keep their spelling", ("infinite and not-a-number hyperparameters",)),
    "SM_MODULE_NAME": ("a job that names no program runs the usual one", ("no hyperparameters at all",)),
    "SAGEMAKER_JOB_NAME": ("the platform's name of the job is its name", ("TRAINING_JOB_NAME",)),
    "SAGEMAKER_REGION": ("the platform's region is the region", ("AWS_REGION",)),
    "SM_TRAINING_ENV.job_name": (
        "the hyperparameter's name of the job is its name, too",
        ("every sagemaker_ hyperparameter with a meaning of its own", "the same, raw strings as boto3 users write"),
    ),
    "SM_TRAINING_ENV.user_entry_point": ("as SM_MODULE_NAME", ("no hyperparameters at all",)),
    "SM_TRAINING_ENV.distribution_hosts": (
        "in natural order, the same on every host: it is the ranks' order",
        (SORTED[0], SORTED[2], BOTH_GROUPS, "twelve hosts sort as text", *FOUR_HOSTS),
    ),
    "SM_TRAINING_ENV.master_hostname": (
        "the first host in natural order; a host outside the distribution is its own master",
        (*SORTED, *FOUR_HOSTS),
    ),
    "SM_TRAINING_ENV.is_master": ("follows from master_hostname", (SORTED[0], SORTED[2])),
}
# Fields of SM_TRAINING_ENV that say again what a variable says, and differ with it.
AGAIN = {
    "current_instance_group": "SM_CURRENT_INSTANCE_GROUP",
    "current_instance_group_hosts": "SM_CURRENT_INSTANCE_GROUP_HOSTS",
    "distribution_instance_groups": "SM_DISTRIBUTION_INSTANCE_GROUPS",
    "additional_framework_parameters": "SM_FRAMEWORK_PARAMS",
    "module_dir": "SM_MODULE_DIR",
    "module_name": "SM_MODULE_NAME",
    "log_level": "SM_LOG_LEVEL",
    "framework_module": "SM_FRAMEWORK_MODULE",
}
# What the hardware says comes from the probe; here the tests put in what the peer found with its tools.
HARDWARE = {
    "eight GPUs": Hardware(gpus=8),
    "sixteen Neuron devices": Hardware(neurons=32),
    "trn2.48xlarge": Hardware(neurons=64),  # the peer knows this one by name
}
CPUS = 3


def value_of(text: Any) -> Any:
    """The JSON object or list that a variable holds, or its text; NaN compares equal to itself."""
    if isinstance(text, str) and text[:1] in ("{", "[") and not re.match(r"\{(base|cpus)\}", text):
        return json.loads(text, parse_constant=str)
    return text


def our_environment(case: dict[str, Any], tree: Any) -> dict[str, Any]:
    """Our variables for a recorded case, the base folder written as the records write it."""
    shutil.rmtree(tree.base, ignore_errors=True)  # the case before left its files
    for name, content in case["files"].items():
        tree.write(f"input/config/{name}", content)
    environ = {"SAGEMAKER_BASE_DIR": str(tree.base), **case["given"]}
    job: TrainingJob = tree.read(**case["given"])
    scheduler = sagemaker if sagemaker.evidence(job, environ) else single
    hardware = HARDWARE.get(case["name"], Hardware()).replace(cpus=CPUS)
    made, notes = script_environment(
        job,
        scheduler.cluster(job, environ).replace(hardware=hardware),
        code_dir=f"{tree.base}/code",
        entry_point=job.program,
        arguments=to_argv(job.hyperparameters.user),
    )
    assert notes == []
    return {name: value_of(value.replace(str(tree.base), "{base}")) for name, value in made.items()}


def differences(case: dict[str, Any], tree: Any) -> dict[str, str]:
    """The variables and SM_TRAINING_ENV fields in which we differ from the peer, with what both say."""
    ours = our_environment(case, tree)
    found = {}
    for name, recorded in {**case["sm"], **case["set"]}.items():
        theirs = value_of(recorded)
        assert name in ours, f"the peer sets {name}"
        if name == "SM_NUM_CPUS":
            assert ours[name] == str(CPUS)
        elif name == "SM_TRAINING_ENV":
            assert ours[name].keys() >= theirs.keys()
            assert ours[name].pop("num_cpus") == CPUS
            del theirs["num_cpus"]
            fields = {field for field in theirs if ours[name][field] != theirs[field]}
            assert all(AGAIN[field] in found for field in fields & AGAIN.keys()), "a field differs, its variable does not"
            for field in fields - AGAIN.keys():
                found[f"SM_TRAINING_ENV.{field}"] = f"the peer {theirs[field]!r}, ours {ours[name][field]!r}"
        elif ours[name] != theirs:
            found[name] = f"the peer {theirs!r}, ours {ours[name]!r}"
    return found


RECORDED = [case for case in ENVIRONMENT if "sm" in case]
REFUSED = {
    "a current group that is not in the list": "current_group_name = other: is not one of the groups (cpu_group, gpu_group)",
    "a program that reads as a number": "sagemaker_program = 123: must be a string",
}


def test_every_variable_of_the_peer_is_set_to_an_equal_value(job_tree: Any) -> None:
    def check(case: dict[str, Any]) -> None:
        found = differences(case, job_tree)
        expected = {name for name, (_, cases) in DIFFERENCES.items() if case["name"] in cases}
        wrong = {name: found.get(name, "equal: take it off the list") for name in found.keys() ^ expected}
        assert not wrong, str(wrong)

    check_each([case for case in RECORDED if case["name"] not in REFUSED], check, name_of)


def test_the_list_of_differences_names_recorded_cases_only() -> None:
    assert {name for _, cases in DIFFERENCES.values() for name in cases} <= BY_NAME.keys()
    assert REFUSED.keys() | HARDWARE.keys() <= BY_NAME.keys()


def test_a_job_that_contradicts_itself_is_refused_where_the_peer_goes_on(job_tree: Any) -> None:
    def check(name: str) -> None:
        with pytest.raises(JobError, match=re.escape(REFUSED[name])):
            our_environment(BY_NAME[name], job_tree)

    check_each(REFUSED, check)


def test_a_job_on_which_the_peer_crashes_gets_its_defaults(job_tree: Any) -> None:
    def check(case: dict[str, Any]) -> None:
        ours = our_environment(case, job_tree)
        assert ours["SM_HOSTS"] and ours["SM_CURRENT_HOST"] in ours["SM_HOSTS"]

    check_each([case for case in ENVIRONMENT if "error" in case], check, name_of)
