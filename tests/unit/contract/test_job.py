"""Reading a job: defaults, every config file, variables instead of files, and all problems at once."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import pytest

from support.offenders import check_each
from trainshed.base.errors import EXIT_JOB, JobError, NoJobError
from trainshed.contract.config import (
    Channel,
    CheckpointConfig,
    DebugHookConfig,
    InstanceGroup,
    MetricDefinition,
    ProfilerConfig,
    ResourceConfig,
    TensorboardConfig,
)
from trainshed.contract.job import Distribution

CONFIG = "input/config"


def problems_of(tree: Any, **environ: str) -> list[str]:
    """The problems of a job that cannot be read, a line each, the folder's path left out."""
    with pytest.raises(JobError) as raised:
        tree.read(**environ)
    assert raised.value.exit_code == EXIT_JOB
    return [problem.line().replace(f"{tree.base}/{CONFIG}/", "") for problem in raised.value.problems]


# --- nothing said ----------------------------------------------------------------------------------------------------


def test_an_empty_folder_holds_no_job(job_tree: Any) -> None:
    with pytest.raises(NoJobError, match="there is no job") as raised:
        job_tree.read()

    assert raised.value.exit_code == EXIT_JOB


def test_a_folder_that_is_closed_to_this_user_is_said_to_be(job_tree: Any) -> None:
    job_tree.configure()
    job_tree.base.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        (problem,) = problems_of(job_tree)
        user = os.geteuid()
    finally:
        if root:
            os.seteuid(0)
        job_tree.base.chmod(0o755)
    told = f"is closed to this user (uid {user}) (chown it to this user, or run as its owner: --user UID)"
    assert problem == f"{job_tree.base}: {told}"


@pytest.mark.parametrize("sign", ["config folder", "code", "code channel", "SAGEMAKER_PROGRAM", "SM_ENTRY_SCRIPT", "SM_HPS"])
def test_any_sign_of_a_job_makes_one(sign: str, job_tree: Any) -> None:
    environ = {}
    if sign == "config folder":
        job_tree.configure()
    elif sign == "code":
        job_tree.code("train.py")
    elif sign == "code channel":
        job_tree.write("input/data/code/train.py", "")
    else:
        environ[sign] = "{}" if sign == "SM_HPS" else "train.py"

    assert job_tree.read(**environ).paths.base == str(job_tree.base)


def test_without_any_file_everything_has_its_default(job_tree: Any) -> None:
    job = job_tree.configure().read()

    assert (job.name, job.program, job.source, job.region, job.log_level) == ("", "", "", "", 20)
    assert job.hyperparameters.user == {} and job.channels == () and job.warnings == ()
    assert job.resources == ResourceConfig() and not job.resources.given
    assert job.resources.hosts == ("algo-1",) and job.resources.current_instance_type == "local"
    assert job.distribution == Distribution(kind="script", asked_by="", processes_per_host=0, groups=())
    assert (job.checkpoint, job.tensorboard, job.debug_hook, job.profiler) == (None, None, None, None)
    assert job.metric_definitions == () and set(job.opaque.values()) == {None}


@pytest.mark.parametrize("content", [b"", b" \n\t", b"\0" * 16, b"null", b"\xef\xbb\xbf", b"\xef\xbb\xbf  "])
def test_blank_files_are_as_good_as_none(content: bytes, job_tree: Any) -> None:
    names = ("hyperparameters", "resources", "channels", "checkpoint", "metrics", "tensorboard", "debug_hook", "profiler")
    blank = job_tree.configure(**dict.fromkeys(names, content)).read()

    assert blank.hyperparameters.user == {} and blank.channels == () and blank.resources == ResourceConfig()
    assert (blank.checkpoint, blank.tensorboard, blank.debug_hook, blank.profiler) == (None, None, None, None)


def test_a_byte_order_mark_is_no_part_of_the_text(job_tree: Any) -> None:
    job_tree.configure(hyperparameters=b'\xef\xbb\xbf{"epochs": "3"}')

    assert job_tree.read().hyperparameters.user == {"epochs": 3}


# --- each file -------------------------------------------------------------------------------------------------------


def test_a_whole_job(job_tree: Any) -> None:
    job_tree.configure(
        hyperparameters={
            "sagemaker_program": '"train.py"',
            "sagemaker_submit_directory": "s3://bucket/source.tar.gz",
            "sagemaker_job_name": "my-job",
            "sagemaker_region": "eu-west-1",
            "sagemaker_container_log_level": "10",
            "epochs": "3",
        }
    )
    job = job_tree.read()

    assert (job.program, job.source, job.name) == ("train.py", "s3://bucket/source.tar.gz", "my-job")
    assert (job.region, job.log_level, job.hyperparameters.user) == ("eu-west-1", 10, {"epochs": 3})


