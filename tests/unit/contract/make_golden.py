"""Records what `sagemaker-training` 5.1.4 does with a job's config files, as facts for the contract's tests.

Two files are written next to this one, in `golden/`:

argv.json
    `{"cases": [{"name", "raw", "argv", "hp_env"}]}`: `raw` is the object in hyperparameters.json, `argv` the arguments
    the user's script gets, `hp_env` its `SM_HP_*` variables.
environment.json
    `{"cases": [{"name", "files", "given", "tools", "sm", "set"}]}`: `files` are the config files, `given` the variables
    the container had, `tools` the programs its PATH had (with what they print), `sm` all `SM_*` variables made for the
    script, `set` every other variable that appeared or changed.

A case that made the peer fail has `error` (the exception's type) in place of its results. Values of variables are
written as the text they had, except that canonical JSON objects and lists (sorted keys, no spaces, ASCII) are written
parsed: `json.dumps(value, sort_keys=True, separators=(",", ":"))` gives the text back. The job's base folder reads
`{base}`; the number of CPUs, the one value that depends on the machine, reads `{cpus}`.

The peer is only run and watched, through `Environment(...)`, `.to_cmd_args()` and `.to_env_vars()`. To write the files
again (a C compiler is needed, the peer has no wheel):

    python3.11 -m venv peer && peer/bin/pip install sagemaker-training==5.1.4
    peer/bin/python tests/unit/contract/make_golden.py
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PEER = "sagemaker-training"
PEER_VERSION = "5.1.4"
GOLDEN = Path(__file__).parent / "golden"

# --- argv: the hyperparameters ---------------------------------------------------------------------------------------

# Raw values as hyperparameters.json carries them. Each becomes one case under the key "value".
STRINGS = [
    # booleans, null and their look-alikes
    "true", "false", "True", "False", "TRUE", "yes", "no", "on", "off", "null", "None", "nil", "undefined",
    # integers
    "0", "1", "-1", "+1", "42", "007", "00501", "-0", "1_000", "1,000", "0x10", "0b11", "0o17", "2147483648",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "123456789012345678901234567890",
    # floats
    "0.0", "-0.0", "1.0", "1.10", "0.1", ".5", "5.", "-.5", "3.14159265358979323846", "1e5", "1E5", "1e+5", "1e-5",
    "5e-05", "1e-4", "0.0001", "0.00001", "1e16", "1e15", "1e22", "1e23", "123456789.123456789", "100000000000000000.0",
    "1e400", "1E400", "-1e400", "1e-400", "2.5e-324", "1.7976931348623157e308", "1e", "e5", "1.2.3", "1/3", "50%",
    # infinities and not-a-number
    "inf", "-inf", "Infinity", "-Infinity", "+Infinity", "infinity", "nan", "NaN", "-NaN",
    # empty and white space
    "", " ", "   ", "\t", "\n", " 1", "1 ", " 1 ", "\n2\n", "\t3", "1 2", " text ", "two words", "line1\nline2",
    "tab\there", "\r\n", "trailing ", "\u00a01", "\ufeff1",
    # quotes, backslashes and what a shell would act on
    '"', "'", '""', "''", '"quoted"', "'quoted'", '"it\'s"', "it's", 'say "hi"', "\\", "\\n", "C:\\temp\\x", '"a\\nb"',
    '"tab\\there"', '"\\u00e9"', '"\\\\"', "$HOME", "${HOME}", "$(date)", "`date`", "a;b", "a && b", "a|b", "a>b", "*",
    "~", "#x", "!x", "a&b", "x; touch PWNED #", "%s", "{}%d", "{0}",
    # option look-alikes
    "-", "--", "-a", "-abc", "--flag", "--key=value", "-1.5", "-1e5", "key=value", "=", "a=b,c=d",
    # strings that were JSON-encoded, as the SDK does
    '"text"', '"1"', '"1.10"', '"true"', '"null"', '"[1]"', '"{}"', '" padded "', '"\\"twice\\""', '"s3://bucket/key"',
    "s3://bucket/prefix/", "file:///opt/ml/input", "/opt/ml/input/data/train", "../up", "ml.p4d.24xlarge",
    "train.py", "2026-11-21", "12:30", "1e5x", "NaN1", "truefalse", "nulls", "bert-base-uncased", "google/flan-t5-xl",
    # broken JSON
    "[", "]", "{", "}", "[1", "[1,]", "{1:2}", "{'a': 1}", '{"a":1', '{"a":1,}', "[1] x", '"open', "'single'",
    # lists
    "[]", "[1]", "[1,2,3]", "[1, 2, 3]", "[1.10, 1e5]", '["a"]', '["a","b"]', "[true,false,null]", "[[1,2],[3]]",
    '["it\'s"]', '["say \\"hi\\""]', '["\\u00e9"]', '["a,b"]', "[NaN,Infinity,-Infinity]", "[[]]", "[{}]",
    '[{"a":1},{"b":[2]}]', '["1",["2"]]', "[-0, -0.0]", '[""]', '["\\n"]', "[1e400]", '["\\\\"]', " [1] ",
    # objects
    "{}", '{"a":1}', '{"a": 1, "b": 2}', '{"b":2,"a":1}', '{"B":1,"a":2}', '{"a":"x"}', '{"a":""}', '{"":1}',
    '{"a":null}', '{"a":true,"b":false}', '{"a":[1,2]}', '{"a":["x","y"]}', '{"a":{"b":{"c":1}}}', '{"a b":"c d"}',
    '{"a,b":"c=d"}', '{"a":1.10,"b":1e5}', '{"a":NaN}', '{"a":"it\'s"}', '{"a":1,"a":2}', '{"1":1,"10":2,"2":3}',
    '{"microbatches":4,"pipeline":"interleaved","ddp":true}', '{"x":"\\u00e9"}', "{ }", '{"a":[]}', '{"a":{}}',
    # beyond ASCII
    "é", "naïve café", "日本語", "🚂", "\u202eright to left", '"日本"', '"\\ud83d\\ude82"', "e\u0301", "Ω=50",
    "½", "١٢", "\u2028", "\x7f", "\x1b[31mred\x1b[0m", "\x01",
    # long
    "x" * 256, "[" + ",".join(str(n) for n in range(40)) + "]",
]  # fmt: skip

# The file may also hold plain JSON values; the documentation says strings only.
NATIVE_VALUES: list[Any] = [
    True, False, None, 0, 5, -3, 2.5, 1e-7, 1e22, [], [1, "2", None, True, 0.5], {}, {"b": 1, "a": [1, {"c": None}]},
    [[["deep"]]], {"x": {"y": {"z": "1"}}}, ["é"], {"k": "true"}, 12345678901234567890,
]  # fmt: skip

# Keys, each with the value "1" (and once, below, next to others).
KEYS = [
    "a", "x", "Z", "1", "-", "_", ".", " ", "é", "日", "", "ab", "epochs", "learning-rate", "learning_rate", "lr.rate",
    "optimizer.params.lr", "UPPER", "mixedCase", "with space", "a=b", "a,b", "--already", "-s", "-dashed", "key:sub",
    "key/sub", "key[0]", "k'q", 'k"q', "k$x", "k;x", "k\tx", "k\nx", "ключ", "🚂", "batch_size_per_device", "10",
    "0lead", "true", "null", "help", "h", "V", "#", "@file", "%", "*", "\\", "k" * 120, "mp_parameters",
    "SM_MODEL_DIR", "PATH", "sagemaker", "Sagemaker_program", "sagemakerprogram", "_sagemaker_x",
    "tuning_objective_metric",
]  # fmt: skip

TOGETHER: dict[str, dict[str, Any]] = {
    "no hyperparameters": {},
    "keys are sorted": {"b": "1", "a": "2", "c": "3", "B": "4", "A": "5"},
    "digits, capitals, _, small letters sort by code point": {"b": "1", "_b": "2", "B": "3", "2": "4", "é": "5"},
    "dash, dot and underscore side by side": {"a-b": "1", "a_b": "2", "a.b": "3", "ab": "4", "a": "5"},
    "prefixes of one another": {"lr": "0.1", "lr2": "0.2", "l": "0.3", "lr_decay": "0.4"},
    "names that differ in case only": {"lr": "0.1", "LR": "0.2", "Lr": "0.3"},
    "empty key first": {"": "x", "a": "y"},
    "one-letter keys": {"a": "1", "b": "true", "c": "", "d": "null", "e": "[1]", "f": '{"k":1}'},
    "one of each kind": {
        "bool": "true", "none": "null", "int": "3", "float": "1.10", "text": "abc", "list": "[1,2]", "dict": '{"a":1}',
    },
    "sagemaker_ keys are not for the user": {
        "sagemaker_program": '"train.py"', "sagemaker_submit_directory": '"s3://b/source.tar.gz"',
        "sagemaker_container_log_level": "20", "sagemaker_region": '"eu-west-1"', "sagemaker_job_name": '"job"',
        "sagemaker_mpi_enabled": "false", "sagemaker_anything_else": "1", "epochs": "3",
    },
    "only sagemaker_ keys": {"sagemaker_program": "train.py", "sagemaker_job_name": "job"},
    "the tuner's metric is not for the user": {"_tuning_objective_metric": "loss", "epochs": "3"},
    "default_user_module_name is not for the user": {"default_user_module_name": "m", "epochs": "3"},
    "sagemaker_ without a name after it": {"sagemaker_": "1", "epochs": "3"},
    "upper case SAGEMAKER_ is the user's": {"SAGEMAKER_PROGRAM": "x", "epochs": "3"},
    "transformers trainer": {
        "model_name_or_path": '"bert-base-uncased"', "output_dir": '"/opt/ml/model"', "do_train": "true",
        "per_device_train_batch_size": "8", "learning_rate": "5e-05", "fp16": "false", "max_steps": "-1",
        "warmup_ratio": "0.1", "report_to": '"none"',
    },
    "raw API strings": {"epochs": "10", "learning-rate": "0.01", "name": "resnet18", "zip": "00501", "flag": "True"},
    "model parallel": {"mp_parameters": '{"partitions": 2, "microbatches": 4, "ddp": true, "pipeline": "interleaved"}'},
    "booleans of all kinds": {"a1": "true", "a2": "True", "a3": '"true"', "a4": "1", "a5": "yes"},
    "lists of all kinds": {"l1": "[]", "l2": "['a']", "l3": '["a"]', "l4": "1,2", "l5": "(1,2)", "l6": '"[1]"'},
    "hostile": {"--evil": "x", "x": "; rm -rf /", "y": "$(id)", "z": "`id`", "q": "' || true '"},
    "values that look like options": {"n": "-1", "s": "-abc", "d": "--", "e": "--epochs"},
    "a hundred hyperparameters": {f"key_{n:02d}": str(n) for n in range(100)},
}  # fmt: skip


def argv_cases() -> Iterator[dict[str, Any]]:
    """Yields `{"name", "raw"}`, one per case."""
    for text in STRINGS:
        yield {"name": f"string {text[:40]!r}", "raw": {"value": text}}
    for value in NATIVE_VALUES:
        yield {"name": f"native {value!r}", "raw": {"value": value}}
    for key in KEYS:
        yield {"name": f"key {key[:40]!r}", "raw": {key: "1"}}
    for name, raw in TOGETHER.items():
        yield {"name": name, "raw": raw}


# --- environment: whole job trees ------------------------------------------------------------------------------------

PROGRAM = {"sagemaker_program": '"train.py"'}
CHANNEL = {
    "ContentType": "text/csv",
    "TrainingInputMode": "File",
    "S3DistributionType": "FullyReplicated",
    "RecordWrapperType": "None",
}
ONE_HOST = {
    "current_host": "algo-1",
    "current_instance_type": "ml.m5.xlarge",
    "current_group_name": "homogeneousCluster",
    "hosts": ["algo-1"],
    "instance_groups": [{"instance_group_name": "homogeneousCluster", "instance_type": "ml.m5.xlarge", "hosts": ["algo-1"]}],
    "network_interface_name": "eth0",
}
FOUR_HOSTS = {
    "current_host": "algo-2",
    "current_instance_type": "ml.g4dn.xlarge",
    "current_group_name": "homogeneousCluster",
    "hosts": ["algo-1", "algo-2", "algo-3", "algo-4"],
    "instance_groups": [
        {
            "instance_group_name": "homogeneousCluster",
            "instance_type": "ml.g4dn.xlarge",
            "hosts": ["algo-3", "algo-1", "algo-4", "algo-2"],
        }
    ],
    "network_interface_name": "eth0",
}
HETERO = {
    "current_host": "algo-2",
    "current_instance_type": "ml.p4d.24xlarge",
    "current_group_name": "gpu_group",
    "hosts": ["algo-1", "algo-2", "algo-3"],
    "instance_groups": [
        {"instance_group_name": "cpu_group", "instance_type": "ml.c5.18xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "gpu_group", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-3", "algo-2"]},
    ],
    "network_interface_name": "eth0",
}


def tree(
    name: str,
    *,
    hps: dict[str, Any] | None = None,
    resources: dict[str, Any] | None = None,
    channels: dict[str, Any] | None = None,
    given: dict[str, str] | None = None,
    tools: dict[str, str] | None = None,
    leave_out: tuple[str, ...] = (),
) -> dict[str, Any]:
    """One job tree; what is not said is the plainest job there is."""
    files = {
        "hyperparameters.json": PROGRAM if hps is None else hps,
        "resourceconfig.json": ONE_HOST if resources is None else resources,
        "inputdataconfig.json": {"train": CHANNEL} if channels is None else channels,
    }
    files = {file: content for file, content in files.items() if file not in leave_out}
    return {"name": name, "files": files, "given": given or {}, "tools": tools or {}}


def without(config: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in fields}


def environment_cases() -> Iterator[dict[str, Any]]:
    """Yields `{"name", "files", "given", "tools"}`, one per case."""
    user = {"epochs": "3", "lr": "0.1", "name": '"resnet"', "raw-name": "resnet", "layers": "[64,64]", "opt": '{"b":1}'}
    yield tree("one host, one channel, nothing asked")
    yield tree("no hyperparameters at all", hps={})
    yield tree("user hyperparameters of several kinds", hps={**PROGRAM, **user, "on": "true", "nothing": "null"})
    yield tree("hyperparameters whose names collide in SM_HP_", hps={**PROGRAM, "lr": "0.1", "LR": "0.2", "a-b": "1"})
    yield tree("hyperparameters beyond ASCII", hps={**PROGRAM, "città": '"Zürich"', "train": "🚂", "n": '["é"]'})
    yield tree("infinite and not-a-number hyperparameters", hps={**PROGRAM, "a": "NaN", "b": "1e400", "c": "[NaN]"})
    yield tree("no channels", channels={})
    names = ("train-data", "validation.v2", "test_set", "Model", "a")
    yield tree("channels with dashes, dots, underscores and capitals", channels={name: CHANNEL for name in names})
    modes = {"train": "File", "stream": "Pipe", "fast": "FastFile"}
    yield tree("channels of every input mode", channels={k: {"TrainingInputMode": v} for k, v in modes.items()})
    yield tree("a channel without fields", channels={"train": {}})
    yield tree("four hosts, group hosts in another order", resources=FOUR_HOSTS)
    many = [f"algo-{n}" for n in (1, 10, 11, 12, 2, 3, 4, 5, 6, 7, 8, 9)]
    yield tree("twelve hosts sort as text", resources={**without(ONE_HOST, "instance_groups"), "hosts": many})
    yield tree(
        "local mode's resource config has no groups",
        resources={
            "current_host": "algo-1-223o2",
            "hosts": ["algo-1-223o2", "algo-2-223o2"],
            "network_interface_name": "eth0",
            "current_instance_type": "local",
        },
    )
    yield tree("only the required resource fields", resources={"current_host": "algo-1", "hosts": ["algo-1"]})
    yield tree("no network interface name", resources=without(ONE_HOST, "network_interface_name"))
    yield tree("no instance type", resources=without(ONE_HOST, "current_instance_type"))
    yield tree("no current group name", resources=without(FOUR_HOSTS, "current_group_name"))
    old_name = {**without(HETERO, "current_group_name"), "current_instance_group": "gpu_group"}
    yield tree("the group under its other name is not read", resources=old_name)
    yield tree("two instance groups", resources=HETERO)
    on_cpu = {**HETERO, "current_host": "algo-1", "current_group_name": "cpu_group"}
    yield tree("two instance groups, seen from the other", resources=on_cpu)
    ddp = {**PROGRAM, "sagemaker_torch_distributed_enabled": "true", "sagemaker_instance_type": '"ml.p4d.24xlarge"'}
    groups = {"sagemaker_distribution_instance_groups": '["gpu_group"]'}
    yield tree("two instance groups, distribution on this one", hps={**ddp, **groups}, resources=HETERO)
    yield tree("two instance groups, distribution on the other", hps={**ddp, **groups}, resources=on_cpu)
    yield tree("two instance groups, distribution without groups named", hps=ddp, resources=HETERO)
    yield tree(
        "distribution on both groups, second first",
        hps={**ddp, "sagemaker_distribution_instance_groups": '["gpu_group", "cpu_group"]'},
        resources=HETERO,
    )
    yield tree("torch_distributed on four hosts", hps=ddp, resources=FOUR_HOSTS)
    yield tree("torch_distributed without groups", hps=ddp, resources=without(FOUR_HOSTS, "instance_groups"))
    mpi = {
        **PROGRAM,
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "2",
        "sagemaker_mpi_custom_mpi_options": '"-x FOO --verbose"',
    }
    yield tree("mpi on four hosts", hps=mpi, resources=FOUR_HOSTS)
    yield tree("mpi switched off", hps={**PROGRAM, "sagemaker_mpi_enabled": "false"}, resources=FOUR_HOSTS)
    yield tree(
        "smdistributed model parallel",
        hps={**mpi, "mp_parameters": '{"partitions": 2, "microbatches": 4}'},
        resources=FOUR_HOSTS,
    )
    for flag in ("distributed_dataparallel", "pytorch_ddp", "pytorch_xla_multi_worker", "parameter_server"):
        yield tree(f"sagemaker_{flag}_enabled", hps={**PROGRAM, f"sagemaker_{flag}_enabled": "true"})
    yield tree(
        "every sagemaker_ hyperparameter with a meaning of its own",
        hps={
            "sagemaker_program": '"src/train.py"',
            "sagemaker_submit_directory": '"s3://bucket/job/source/sourcedir.tar.gz"',
            "sagemaker_container_log_level": "10",
            "sagemaker_region": '"eu-central-1"',
            "sagemaker_job_name": '"my-job-2026-11-21"',
            "sagemaker_enable_cloudwatch_metrics": "false",
            "sagemaker_s3_output": '"s3://bucket/out"',
            "default_user_module_name": '"mod"',
            "_tuning_objective_metric": '"val:loss"',
            "sagemaker_estimator_class_name": '"PyTorch"',
            "sagemaker_estimator_module": '"sagemaker.pytorch.estimator"',
            "sagemaker_network_interface_name": '"eth1"',
            "epochs": "2",
        },
    )
    yield tree(
        "the same, raw strings as boto3 users write", hps={"sagemaker_program": "train.py", "sagemaker_job_name": "j1"}
    )
    yield tree("program is a shell script", hps={"sagemaker_program": '"run.sh"'})
    yield tree("program is a package", hps={"sagemaker_program": '"my_package"'})
    yield tree("program in a folder", hps={"sagemaker_program": '"a/b/train.py"'})
    yield tree("SAGEMAKER_PROGRAM beats the hyperparameter", given={"SAGEMAKER_PROGRAM": "other.py"})
    yield tree("SAGEMAKER_PROGRAM alone", hps={"epochs": "1"}, given={"SAGEMAKER_PROGRAM": "other.py"})
    yield tree("SAGEMAKER_SUBMIT_DIRECTORY has no effect", given={"SAGEMAKER_SUBMIT_DIRECTORY": "/elsewhere"})
    yield tree("SAGEMAKER_CONTAINER_LOG_LEVEL has no effect", given={"SAGEMAKER_CONTAINER_LOG_LEVEL": "10"})
    yield tree("SAGEMAKER_TRAINING_MODULE", given={"SAGEMAKER_TRAINING_MODULE": "my_framework.training:main"})
    yield tree("TRAINING_JOB_NAME", given={"TRAINING_JOB_NAME": "my-job"})
    yield tree("AWS_REGION", given={"AWS_REGION": "us-west-2"})
    yield tree("AWS_DEFAULT_REGION", given={"AWS_DEFAULT_REGION": "us-west-2"})
    yield tree("a CURRENT_HOST from before is replaced", given={"CURRENT_HOST": "old"})
    yield tree("a SAGEMAKER_JOB_NAME from before is replaced", given={"SAGEMAKER_JOB_NAME": "old"})
    gpus = "".join(f"GPU {n}: NVIDIA A100-SXM4-40GB (UUID: GPU-{n})\n" for n in range(8))
    yield tree("eight GPUs", tools={"nvidia-smi": gpus})
    neurons = [{"neuron_device": n, "nc_count": 2, "memory_size": 34359738368} for n in range(16)]
    trn1 = {**ONE_HOST, "current_instance_type": "ml.trn1.32xlarge"}
    yield tree("sixteen Neuron devices", resources=trn1, tools={"neuron-ls": json.dumps(neurons)})
    yield tree("trn2.48xlarge", resources={**ONE_HOST, "current_instance_type": "ml.trn2.48xlarge"})
    topology = [{"hostName": "algo-1", "capacityUnitId": "cu-1"}, {"hostName": "algo-2", "capacityUnitId": "cu-2"}]
    yield tree("a topology", resources={**FOUR_HOSTS, "topology": topology})
    yield tree("an empty topology", resources={**FOUR_HOSTS, "topology": []})
    yield tree("a group list with no groups", resources={**ONE_HOST, "instance_groups": []})
    yield tree("a current group that is not in the list", resources={**HETERO, "current_group_name": "other"})
    yield tree("unknown fields are passed through", resources={**ONE_HOST, "new_field": {"a": [1]}})
    yield tree("no hosts", resources=without(ONE_HOST, "hosts"))
    yield tree("an empty list of hosts", resources={**ONE_HOST, "hosts": [], "instance_groups": []})
    yield tree("no current host", resources=without(ONE_HOST, "current_host"))
    yield tree("hyperparameters.json is missing", leave_out=("hyperparameters.json",))
    yield tree("resourceconfig.json is missing", leave_out=("resourceconfig.json",))
    yield tree("inputdataconfig.json is missing", leave_out=("inputdataconfig.json",))
    yield tree("a job name that reads as a number", hps={**PROGRAM, "sagemaker_job_name": "123"})
    yield tree("a log level that is a word", hps={**PROGRAM, "sagemaker_container_log_level": '"INFO"'})
    yield tree("a program that reads as a number", hps={"sagemaker_program": "123"})


# --- asking the peer -------------------------------------------------------------------------------------------------


def observe_argv() -> list[dict[str, Any]]:
    """Runs in the peer's process: every argv case in turn in this process's base folder."""
    from sagemaker_training import environment

    results = []
    for case in argv_cases():
        Path(environment.hyperparameters_file_dir).write_text(json.dumps(case["raw"]))
        env = environment.Environment()
        hp_env = {key: value for key, value in env.to_env_vars().items() if key.startswith("SM_HP_")}
        results.append({**case, "argv": env.to_cmd_args(), "hp_env": hp_env})
    return results


def observe_environment() -> dict[str, Any]:
    """Runs in the peer's process: the job of this process's base folder."""
    before = dict(os.environ)
    from sagemaker_training import environment

    try:
        made = environment.Environment().to_env_vars()
    except Exception as error:
        return {"error": type(error).__name__}
    changed = {key: value for key, value in os.environ.items() if before.get(key) != value}
    return {"sm": made, "set": changed}


OBSERVERS = {"argv": observe_argv, "environment": observe_environment}


def ask(observer: str, case: dict[str, Any]) -> Any:
    """Runs one observer in a fresh process, on a fresh job tree, with no variables but the case's own."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        base, tools = Path(folder, "opt", "ml"), Path(folder, "tools")
        config = base / "input" / "config"
        for path in (config, tools, Path(folder, "home")):
            path.mkdir(parents=True)
        for name, content in case["files"].items():
            (config / name).write_text(json.dumps(content))
        for needed in ("sh", "which", "cat"):  # the peer looks for programs with `which`
            (tools / needed).symlink_to(shutil.which(needed) or needed)
        for name, output in case["tools"].items():
            (tools / f"{name}.out").write_text(output)
            (tools / name).write_text(f"#!/bin/sh\nexec cat '{tools}/{name}.out'\n")
            (tools / name).chmod(0o755)
        environ = {"SAGEMAKER_BASE_DIR": str(base), "PATH": str(tools), "HOME": f"{folder}/home", **case["given"]}
        process = subprocess.run(
            [sys.executable, __file__, "--observe", observer], env=environ, stdout=subprocess.PIPE, check=True
        )
        return replace_text(json.loads(process.stdout), str(base), "{base}")


