"""A job file becomes a frozen job; everything wrong in it is said at once, each with file, line, field and suggestion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import job_of
from trainshed.base.errors import JobError
from trainshed.runner.files.platform_files import hyperparameters
from trainshed.runner.job.job import ALL_GPUS, ChannelSpec, DistributionSpec, Job, Resources

FULL = """\
name: digits
image: trainshed:cpu
program: train.py
source_dir: src
hyperparameters: {lr: 1.10, warmup: 1e5, layers: [64, 32], name: base}
channels:
  train: data/train
  test: {path: data/test, input_mode: FastFile, content_type: text/csv}
instances: 3
distribution: {kind: torchrun, processes_per_host: 2, engine: torchrun, max_restarts: 4, reduce: bf16}
environment: {DEBUG: on, COUNT: 1, EMPTY: ""}
output: results
max_runtime_seconds: 3600
grace_seconds: 30
metric_definitions: {loss: "loss=([0-9.]+)"}
resources: {cpus: 1.5, memory: 8g, gpus: all, shm_size: 512m}
checkpoints: saved
argv: json
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, and another folder as the working directory, so that paths show whose they are."""
    for name in ("project/src", "project/data/train", "project/data/test", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project/src/train.py").write_text("")
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "project"


def job(folder: Path, text: str, *flags: str) -> Job:
    (folder / "job.yaml").write_text(text)
    return job_of([str(folder / "job.yaml"), *flags], {})


def problems(folder: Path, text: str, *flags: str) -> list[str]:
    with pytest.raises(JobError) as caught:
        job(folder, text, *flags)
    return [problem.line().replace(str(folder), "") for problem in caught.value.problems]


def test_every_field_of_a_job_file_arrives(folder: Path) -> None:
    made = job(folder, FULL)
    assert made == Job(
        name="digits",
        image="trainshed:cpu",
        program="train.py",
        source_dir=f"{folder}/src",
        hyperparameters={"lr": 1.1, "warmup": 1e5, "layers": [64, 32], "name": "base"},
        channels=(
            ChannelSpec("test", f"{folder}/data/test", "FastFile", "text/csv"),
            ChannelSpec("train", f"{folder}/data/train"),
        ),
        instances=3,
        distribution=DistributionSpec("torchrun", 2, "torchrun", 4, reduce="bf16"),
        environment={"DEBUG": "on", "COUNT": "1", "EMPTY": ""},
        output=f"{folder}/results",
        max_runtime_seconds=3600,
        grace_seconds=30,
        metric_definitions=(("loss", "loss=([0-9.]+)"),),
        resources=Resources(cpus=1.5, memory=8 << 30, gpus=ALL_GPUS, shm_size=512 << 20),
        checkpoints=f"{folder}/saved",
        argv="json",
    )
    assert str(made.hyperparameters["lr"]) == "1.10"


def test_a_job_file_needs_no_more_than_a_program(folder: Path) -> None:
    made = job(folder, "program: src/train.py\n")
    assert (made.name, made.program, made.source_dir) == ("job", "train.py", f"{folder}/src")
    assert (made.instances, made.distribution.kind, made.grace_seconds) == (1, "script", 110)


def test_flags_win_over_the_file_and_their_paths_are_those_of_the_working_directory(folder: Path) -> None:
    (folder.parent / "elsewhere/mine").mkdir()
    flags = ["--hp", "lr=0.5", "--channel", "test=mine", "--instances", "2", "--processes-per-host", "8", "--grace", "5"]
    made = job(folder, FULL, *flags, "--env", "DEBUG=off", "--shm-size", "1g")
    assert str(made.hyperparameters["lr"]) == "0.5"
    assert made.hyperparameters["name"] == "base"
    assert made.channels[0] == ChannelSpec("test", f"{folder.parent}/elsewhere/mine", "FastFile", "text/csv")
    assert (made.instances, made.grace_seconds) == (2, 5)
    assert made.distribution == DistributionSpec("torchrun", 8, "torchrun", 4, reduce="bf16")
    assert made.environment["DEBUG"] == "off"
    assert made.resources.shm_size == 1 << 30
    assert made.resources.memory == 8 << 30


def test_a_file_of_accelerates_makes_a_torchrun_job_and_fits_no_other(folder: Path) -> None:
    made = job(folder, "program: src/train.py\ndistribution: {accelerate: conf/a.yaml}\n")
    assert made.distribution == DistributionSpec("torchrun", accelerate="conf/a.yaml")

    text = "program: src/train.py\ndistribution: {kind: mpi, accelerate: conf/a.yaml}\n"
    with pytest.raises(JobError, match="is for the distribution 'torchrun'"):
        job(folder, text)


def test_a_flag_changes_one_thing_about_checkpoints(folder: Path) -> None:
    text = "program: src/train.py\ncheckpoints: {folder: saved, auto: true, every: auto, copy_to: 's3://bucket/run'}\n"
    made = job(folder, text, "--checkpoints", "mine")
    place = f"{folder.parent}/elsewhere/mine"
    assert (made.checkpoints, made.checkpoint_auto, made.checkpoint_copy_to) == (place, True, "s3://bucket/run")
    made = job(folder, "program: src/train.py\ncheckpoints: saved\n", "--copy-to", "gs://bucket/run")
    assert (made.checkpoints, made.checkpoint_copy_to) == (f"{folder}/saved", "gs://bucket/run")


def test_parallel_is_the_word_for_what_was_called_pipeline(folder: Path) -> None:
    text = "program: src/train.py\ndistribution: {kind: parallel, parameters: {microbatches: 4}}\n"

    assert job(folder, text).distribution == DistributionSpec("pipeline", parameters={"microbatches": 4})
    assert job(folder, "program: src/train.py\n", "--distribution", "parallel").distribution.kind == "pipeline"


def test_a_flag_gives_a_plain_distribution_its_details(folder: Path) -> None:
    made = job(folder, "program: src/train.py\ndistribution: torchrun\n", "--processes-per-host", "2")
    assert made.distribution == DistributionSpec("torchrun", 2)


def test_restarts_bring_the_engine_that_can_restart(folder: Path) -> None:
    made = job(folder, "program: src/train.py\ndistribution: {kind: torchrun, max_restarts: 3}\n")
    assert made.distribution.engine == "torchrun"


@pytest.mark.parametrize("kind", ["script", "mpi", "tensorflow", "jax", "parameter_server"])
def test_hosts_without_torchs_agent_restart_together(folder: Path, kind: str) -> None:
    made = job(folder, f"program: src/train.py\ndistribution: {{kind: {kind}, max_restarts: 3}}\n")
    assert (made.distribution.engine, made.distribution.max_restarts) == ("", 3)


def test_torch_ranks_can_do_without_the_agent_too(folder: Path) -> None:
    made = job(folder, "program: src/train.py\ndistribution: {kind: torchrun, engine: trainshed, max_restarts: 3}\n")
    assert (made.distribution.engine, made.distribution.max_restarts) == ("trainshed", 3)


@pytest.mark.parametrize(
    ("said", "engine"),
    [
        ("hyperparameters: {trainshed_warm_start: auto}", ""),
        ("environment: {TRAINSHED_WARM_START: auto}", ""),
        ("hyperparameters: {trainshed_warm_start: 'off'}", "torchrun"),
    ],
)
def test_ranks_that_start_warm_are_not_the_agents(folder: Path, said: str, engine: str) -> None:
    made = job(folder, f"program: src/train.py\ndistribution: {{kind: torchrun, max_restarts: 3}}\n{said}\n")
    assert (made.distribution.engine, made.distribution.max_restarts) == (engine, 3)


def test_a_pipeline_takes_its_parameters_from_the_job_file(folder: Path) -> None:
    text = "program: src/train.py\ndistribution: {kind: pipeline, parameters: {partitions: 2, microbatches: 4}}\n"
    assert job(folder, text).distribution == DistributionSpec("pipeline", parameters={"partitions": 2, "microbatches": 4})


def test_sagemakers_form_of_a_model_parallel_distribution_is_understood(folder: Path) -> None:
    text = """