def test_channels_have_a_path_and_every_field(job_tree: Any) -> None:
    (job_tree.base / "input/data/train").mkdir(parents=True)
    job_tree.write("input/data/train-manifest", "[]")
    fields = {
        "ContentType": "text/csv",
        "TrainingInputMode": "fastfile",
        "S3DistributionType": "ShardedByS3Key",
        "RecordWrapperType": "RecordIO",
        "CompressionType": "Gzip",
        "Shuffle": "unknown fields are let through",
    }
    job = job_tree.configure(channels={"train": fields, "pipe": {"TrainingInputMode": "Pipe"}}).read()

    data = f"{job_tree.base}/input/data"
    assert job.channel("train") == Channel(
        name="train",
        path=f"{data}/train",
        input_mode="FastFile",
        content_type="text/csv",
        distribution="ShardedByS3Key",
        record_wrapper="RecordIO",
        compression="Gzip",
        manifest=f"{data}/train-manifest",
    )
    assert job.channel("pipe") == Channel(name="pipe", path=f"{data}/pipe", input_mode="Pipe")
    assert [channel.name for channel in job.channels] == ["pipe", "train"] and job.channel("other") is None
    assert job.warnings == () and job.input_data_config["train"] == fields


def test_folders_are_channels_where_no_file_says_otherwise(job_tree: Any) -> None:
    for name in ("train", "validation"):
        (job_tree.base / "input/data" / name).mkdir(parents=True)

    assert [channel.name for channel in job_tree.configure().read().channels] == ["train", "validation"]
    assert job_tree.configure(channels={}).read().channels == ()


def test_a_channel_without_its_folder_gets_a_warning_with_the_nearest_folder(job_tree: Any) -> None:
    (job_tree.base / "input/data/training").mkdir(parents=True)
    job = job_tree.configure(channels={"trainin": {}}).read()

    (warning,) = job.warnings
    assert "channel 'trainin'" in warning and "does not exist" in warning and "did you mean 'training'?" in warning