def replace_text(value: Any, old: str, new: str) -> Any:
    """`value` with every `old` in its texts (at any depth) replaced by `new`."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [replace_text(item, old, new) for item in value]
    if isinstance(value, dict):
        return {key: replace_text(item, old, new) for key, item in value.items()}
    return value


def parsed(text: str) -> Any:
    """A canonical JSON list or object as the value it means; any other text (or one with NaN in it) as it is."""
    if not text.startswith(("{", "[")):
        return text
    try:
        value = json.loads(text)
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return text
    return value if canonical == text else text


def without_machine(variables: dict[str, Any]) -> dict[str, Any]:
    """The variables with this machine's number of CPUs taken out."""
    variables["SM_NUM_CPUS"] = "{cpus}"
    if isinstance(variables["SM_TRAINING_ENV"], dict):
        variables["SM_TRAINING_ENV"]["num_cpus"] = "{cpus}"
    else:
        variables["SM_TRAINING_ENV"] = variables["SM_TRAINING_ENV"].replace(
            f'"num_cpus":{os.cpu_count()},', '"num_cpus":"{cpus}",'
        )
    return variables


def record_argv() -> list[dict[str, Any]]:
    cases = ask("argv", tree("argv"))
    for case in cases:
        case["hp_env"] = {key: parsed(value) for key, value in case["hp_env"].items()}
    return cases