program: src/train.py
distribution:
  smdistributed: {modelparallel: {enabled: true, parameters: {partitions: 2, microbatches: 4, ddp: true}}}
  mpi: {enabled: true, processes_per_host: 8, custom_mpi_options: -verbose}
"""
    assert job(folder, text).distribution == DistributionSpec(
        "pipeline",
        8,
        parameters={"partitions": 2, "microbatches": 4, "ddp": True},
        for_amazons_library=True,
        mpi=True,
        mpi_options="-verbose",
    )
    assert job(folder, text.replace("enabled: true, parameters", "enabled: false, parameters")).distribution.kind == "script"


def test_sagemakers_form_of_a_data_parallel_distribution_is_understood(folder: Path) -> None:
    text = "program: src/train.py\ndistribution: {smdistributed: {dataparallel: {enabled: true, custom_mpi_options: -v}}}\n"
    assert job(folder, text).distribution == DistributionSpec("torchrun", for_amazons_library=True)
    assert job(folder, text.replace("true", "false")).distribution.kind == "script"
    both = "{dataparallel: {enabled: true}, modelparallel: {enabled: true}}"
    with pytest.raises(JobError, match="cannot be used beside modelparallel"):
        job(folder, f"program: src/train.py\ndistribution: {{smdistributed: {both}}}\n")


def test_an_empty_field_is_an_absent_one(folder: Path) -> None:
    made = job(folder, "program: src/train.py\nhyperparameters:\nchannels:\ninstances: ~\n")
    assert (made.hyperparameters, made.channels, made.instances) == ({}, (), 1)


def test_metric_definitions_may_be_the_platforms_list(folder: Path) -> None:
    made = job(folder, "program: src/train.py\nmetric_definitions:\n- {Name: loss, Regex: 'loss=(.*)'}\n")
    assert made.metric_definitions == (("loss", "loss=(.*)"),)


def test_all_problems_are_said_at_once_in_the_order_of_the_file(folder: Path) -> None:
    text = "nme: x\nprogram: src/trian.py\ninstances: two\nchannels: {train: data/trian}\nargv: flag\n"
    assert problems(folder, text, "--grace", "soon") == [
        "/job.yaml:1: nme = x: is not a field of a job file (did you mean 'name'?)",
        "/job.yaml:2: program = src/trian.py: there is no such file; /src contains train.py (did you mean 'train.py'?)",
        "/job.yaml:3: instances = two: must be a whole number from 1 to 512",
        "/job.yaml:4: channels.train = data/trian: there is no /data/trian (did you mean 'train'?)",
        "/job.yaml:5: argv = flag: must be one of sagemaker, json, flags (did you mean 'flags'?)",
        "--grace = soon: must be a number from 0 to 86400",
    ]


def test_fields_that_are_known_are_named_once(folder: Path) -> None:
    [said] = problems(folder, "program: src/train.py\nzzz: 1\n")
    named = said.partition("known: ")[2].rstrip(")").split(", ")
    assert "slurm" in named and len(named) == len(set(named))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("name: my_job", "name = my_job: must be letters, digits and hyphens between them (did you mean 'my-job'?)"),
        (f"name: {'n' * 40}", "has 40 characters; 39 are allowed"),
        ("name: [a]", "name: must be text"),
        ("source_dir: scr", "there is no /scr (did you mean 'src'?)"),
        ("source_dir: src/train.py", "is neither a folder nor an archive"),
        ("hyperparameters: 3", "hyperparameters = 3: must be a mapping of names to values"),
        ('hyperparameters: {a: "x\\0y"}', "hyperparameters.a: contains a NUL character"),
        ("channels: {'bad name': data}", "channels.bad name = data: is not a valid channel name"),
        ("channels: {..: data}", "is not a valid channel name"),
        ("channels: {train: }", "channels.train: has no path"),
        ("channels: {train: {pth: data}}", "channels.train.pth = data: is not known here (did you mean 'path'?)"),
        ("channels: {train: {path: data, input_mode: Pip}}", "must be one of File, FastFile, Pipe"),
        ("channels: {train: {path: data, record_wrapper: RecordIO}}", "is only for Pipe mode (set input_mode to Pipe)"),
        ("channels: {train: {path: data, s3_type: ManifestFile}}", "a manifest of objects must be on s3://"),
        ("channels: {train: data/*.csv}", "channels.train = data/*.csv: matches no files"),
        ("channels: {train: s3://}", "is not an S3 URI"),
        ("channels: {train: ftp://host/data}", "channels.train = ftp://host/data: cannot be fetched (known are s3://"),
        ("spot: {interrupt_after: soon}", "must be at most 100 durations like 20s,1.5m"),
        ("keep_alive: soon", "must be a time like 10m or 90s, at most 24h"),
        ("keep_alive: 25h", "must be a time like 10m or 90s, at most 24h"),
        ("keep_alive: -1", "must be a time like 10m or 90s, at most 24h"),
        ("keep_alive: [10m]", "must be a time like 10m or 90s, at most 24h"),
        ("spot: {price: 2}", "spot.price = 2: must be a number from 0.01 to 1"),
        ("spot: maybe", "must be true or false"),
        ("spot: {max_wait_seconds: 5}\nmax_runtime_seconds: 6", "must not be less than max_runtime_seconds, 6"),
        ("retries: 31", "must be a whole number from 0 to 30"),
        ("checkpoints: {local_path: /etc}", "must be a separate folder below /opt/ml"),
        ("checkpoints: {local_path: /opt/ml/input}", "must be a separate folder below /opt/ml"),
        ("checkpoints: {auto: sometimes}", "must be true or false"),
        ("checkpoints: {every: 5m}", "must be auto, or like auto,least=30s,most=20m,between=8h"),
        ("checkpoints: {copy_to: bucket/run}", "must be a URL like s3://bucket/run"),
        ("checkpoints: {copy_to: 'ftp://me:hunter22@host/run'}", "checkpoints.copy_to: contains a secret"),
        ("environment: {A: {envv: B}}", "is not known here (did you mean 'env'?)"),
        ("environment: {A: {env: B, file: C}}", "must be text, or one of {env: NAME}, {file: PATH}, {secret: NAME}"),
        ("environment: {A: {secret: ../etc/passwd}}", "is not a valid secret name"),
        ("entrypoint: [/bin/sh]", "entrypoint: needs an image"),
        ("network_isolation: true", "network_isolation: needs an image"),
        ("image: --privileged", "is not a valid image name"),
        ("metric_definitions: {loss: '" + "x" * 501 + "(.)'}", "has 504 characters; the platform takes 500"),
        (f"channels: {{{', '.join(f'c{n}: data' for n in range(21))}}}", "there are 21 channels; a job has at most 20"),
        ("instances: 0", "instances = 0: must be a whole number from 1 to 512"),
        ("instances: 1.5", "instances = 1.5: must be a whole number"),
        ("instances: true", "instances = true: must be a whole number"),
        (
            "distribution: torchrn",
            "parameter_server, ray, pytorchxla, parallel, or one that an installed package adds (did you mean 'torchrun'?)",
        ),
        ("distribution: {kind: script, processes_per_host: 2}", "has no effect with the distribution 'script'"),
        ("checkpoints: {memory: {copies: true}}", "checkpoints.memory: copies must be a whole number from 1 to"),
        ("distribution: {kind: parameter_server, roles: {wroker: 2}}", "'wroker' is not a role"),
        ("distribution: {kind: parameter_server, roles: {worker: -1}}", "distribution.roles: worker must be a whole number"),
        (
            "distribution: {kind: parameter_server, processes_per_host: 2}",
            "has no meaning for the distribution 'param",
        ),
        ("distribution: {kind: parameter_server, engine: torchrun}", "starts no processes of the distribution"),
        ("distribution: {kind: ray, processes_per_host: 2}", "has no meaning for the distribution 'ray'"),
        ("distribution: {kind: torchrun, roles: {worker: 2}}", "is for the distribution 'parameter_server'"),
        ("distribution: {kind: torchrun, servers: script}", "is for the distribution 'parameter_server'"),
        ("distribution: {kind: torchrun, ranks: 2}", "distribution.ranks = 2: is not known here"),
        ("distribution: {kind: torchrun, parameters: {partitions: 2}}", "is for the distribution 'pipeline'"),
        (
            "distribution: {kind: pipeline, parameters: {partition: 2}}",
            "partition: not a pipeline setting (did you mean 'p",
        ),
        ("distribution: {smdistributed: {modelparallel: {enabled: 2}}}", "must be true or false"),
        ("environment: {A-B: 1}", "environment.A-B: is not a valid variable name"),
        ("environment: {A: [1]}", "environment.A: must be text"),
        ('environment: {A: "x\\0"}', "environment.A"),
        ("output: src/train.py", "output = src/train.py: is not a folder"),
        ("max_runtime_seconds: .inf", "must be a number from 0 to 2419200"),
        ("grace_seconds: -1", "must be a number from 0 to 86400"),
        ("metric_definitions: {loss: 'loss=('}", "metric_definitions.loss = loss=(: is not a valid regular expression"),
        ("metric_definitions: {loss: 'loss=.*'}", "has no group (put the number into parentheses"),
        ("metric_definitions: [{Name: loss}]", "must have Name and Regex"),
        ("metric_definitions: 3", "must be a mapping of names to values, or a list of Name and Regex"),
        ("resources: {memory: lots}", "resources.memory = lots: must be a size like 2g or 512m"),
        ("resources: {gpus: some}", "resources.gpus = some: must be all or a whole number from 0 to 1024"),
        ("resources: {cpus: 0}", "resources.cpus = 0: must be a number from 0.01"),
        ("resources: {shm_siz: 2g}", "resources.shm_siz = 2g: is not known here (did you mean 'shm_size'?)"),
    ],
)
def test_every_wrong_field_has_its_problem(folder: Path, line: str, problem: str) -> None:
    found = problems(folder, f"program: src/train.py\n{line}\n")
    assert [text for text in found if problem in text and text.startswith("/job.yaml:2: ")], found


def test_a_job_without_a_program_says_what_is_missing(folder: Path) -> None:
    (line,) = problems(folder, "name: x\n")
    assert line == "/job.yaml: program: is missing (name the script, like train.py)"


@pytest.mark.safety
def test_the_value_of_a_secret_is_not_shown(folder: Path) -> None:
    found = problems(folder, "program: src/train.py\nenvironment: {API_TOKEN: [hunter22]}\napi_token: hunter22\n")
    assert len(found) == 2
    assert "hunter22" not in "".join(found)


def test_with_an_image_the_program_may_be_the_images_own(folder: Path) -> None:
    made = job(folder, "image: trainshed:cpu\nprogram: image_classification\n")
    assert (made.program, made.source_dir) == ("image_classification", "")
    assert job(folder, "image: trainshed:cpu\n").program == ""


def test_a_module_is_run_from_the_folder_of_the_job(folder: Path) -> None:
    made = job(folder, "program: -m package.train\n")
    assert (made.program, made.source_dir) == ("-m package.train", str(folder))


def test_a_program_may_be_named_as_seen_from_the_job_or_from_its_folder(folder: Path) -> None:
    for name in ("train.py", "train", "src/train.py", str(folder / "src/train.py")):
        made = job(folder, f"program: {name}\nsource_dir: src\n")
        assert (made.program, made.source_dir) == ("train.py", f"{folder}/src")


def test_a_name_is_made_of_the_scripts(folder: Path) -> None:
    (folder / "src/my_train.v2.py").write_text("")
    assert job_of([str(folder / "src/my_train.v2.py")], {}).name == "my-train-v2"


def test_twelve_hosts_are_listed_as_the_platform_lists_them(folder: Path) -> None:
    hosts = job(folder, "program: src/train.py\ninstances: 12\n").hosts
    assert hosts[:4] == ("algo-1", "algo-10", "algo-11", "algo-12")


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("compiler: auto", {"trainshed_compiler": "auto"}),
        ("compiler: {mode: reduce-overhead}", {"trainshed_compiler": "auto", "trainshed_compiler_mode": "reduce-overhead"}),
        (
            "compiler: {backend: inductor, regional: true, dynamic: off, cache: off}",
            {
                "trainshed_compiler": "inductor",
                "trainshed_compiler_regional": "on",
                "trainshed_compiler_dynamic": "off",
                "trainshed_compiler_cache": "off",
            },
        ),
    ],
)
def test_the_compiler_is_settings_of_train(folder: Path, line: str, settings: dict[str, str]) -> None:
    made = job(folder, f"program: src/train.py\n{line}\n")
    sent = {name: json.loads(text) for name, text in hyperparameters(made, "run", "/opt/ml").items()}

    assert made.compiler == settings
    assert settings.items() <= sent.items()


def test_pytorchxla_is_the_platforms_own_flag(folder: Path) -> None:
    sent = hyperparameters(job(folder, "program: src/train.py\ndistribution: pytorchxla\n"), "run", "/opt/ml")

    assert sent["sagemaker_pytorch_xla_multi_worker_enabled"] == "true" and "trainshed_distribution" not in sent


def test_a_folder_is_no_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match=r"program = src: is a folder, not a script; .*/src contains train\.py"):
        job_of(["src"], {})