def test_the_cluster_as_the_platform_says_it(job_tree: Any) -> None:
    value = {
        "current_host": "algo-2",
        "hosts": ["algo-1", "algo-2"],
        "current_instance_type": "ml.p4d.24xlarge",
        "current_group_name": "gpus",
        "instance_groups": [
            {"instance_group_name": "gpus", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-2", "algo-1"]}
        ],
        "network_interface_name": "eth1",
        "topology": [{"hostName": "algo-1", "capacityUnitId": "cu"}],
        "new_field": 1,
    }
    resources = job_tree.configure(resources=value).read().resources

    assert resources == ResourceConfig(
        current_host="algo-2",
        hosts=("algo-1", "algo-2"),
        current_instance_type="ml.p4d.24xlarge",
        current_group_name="gpus",
        instance_groups=(InstanceGroup("gpus", "ml.p4d.24xlarge", ("algo-2", "algo-1")),),
        network_interface_name="eth1",
        topology=[{"hostName": "algo-1", "capacityUnitId": "cu"}],
        raw=value,
        given=True,
    )
    assert resources.group_hosts("gpus") == ("algo-2", "algo-1") and resources.group_hosts("other") == ()


@pytest.mark.parametrize("shape", [{"a": ["b"]}, [["x"]], "text", 7, True])
def test_a_topology_of_a_shape_unknown_so_far_is_handed_on(shape: Any, job_tree: Any) -> None:
    assert job_tree.configure(resources=job_tree.hosts(1, topology=shape)).read().resources.topology == shape


@pytest.mark.parametrize("nothing", [None, [], {}, "", 0, "a\0b", "\ud800"])
def test_a_topology_that_says_nothing_or_cannot_be_handed_on_is_left_out(nothing: Any, job_tree: Any) -> None:
    assert job_tree.configure(resources=job_tree.hosts(1, topology=nothing)).read().resources.topology == ()


@pytest.mark.parametrize("name", ["current_group_name", "current_instance_group"])
def test_both_names_of_the_current_group_are_read(name: str, job_tree: Any) -> None:
    groups = [{"instance_group_name": "g", "instance_type": "t", "hosts": ["algo-1"]}]
    job = job_tree.configure(resources=job_tree.hosts(1, instance_groups=groups, **{name: "g"})).read()

    assert job.resources.current_group_name == "g"


def test_a_current_host_alone_is_a_cluster_of_one(job_tree: Any) -> None:
    resources = job_tree.configure(resources={"current_host": "worker-7"}).read().resources

    assert resources.hosts == ("worker-7",) and resources.given


def test_the_checkpoint_folder_is_where_the_platform_says(job_tree: Any) -> None:
    job = job_tree.configure(checkpoint={"S3Uri": "s3://b/c", "LocalPath": "/ckpt"}).read()
    assert job.checkpoint == CheckpointConfig(local_path="/ckpt", s3_uri="s3://b/c")
    assert job.paths.checkpoints == "/ckpt"

    job = job_tree.configure(checkpoint={"S3Uri": "s3://b/c"}).read()
    assert job.paths.checkpoints == f"{job_tree.base}/checkpoints"

    elsewhere = job_tree.write("elsewhere.json", {"LocalPath": "/other"})
    assert job_tree.read(CHECKPOINT_CONFIG_FILE_PATH=str(elsewhere)).paths.checkpoints == "/other"


def test_a_checkpoint_folder_must_be_absolute(job_tree: Any) -> None:
    job_tree.configure(checkpoint={"LocalPath": "checkpoints"})

    assert problems_of(job_tree) == ["checkpointconfig.json: LocalPath = checkpoints: must be an absolute path"]


@pytest.mark.parametrize("value", [[{"Name": "loss", "Regex": "loss=(.*)"}], {"loss": "loss=(.*)"}])
def test_metric_definitions_come_in_two_forms(value: Any, job_tree: Any) -> None:
    assert job_tree.configure(metrics=value).read().metric_definitions == (MetricDefinition("loss", "loss=(.*)"),)


def test_a_regex_that_only_java_knows_is_left_out_with_a_warning(job_tree: Any) -> None:
    job = job_tree.configure(metrics=[{"Name": "loss", "Regex": "loss=(?<v>.*)\\h"}, {"Name": "a", "Regex": "a"}]).read()

    assert [definition.name for definition in job.metric_definitions] == ["a"]
    assert "metric 'loss': ignored, because Python cannot compile its regex" in job.warnings[0]


def test_the_debuggers_files_are_read_in_any_case_of_letters(job_tree: Any) -> None:
    job = job_tree.configure(
        tensorboard={"LocalPath": "/tb", "S3OutputPath": "s3://b/tb"},
        debug_hook={
            "LocalPath": "/debug",
            "S3OutputPath": "s3://b/d",
            "HookParameters": {"save_interval": "10"},
            "CollectionConfigurations": [{"CollectionName": "losses"}],
        },
        profiler={"ProfilingParameters": {"ProfilerEnabled": False, "LocalPath": "/profile"}},
    ).read()

    assert job.tensorboard == TensorboardConfig("/tb", "s3://b/tb")
    assert job.debug_hook == DebugHookConfig("/debug", "s3://b/d", {"save_interval": "10"}, ({"CollectionName": "losses"},))
    assert job.profiler == ProfilerConfig("/profile", False, {"ProfilerEnabled": False, "LocalPath": "/profile"})
    lower = job_tree.configure(tensorboard={"localpath": "/tb"}, debug_hook={}, profiler={}).read()
    assert lower.tensorboard.local_path == "/tb"
    assert lower.debug_hook.local_path == f"{job_tree.base}/output/tensors" and lower.profiler.enabled


def test_profiling_parameters_may_be_a_string_that_spells_an_object(job_tree: Any) -> None:
    job = job_tree.configure(profiler={"ProfilingParameters": json.dumps({"localpath": "/p"})}).read()

    assert job.profiler.local_path == "/p"


def test_the_profilers_interval_and_its_switch_are_read(job_tree: Any) -> None:
    job = job_tree.configure(profiler={"ProfilingIntervalInMilliseconds": "200", "DisableProfiler": True}).read()

    assert (job.profiler.interval, job.profiler.enabled) == (0.2, False)
    assert job.profiler.local_path == f"{job_tree.base}/output/profiler"


@pytest.mark.parametrize("value", ["often", 99, 60_001, [1], -1, "9" * 400])
def test_an_interval_that_cannot_be_meant_is_ignored_with_a_warning(value: Any, job_tree: Any) -> None:
    job = job_tree.configure(profiler={"ProfilingIntervalInMilliseconds": value}).read()

    assert job.profiler.interval == 0.0
    assert "is ignored: it must be from 100 to 60000" in job.warnings[0]


def test_files_that_nobody_reads_are_kept_as_they_are(job_tree: Any) -> None:
    job_tree.write(f"{CONFIG}/trainingjobconfig.json", {"TrainingJobName": "x"})

    assert job_tree.read().opaque["trainingjobconfig.json"] == {"TrainingJobName": "x"}


# --- variables instead of files --------------------------------------------------------------------------------------


def test_variables_describe_a_job_without_any_file(job_tree: Any) -> None:
    job = job_tree.read(
        SM_HPS='{"sagemaker_program": "train.py", "epochs": "3", "lr": 0.10}',
        SM_HOSTS='["a-1", "a-2"]',
        SM_CURRENT_HOST="a-2",
        SM_CURRENT_INSTANCE_TYPE="ml.m5.large",
        SM_CURRENT_INSTANCE_GROUP="g",
        SM_NETWORK_INTERFACE_NAME="eth7",
        SM_CHANNEL_TRAIN="/data/train",
        SM_CHANNEL_="/nowhere",
        TRAINING_JOB_NAME="named",
        AWS_REGION="us-west-2",
    )

    assert job.program == "train.py" and job.hyperparameters.user["epochs"] == 3
    assert str(job.hyperparameters.user["lr"]) == "0.10"
    assert job.resources.hosts == ("a-1", "a-2") and job.resources.current_host == "a-2" and job.resources.given
    assert job.resources.current_instance_type == "ml.m5.large" and job.resources.current_group_name == "g"
    assert job.resources.network_interface_name == "eth7"
    assert [(channel.name, channel.path) for channel in job.channels] == [("train", "/data/train")]
    assert job.name == "named" and job.region == "us-west-2"


def test_single_hyperparameter_variables_stand_in_for_the_file(job_tree: Any) -> None:
    job = job_tree.read(SAGEMAKER_PROGRAM="train.py", SM_HP_EPOCHS="3", SM_HP_LR="1e-3", SM_HP_TRAINSHED_ARGV="flags")

    assert job.hyperparameters.user == {"epochs": 3, "lr": 0.001} and job.settings.argv == "flags"


def test_config_files_as_variables(job_tree: Any) -> None:
    job = job_tree.read(
        SAGEMAKER_PROGRAM="train.py",
        SM_RESOURCE_CONFIG=json.dumps({"current_host": "a", "hosts": ["a"], "current_instance_type": "x"}),
        SM_INPUT_DATA_CONFIG=json.dumps({"stream": {"TrainingInputMode": "Pipe"}}),
    )

    assert job.resources.current_instance_type == "x"
    assert [(channel.name, channel.input_mode) for channel in job.channels] == [("stream", "Pipe")]


@pytest.mark.parametrize("text", ["a-1,a-2", "a-1, a-2,", '["a-1", "a-2"]', ' ["a-1","a-2"]'])
def test_hosts_may_be_a_list_or_words_with_commas(text: str, job_tree: Any) -> None:
    job = job_tree.read(SAGEMAKER_PROGRAM="train.py", SM_HOSTS=text, SM_CURRENT_HOST="a-1")

    assert job.resources.hosts == ("a-1", "a-2")


def test_files_win_over_variables(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"epochs": 1}, resources=job_tree.hosts(2), channels={})
    job = job_tree.read(SM_HPS='{"epochs": 9}', SM_HP_LR="1", SM_HOSTS='["x"]', SM_CHANNEL_A="/a", SM_RESOURCE_CONFIG="{}")

    assert job.hyperparameters.user == {"epochs": 1} and job.channels == ()
    assert job.resources.hosts == ("algo-1", "algo-2")