def record_environment() -> list[dict[str, Any]]:
    recorded = []
    for case in environment_cases():
        seen = ask("environment", case)
        if "sm" in seen:
            seen["sm"] = without_machine({key: parsed(value) for key, value in sorted(seen["sm"].items())})
        recorded.append({**case, **seen})
        print(f"  {case['name']}", file=sys.stderr)
    return recorded


def write(name: str, cases: list[dict[str, Any]]) -> None:
    """Writes one golden file, a case a line, so that a change shows as a line in a diff."""
    head = json.dumps({"peer": f"{PEER} {PEER_VERSION}", "made_by": "tests/unit/contract/make_golden.py"})[:-1]
    lines = ",\n".join(json.dumps(case, ensure_ascii=True, allow_nan=False, separators=(",", ":")) for case in cases)
    path = GOLDEN / name
    path.write_text(f'{head}, "cases": [\n{lines}\n]}}\n')
    print(f"{path.name}: {len(cases)} cases, {path.stat().st_size} bytes", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--observe", choices=OBSERVERS, help=argparse.SUPPRESS)
    observer = parser.parse_args().observe
    if observer:
        # Only the answer may be on stdout: the peer logs to stderr, and a stray print would spoil the JSON loudly.
        print(json.dumps(OBSERVERS[observer]()))
        return
    try:
        version = importlib.metadata.version(PEER)
    except importlib.metadata.PackageNotFoundError:
        version = None
    if version != PEER_VERSION:
        sys.exit(f"make_golden.py: run it with a Python that has {PEER}=={PEER_VERSION} (this one has: {version}).")
    GOLDEN.mkdir(exist_ok=True)
    write("argv.json", record_argv())
    write("environment.json", record_environment())


if __name__ == "__main__":
    main()