def test_a_problem_in_a_variable_names_the_variable(job_tree: Any) -> None:
    lines = problems_of(
        job_tree,
        SAGEMAKER_PROGRAM="train.py",
        SM_HPS='{"sagemaker_program": 1}',
        SM_HOSTS='["a", 1]',
        SM_INPUT_DATA_CONFIG='{"train": {"TrainingInputMode": "Fil"}}',
        SM_MODEL_DIR="model",
    )

    assert lines == [
        "variable SM_MODEL_DIR = model: must be an absolute path",
        "variable SM_INPUT_DATA_CONFIG: train.TrainingInputMode = Fil: must be one of File, Pipe, FastFile "
        "(did you mean 'File'?)",
        "variables SM_HOSTS, SM_CURRENT_HOST: hosts = ['a', 1]: must be a list of strings",
        "variable SM_HPS: sagemaker_program = 1: must be a string",
    ]
    assert problems_of(job_tree, SAGEMAKER_PROGRAM="x", SM_HP_TRAINSHED_ARGV="y")[0].startswith(
        "variables SM_HP_*: trainshed_argv = y: must be one of"
    )


@pytest.mark.parametrize(
    ("hyperparameters", "environ", "program"),
    [
        ({"sagemaker_program": "hp.py"}, {}, "hp.py"),
        ({"sagemaker_program": "hp.py"}, {"SAGEMAKER_PROGRAM": "variable.py"}, "variable.py"),
        ({"sagemaker_program": "hp.py", "trainshed_program": "ours.py"}, {}, "hp.py"),
        ({"trainshed_program": "ours.py"}, {"SM_ENTRY_SCRIPT": "v3.py"}, "ours.py"),
        ({}, {"SM_ENTRY_SCRIPT": "v3.py", "SM_USER_ENTRY_POINT": "peer.py"}, "v3.py"),
        ({}, {"SM_USER_ENTRY_POINT": "peer.py"}, "peer.py"),
        ({}, {"SAGEMAKER_PROGRAM": ""}, ""),
    ],
)
def test_who_names_the_program(
    hyperparameters: dict[str, str], environ: dict[str, str], program: str, job_tree: Any
) -> None:
    assert job_tree.configure(hyperparameters=hyperparameters).read(**environ).program == program


@pytest.mark.parametrize(
    ("environ", "region"),
    [
        ({"AWS_REGION": "a", "SAGEMAKER_REGION": "b", "AWS_DEFAULT_REGION": "d"}, "d"),
        ({"AWS_REGION": "a", "SAGEMAKER_REGION": "b"}, "b"),
        ({"AWS_REGION": "a"}, "a"),
        ({}, ""),
    ],
)
def test_who_names_the_region(environ: dict[str, str], region: str, job_tree: Any) -> None:
    assert job_tree.configure(hyperparameters={}).read(**environ).region == region
    assert job_tree.configure(hyperparameters={"sagemaker_region": "hp"}).read(**environ).region == "hp"


@pytest.mark.parametrize(("value", "level"), [("INFO", 20), ("debug", 10), ("30", 30), ("1e1", 10), ("15.7", 15), (20, 20)])
def test_log_levels_are_numbers_or_words(value: Any, level: int, job_tree: Any) -> None:
    assert job_tree.configure(hyperparameters={"sagemaker_container_log_level": value}).read().log_level == level
    assert job_tree.configure(hyperparameters={}).read(SAGEMAKER_CONTAINER_LOG_LEVEL=str(value)).log_level == level


@pytest.mark.parametrize("value", ["LOUD", "NaN", "1e999", "[]"])
def test_what_is_no_log_level_means_info_and_a_warning(value: str, job_tree: Any) -> None:
    job = job_tree.configure(hyperparameters={"sagemaker_container_log_level": value}).read()

    assert job.log_level == 20 and "is not a log level" in job.warnings[0]


def test_the_base_folder_moves_with_its_variable_and_folders_with_theirs(job_tree: Any) -> None:
    paths = job_tree.configure().read().paths
    base = str(job_tree.base)
    assert (paths.base, paths.model, paths.output, paths.output_data) == (
        base,
        f"{base}/model",
        f"{base}/output",
        f"{base}/output/data",
    )
    assert paths.intermediate == f"{base}/output/intermediate" and paths.checkpoints == f"{base}/checkpoints"

    paths = job_tree.read(SM_MODEL_DIR="/m", SM_OUTPUT_DIR="/o").paths
    assert (paths.model, paths.output, paths.failure, paths.output_data) == ("/m", "/o", "/o/failure", "/o/data")
    assert job_tree.read(SM_OUTPUT_DATA_DIR="/d").paths.logs == "/d/logs"


def test_the_base_folder_is_opt_ml_by_default() -> None:
    from trainshed.contract.paths import Paths

    paths = Paths.from_environment({})
    assert (paths.base, paths.config, paths.code) == ("/opt/ml", "/opt/ml/input/config", "/opt/ml/code")
    assert (paths.failure, paths.success) == ("/opt/ml/output/failure", "/opt/ml/output/success")
    assert paths.metrics == "/opt/ml/output/metrics/sagemaker"


def test_a_relative_base_folder_is_made_absolute(job_tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job_tree.configure()
    monkeypatch.chdir(job_tree.base.parent)

    assert job_tree.read(SAGEMAKER_BASE_DIR=job_tree.base.name).paths.base == os.path.realpath(job_tree.base)


# --- distributions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "kind"),
    [
        ("sagemaker_mpi_enabled", "mpi"),
        ("sagemaker_pytorch_ddp_enabled", "torchrun"),
        ("sagemaker_torch_distributed_enabled", "torchrun"),
        ("sagemaker_distributed_dataparallel_enabled", "torchrun"),
        ("sagemaker_pytorch_xla_multi_worker_enabled", "xla"),
        ("sagemaker_multi_worker_mirrored_strategy_enabled", "tensorflow"),
    ],
)
def test_the_platforms_flags_choose_the_distribution(flag: str, kind: str, job_tree: Any) -> None:
    def check(value: str) -> None:
        distribution = job_tree.configure(hyperparameters={flag: value}).read().distribution
        on = value in ("true", "True", "1")
        assert (distribution.kind, distribution.asked_by) == ((kind, flag) if on else ("script", ""))

    check_each(["true", "True", "1", "false", "", "null"], check)


def test_our_own_name_for_the_distribution_wins(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"sagemaker_mpi_enabled": "true", "trainshed_distribution": "torchrun"})

    assert job_tree.read().distribution.kind == "torchrun"


@pytest.mark.parametrize(
    ("hyperparameters", "variable", "seen"),
    [
        ({"sagemaker_mpi_num_of_processes_per_host": "2"}, "TRAINSHED_PROCESSES_PER_HOST=1", ("script", 2, "")),
        ({"sagemaker_mpi_enabled": "true"}, "TRAINSHED_DISTRIBUTION=torchrun", ("mpi", 0, "")),
        ({"sagemaker_training_compiler_enabled": "false"}, "TRAINSHED_COMPILER=inductor", ("script", 0, "off")),
    ],
)
def test_a_hyperparameter_of_the_job_overrides_a_variable_that_decides_the_same_and_says_so(
    hyperparameters: dict[str, str], variable: str, seen: tuple[str, int, str], job_tree: Any
) -> None:
    name, _, value = variable.partition("=")
    job = job_tree.configure(hyperparameters=hyperparameters).read(**{name: value})

    assert (job.distribution.kind, job.distribution.processes_per_host, job.compiler.backend) == seen
    (warning,) = job.warnings
    assert warning.startswith(
        f"ignoring variable {name} = {value}: the job's hyperparameter {next(iter(hyperparameters))} = "
    )


def test_our_own_hyperparameter_overrides_the_platforms_whatever_the_variable_says(job_tree: Any) -> None:
    both = {"sagemaker_mpi_num_of_processes_per_host": "2", "trainshed_processes_per_host": "3"}
    job = job_tree.configure(hyperparameters=both).read(TRAINSHED_PROCESSES_PER_HOST="4")

    assert job.distribution.processes_per_host == 3 and not job.warnings


@pytest.mark.parametrize(
    ("hyperparameters", "variable"),
    [
        ({}, "TRAINSHED_PROCESSES_PER_HOST=4"),
        ({"sagemaker_mpi_num_of_processes_per_host": "4"}, "TRAINSHED_PROCESSES_PER_HOST=4"),
    ],
)
def test_a_variable_that_contradicts_no_hyperparameter_counts_silently(
    hyperparameters: dict[str, str], variable: str, job_tree: Any
) -> None:
    name, _, value = variable.partition("=")
    job = job_tree.configure(hyperparameters=hyperparameters).read(**{name: value})

    assert job.distribution.processes_per_host == 4 and not job.warnings


@pytest.mark.parametrize(("variable", "warnings"), [("other.py", 1), ("./train.py", 0), ("train.py", 0)])
def test_a_variable_that_overrides_the_jobs_program_is_named(variable: str, warnings: int, job_tree: Any) -> None:
    job = job_tree.configure(hyperparameters={"sagemaker_program": "train.py"}).read(SAGEMAKER_PROGRAM=variable)

    assert job.program == variable
    assert [line for line in job.warnings if "SAGEMAKER_PROGRAM overrides" in line] == list(job.warnings)
    assert len(job.warnings) == warnings


def test_the_first_flag_wins_as_with_the_peer(job_tree: Any) -> None:
    flags = {"sagemaker_torch_distributed_enabled": "true", "sagemaker_mpi_enabled": "true"}

    assert job_tree.configure(hyperparameters=flags).read().distribution.kind == "mpi"


AS_THE_SDK_SENDS_IT = {
    "sagemaker_mpi_enabled": "true",
    "sagemaker_mpi_num_of_processes_per_host": "8",
    "sagemaker_mpi_custom_mpi_options": '"-verbose"',
    "sagemaker_distributed_dataparallel_enabled": "false",
    "sagemaker_instance_type": '"ml.p3.16xlarge"',
    "mp_parameters": '{"partitions": 2, "microbatches": 4, "pipeline": "interleaved", "memory_weight": 0.2, "ddp": true}',
}


def test_mp_parameters_choose_the_pipeline(job_tree: Any) -> None:
    found = job_tree.configure(hyperparameters=AS_THE_SDK_SENDS_IT).read().distribution

    assert (found.kind, found.asked_by, found.processes_per_host) == ("pipeline", "sagemaker_mpi_enabled", 8)
    assert found.pipeline == {
        "partitions": 2, "microbatches": 4, "pipeline": "interleaved", "memory_weight": 0.2, "ddp": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "kind"), [('{"partitions": 2}', "pipeline"), ('{"hybrid_shard_degree": 8}', "torchrun")]
)
def test_with_torchruns_flag_only_parameters_that_name_partitions_do(parameters: str, kind: str, job_tree: Any) -> None:
    flags = {"sagemaker_torch_distributed_enabled": "true", "mp_parameters": parameters}

    assert job_tree.configure(hyperparameters=flags).read().distribution.kind == kind


def test_mp_parameters_of_a_script_alone_are_the_scripts_own(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"mp_parameters": '{"partitions": 2}'})

    assert job_tree.read().distribution.kind == "script"


def test_our_own_pipeline_setting_chooses_it_and_its_entries_win(job_tree: Any) -> None:
    ours = {"trainshed_pipeline": '{"microbatches": 8, "partition_file": "plan.json"}'}
    found = job_tree.configure(hyperparameters=ours).read().distribution
    assert (found.kind, found.asked_by) == ("pipeline", "trainshed_pipeline")

    found = job_tree.configure(hyperparameters={**AS_THE_SDK_SENDS_IT, **ours}).read().distribution
    assert (found.pipeline["partitions"], found.pipeline["microbatches"]) == (2, 8)
    assert found.pipeline["partition_file"] == "plan.json"
    assert job_tree.read(TRAINSHED_PIPELINE='{"microbatches": 2}').distribution.pipeline["microbatches"] == 8


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "mp_parameters",
            '{"microbatch": 2}',
            "mp_parameters: microbatch: not a pipeline setting (did you mean 'microbatches'?)",
        ),
        (
            "mp_parameters",
            '{"partitions": 2, "tensor_parallel_degree": 2}',
            "tensor_parallel_degree together with pipeline_parallel_degree needs prescaled_batch = true",
        ),
        ("mp_parameters", "two", "mp_parameters: must be a JSON object"),
        ("trainshed_pipeline", '{"microbatches": 0}', "trainshed_pipeline: microbatches = 0: must be 1 or more"),
        ("trainshed_pipeline", '{"microbatches": true}', "microbatches = True: not int"),
    ],
)
def test_a_wrong_setting_of_the_pipeline_is_found_before_anything_starts(
    name: str, value: str, line: str, job_tree: Any
) -> None:
    job_tree.configure(hyperparameters={**AS_THE_SDK_SENDS_IT, name: value})

    (found,) = problems_of(job_tree)
    assert line in found


def test_processes_per_host_come_from_either_side_and_ours_wins(job_tree: Any) -> None:
    theirs = {"sagemaker_mpi_num_of_processes_per_host": "4"}

    assert job_tree.configure(hyperparameters=theirs).read().distribution.processes_per_host == 4
    both = {**theirs, "trainshed_processes_per_host": "2"}
    assert job_tree.configure(hyperparameters=both).read().distribution.processes_per_host == 2


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "true", "99999", "[2]"])
def test_a_number_of_processes_is_a_number(value: str, job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"sagemaker_mpi_num_of_processes_per_host": value})

    (line,) = problems_of(job_tree)
    assert "sagemaker_mpi_num_of_processes_per_host" in line and "must be a whole number of at least 1" in line


def groups_of(tree: Any) -> list[dict[str, Any]]:
    return [
        {"instance_group_name": "cpus", "instance_type": "c", "hosts": ["algo-1"]},
        {"instance_group_name": "gpus", "instance_type": "g", "hosts": ["algo-3", "algo-2"]},
    ]


def test_a_distribution_spans_the_groups_that_it_names_else_the_hosts_own(job_tree: Any) -> None:
    resources = job_tree.hosts(3, 2, instance_groups=groups_of(job_tree), current_group_name="gpus")
    asked = {"sagemaker_torch_distributed_enabled": "true"}

    job_tree.configure(resources=resources, hyperparameters=asked)
    assert job_tree.read().distribution.groups == ("gpus",)
    job_tree.configure(hyperparameters={**asked, "sagemaker_distribution_instance_groups": '["gpus", "cpus"]'})
    told = job_tree.read()
    assert told.distribution.groups == ("gpus", "cpus")
    (warning,) = told.warnings
    assert warning.startswith("hosts of several types (c, g) take part") and "trainshed_processes_per_host" in warning
    job_tree.configure(
        hyperparameters={
            **asked,
            "sagemaker_distribution_instance_groups": '["gpus", "cpus"]',
            "trainshed_processes_per_host": "1",
        }
    )
    assert job_tree.read().warnings == ()


def test_an_unknown_group_is_refused_with_the_nearest(job_tree: Any) -> None:
    job_tree.configure(
        resources=job_tree.hosts(3, 2, instance_groups=groups_of(job_tree), current_group_name="gpus"),
        hyperparameters={"sagemaker_distribution_instance_groups": '["gpu"]'},
    )

    assert problems_of(job_tree) == [
        "hyperparameters.json: sagemaker_distribution_instance_groups = gpu: is not one of the job's groups (cpus, gpus) "
        "(did you mean 'gpus'?)"
    ]


def test_the_platforms_flag_asks_for_parameter_servers_after_all_others(job_tree: Any) -> None:
    name = "sagemaker_parameter_server_enabled"
    job = job_tree.configure(hyperparameters={name: "true"}).read()

    assert (job.distribution.kind, job.distribution.asked_by, job.warnings) == ("parameter_server", name, ())
    assert job_tree.configure(hyperparameters={name: "false"}).read().distribution.kind == "script"
    both = {name: "true", "sagemaker_mpi_enabled": "true"}
    assert job_tree.configure(hyperparameters=both).read().distribution.kind == "mpi"


def test_roles_of_another_distribution_are_told(job_tree: Any) -> None:
    given = {"trainshed_distribution": "torchrun", "trainshed_roles": '{"worker": 2}', "trainshed_servers": "script"}

    assert job_tree.configure(hyperparameters=given).read().warnings == (
        "trainshed_roles is for the distribution parameter_server; this is torchrun",
        "trainshed_servers is for the distribution parameter_server; this is torchrun",
    )


def test_a_misspelt_hyperparameter_of_the_platform_gets_a_warning(job_tree: Any) -> None:
    job = job_tree.configure(hyperparameters={"sagemaker_progam": "train.py", "sagemaker_x": "1"}).read()

    assert job.warnings == (
        "hyperparameter 'sagemaker_progam' is not known to any toolkit: did you mean 'sagemaker_program'?",
    )


# --- problems --------------------------------------------------------------------------------------------------------


def test_all_problems_are_told_at_once_each_with_its_place(job_tree: Any) -> None:
    job_tree.configure(
        hyperparameters={"sagemaker_program": "[1]", "trainshed_argv": "jsn", "bad": "a\0b"},
        channels={"train": {"TrainingInputMode": "Fille"}, "a b": {}, "test": []},
        resources={
            "current_host": "algo-x",
            "hosts": ["algo-1", "algo-1"],
            "instance_groups": [{"hosts": ["algo-9"]}, 7],
            "current_group_name": ["g"],
        },
        checkpoint=[1],
        metrics=[{"Name": "loss"}, "x"],
        tensorboard='"text"',
        debug_hook={"CollectionConfigurations": [1], "HookParameters": []},
        profiler={"ProfilingParameters": "{"},
    )

    lines = problems_of(job_tree)

    assert lines == [
        "hyperparameters.json: bad: contains a NUL character, which cannot be passed on a command line",
        "hyperparameters.json: trainshed_argv = jsn: must be one of sagemaker, json, flags (did you mean 'json'?)",
        "inputdataconfig.json: a b: is not a valid channel name: up to 64 letters, digits, '.', '_' and '-'",
        "inputdataconfig.json: test = []: must be an object, not a list",
        "inputdataconfig.json: train.TrainingInputMode = Fille: must be one of File, Pipe, FastFile (did you mean 'File'?)",
        "resourceconfig.json: hosts = algo-1: appears more than once",
        "resourceconfig.json: instance_groups[0].instance_group_name: is missing",
        "resourceconfig.json: instance_groups[0].hosts = algo-9: is not among the hosts of the job (did you mean 'algo-1'?)",
        "resourceconfig.json: instance_groups[1] = 7: must be an object, not a number",
        "resourceconfig.json: instance_groups[1].instance_group_name: is missing",
        "resourceconfig.json: current_group_name = ['g']: must be a string, not a list",
        "checkpointconfig.json = [1]: must be an object, not a list",
        "hyperparameters.json: sagemaker_program = [1]: must be a string",
        "metric-definition-regex.json: [0].Regex: is missing",
        "metric-definition-regex.json: [1] = x: must be an object, not a string",
        "metric-definition-regex.json: [1].Name: is missing",
        "tensorboardoutputconfig.json = text: must be an object, not a string",
        "debughookconfig.json: CollectionConfigurations[0] = 1: must be an object, not a number",
        "debughookconfig.json: hookparameters = []: must be an object, not a list",
        "profilerconfig.json: profilingparameters = {: is not JSON: Expecting property name enclosed in double quotes "
        "at line 1 column 2",
    ]


def test_the_error_says_how_many_problems_there_are_and_lists_them(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"trainshed_argv": "x", "trainshed_engine": "y"})
    with pytest.raises(JobError) as raised:
        job_tree.read()

    assert str(raised.value).startswith("2 problems in the job: ")
    assert raised.value.details.splitlines()[0].startswith("  1. ") and "trainshed_engine" in raised.value.details

    job_tree.configure(hyperparameters={"trainshed_argv": "x"})
    with pytest.raises(JobError, match=r"^the job cannot be read: ") as raised:
        job_tree.read()
    assert raised.value.details == ""


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "current_host",
            "algo-3",
            "current_host = algo-3: is not among the hosts (algo-1, algo-2) (did you mean 'algo-2'?)",
        ),
        ("current_host", "al go", "current_host = al go: is not a valid host name"),
        ("hosts", "algo-1", "hosts = algo-1: must be a list of strings"),
        ("hosts", ["algo-1", "-x"], "hosts = -x: is not a valid host name"),
        ("hosts", ["algo-1", "é"], "hosts = é: is not a valid host name"),
        ("hosts", ["algo-1", None], "hosts = ['algo-1', None]: must be a list of strings"),
        ("instance_groups", {}, "instance_groups = {}: must be a list, not an object"),
        (
            "network_interface_name",
            "a\0",
            "network_interface_name = a\\x00: contains a NUL character or an unpaired surrogate",
        ),
    ],
)
def test_wrong_fields_of_the_cluster(name: str, value: Any, line: str, job_tree: Any) -> None:
    job_tree.configure(resources=job_tree.hosts(2, **{name: value}))

    assert problems_of(job_tree) == [f"resourceconfig.json: {line}"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{\0}\0", "is not UTF-8 text (byte 0)"),
        (b"not json", "is not JSON: Expecting value at line 1 column 1"),
        (b'{\n "a": 1,\n}', "is not JSON: "),
        (b"[" * 100_000, "is nested too deeply, in more than 100 levels"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "is nested too deeply, in more than 100 levels"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not usable JSON: "),
        (b"[]", "must be an object"),
        (b'"text"', "must be an object"),
        (b"7", "must be an object"),
    ],
)
def test_a_file_that_is_no_object_is_named(content: bytes, message: str, job_tree: Any) -> None:
    def check(name: str) -> None:
        shutil.rmtree(job_tree.base, ignore_errors=True)  # the file before is broken, too
        job_tree.configure(**{name: content})
        assert any(message in line for line in problems_of(job_tree))

    check_each(["hyperparameters", "resources", "channels", "tensorboard", "debug_hook", "profiler"], check)


def test_the_broken_place_of_a_long_line_is_shown(job_tree: Any) -> None:
    content = '{"a": "' + "x" * 500 + '" "broken": 1, "more": "' + "y" * 500 + '"}'
    job_tree.configure(hyperparameters=content.encode())

    (line,) = problems_of(job_tree)
    assert '"broken": 1' in line and len(line) < 250


@pytest.mark.safety
def test_the_broken_place_of_a_file_shows_no_secret(job_tree: Any) -> None:
    job_tree.configure(hyperparameters=b'{"epochs": "3", "api_key": "hunter2hunter2" "lr": 1}')

    (line,) = problems_of(job_tree)
    assert "is not JSON" in line and "hunter2" not in line


def test_a_file_larger_than_any_config_is_refused_without_reading_it_all(job_tree: Any) -> None:
    path = job_tree.write(f"{CONFIG}/hyperparameters.json", b"{}")
    os.truncate(path, 1 << 40)

    assert problems_of(job_tree) == ["hyperparameters.json: cannot be read: larger than 64 MiB"]


def test_a_folder_or_a_loop_in_the_place_of_a_file_is_named(job_tree: Any) -> None:
    job_tree.configure()
    (job_tree.base / CONFIG / "hyperparameters.json").mkdir()
    (job_tree.base / CONFIG / "resourceconfig.json").symlink_to("resourceconfig.json")

    assert problems_of(job_tree) == [
        "hyperparameters.json: cannot be read: Is a directory",
        "resourceconfig.json: cannot be read: Too many levels of symbolic links",
    ]


def test_a_file_that_may_not_be_read_is_named_with_the_remedy(job_tree: Any) -> None:
    job_tree.configure(hyperparameters={"epochs": 3}).code("train.py")
    (job_tree.base / CONFIG / "hyperparameters.json").chmod(0)

    done = job_tree.train(powerless=True)

    assert done.status == EXIT_JOB
    assert "hyperparameters.json: cannot be read by this user (chmod -R a+rX the folder" in done.stderr
    assert "hyperparameters.json: cannot be read by this user" in job_tree.failure
