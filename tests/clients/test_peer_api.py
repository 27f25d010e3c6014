"""Scripts written for `sagemaker-training`: our stand-in answers as the real package does, which runs beside it here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.extras import needs
from trainshed.container.launchers.rank_environment import PEERS_MODULES

needs("numpy")

PROBE = Path(__file__).resolve().parent / "peer_probe.py"
# Where we mean to differ, and why.
DIFFERENCES = {
    "num_cpus": "what the container may use, not what the machine has",
}


def answers(text: str) -> dict[str, Any]:
    (line,) = [line for line in text.splitlines() if line.startswith("ANSWERS")]
    return dict(json.loads(line.removeprefix("ANSWERS")))


@pytest.fixture
def job(job_tree: Any) -> Any:
    """A job with some of everything, whose script is the probe."""
    job_tree.code("probe.py", PROBE.read_text())
    return job_tree.configure(
        hyperparameters={
            "sagemaker_program": "probe.py",
            "sagemaker_submit_directory": f"{job_tree.base}/code",
            "sagemaker_container_log_level": 20,
            "sagemaker_job_name": "job-1",
            "sagemaker_region": "us-east-1",
            "sagemaker_s3_output": "file:///somewhere",
            "sagemaker_instance_type": "local",
            "epochs": 3,
            "lr": 0.1,
            "name": "a b",
            "flag": True,
            "none": None,
            "lst": [1, "x"],
        },
        channels={"train": {"TrainingInputMode": "File", "ContentType": "text/csv"}, "test": {"TrainingInputMode": "File"}},
        resources=job_tree.hosts(1, current_instance_type="local"),
    )


@pytest.fixture
def theirs(job: Any, peer: Path) -> dict[str, Any]:
    """The real package's answers about the job."""
    environ = {**job.environ(TRAINING_JOB_NAME="job-1", AWS_DEFAULT_REGION="us-east-1"), "PYTHONPATH": ""}
    done = subprocess.run([str(peer), str(PROBE)], env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return answers(done.stdout)


@pytest.fixture
def ours(job: Any) -> dict[str, Any]:
    """Our answers, from a script that `train` runs."""
    done = job.train(TRAINING_JOB_NAME="job-1", AWS_DEFAULT_REGION="us-east-1")
    assert done.status == 0, done.output
    return answers(done.stdout)


@pytest.mark.spine
def test_every_property_of_the_environment_is_the_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    mine, real = ours.pop("environment"), theirs.pop("environment")

    assert mine.keys() == real.keys()
    assert {name for name in real if mine[name] != real[name]} <= DIFFERENCES.keys(), (mine, real)


def test_every_function_answers_the_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for each in (ours, theirs):
        del each["environment"]
    assert set(theirs.pop("variables")) <= set(ours.pop("variables"))
    mine, real = ours.pop("params"), theirs.pop("params")
    assert mine == {name: real[name] for name in mine}, "names that nobody needs are left out, no value is another"
    assert ours == theirs


def test_the_stand_in_is_on_the_path_only_where_the_real_one_is_not(job_tree: Any) -> None:
    script = "import sagemaker_training, sagemaker_containers\nprint('from', sagemaker_training.__file__)\n"
    job_tree.code("train.py", script)
    done = job_tree.configure(hyperparameters={"sagemaker_program": "train.py"}).train()
    assert done.status == 0, done.output
    assert f"from {PEERS_MODULES}" in done.stdout

    job_tree.code("sagemaker_training/__init__.py", "REAL = True\n")
    job_tree.code("train.py", "import os, sagemaker_training\nprint(sagemaker_training.REAL, os.environ['PYTHONPATH'])\n")
    done = job_tree.train()
    assert done.status == 0, done.output
    assert "True" in done.stdout and PEERS_MODULES not in done.stdout


def test_scripts_for_the_older_name_import_it_and_learn_what_is_for_serving(job_tree: Any) -> None:
    script = """\
from sagemaker_containers.beta.framework import content_types, encoders, env, modules, transformer, worker
import sagemaker_containers
print("model", sagemaker_containers.training_env().model_dir, env.TrainingEnv if hasattr(env, "TrainingEnv") else "")
try:
    worker.Response
except AttributeError as error:
    print(error)
"""
    job_tree.code("train.py", script)
    done = job_tree.configure(hyperparameters={"sagemaker_program": "train.py"}).train()
    assert done.status == 0, done.output
    assert f"model {job_tree.base}/model" in done.stdout
    assert "worker.Response serves models; trainshed only trains them" in done.stdout


# --- launchers of an image's own ------------------------------------------------------------------------------------------

LAUNCHER = """\
from sagemaker_training import entry_point, environment, errors, runner
def main():
    env = environment.Environment()
    print("framework", env.framework_module)
    try:
        entry_point.run(env.module_dir, env.user_entry_point, env.to_cmd_args(), env.to_env_vars(), capture_error=True)
    except errors.ExecuteUserScriptError as error:
        print("caught", error.return_code, "no good" in str(error))
        raise
def mpi():
    env = environment.Environment()
    entry_point.run(env.module_dir, env.user_entry_point, [], runner_type=runner.MPIRunnerType)
"""


def launched(job_tree: Any, script: str, module: str = "launcher:main", **extra: str) -> Any:
    job_tree.code("launcher.py", LAUNCHER)
    job_tree.code("train.py", script)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py", "lr": "1.10"})
    return job_tree.train(SAGEMAKER_TRAINING_MODULE=module, **extra)


@pytest.mark.spine
def test_a_launcher_of_the_images_own_starts_the_script(job_tree: Any) -> None:
    done = launched(job_tree, "import sys, os\nprint('args', sys.argv[1:], os.environ['SM_HP_LR'])\n")
    assert done.status == 0, done.output
    assert "framework launcher:main" in done.stdout
    assert "args ['--lr', '1.10'] 1.10" in done.stdout
    assert job_tree.success == ""


def test_a_script_that_fails_below_a_launcher_fails_the_job_with_both_reasons(job_tree: Any) -> None:
    done = launched(job_tree, "raise ValueError('no good')\n")
    assert done.status == 1, done.output
    assert "caught 1 True" in done.stdout
    assert "ExecuteUserScriptError" in job_tree.failure and "ValueError: no good" in job_tree.failure


def test_a_launcher_that_wants_a_distribution_is_told_how_to_ask_for_it(job_tree: Any) -> None:
    done = launched(job_tree, "", "launcher:mpi")
    assert done.status == 1, done.output
    assert "trainshed starts MPI itself" in job_tree.failure


def test_amazons_own_launchers_stand_back(job_tree: Any) -> None:
    done = launched(job_tree, "print('direct')\n", "sagemaker_pytorch_container.training:main")
    assert done.status == 0, done.output
    assert "direct" in done.stdout and "trainshed starts the script itself" in done.stderr


@pytest.mark.parametrize("name", ["launcher", "launcher:", "a b:c", "os; import x:y", ":main"])
def test_a_module_that_is_none_is_a_problem_of_the_job(job_tree: Any, name: str) -> None:
    done = launched(job_tree, "", name)
    assert done.status == 2, done.output
    assert "SAGEMAKER_TRAINING_MODULE" in job_tree.failure and "package.module:function" in job_tree.failure


def test_a_stop_signal_reaches_the_script_through_a_launcher(job_tree: Any) -> None:
    script = """\
import os, signal, sys, time
def save(*_):
    open(os.environ["SM_MODEL_DIR"] + "/saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
    job_tree.code("launcher.py", LAUNCHER.replace(", capture_error=True", ""))
    job_tree.code("train.py", script)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py"})
    process = subprocess.Popen(
        [sys.executable, "-m", "trainshed.container.main"],
        env=job_tree.environ(SAGEMAKER_TRAINING_MODULE="launcher:main"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    printed = ""
    while "ready" not in printed:
        line = process.stdout.readline()
        assert line, printed
        printed += line
    os.kill(process.pid, signal.SIGTERM)
    rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed + rest
    assert (job_tree.base / "model/saved").exists()
    assert job_tree.failure is None


# --- intermediate output without anybody to upload it ---------------------------------------------------------------------


def test_a_job_goes_on_where_intermediate_output_cannot_be_uploaded(job_tree: Any) -> None:
    """Without boto3, or with an endpoint where nobody listens: a warning, and the files stay."""
    script = "import os\nopen(os.environ['SM_OUTPUT_INTERMEDIATE_DIR'] + '/a', 'w').write('a')\n"
    job_tree.code("train.py", script)
    job_tree.configure(hyperparameters={"sagemaker_program": "train.py", "sagemaker_s3_output": "s3://bucket/prefix"})
    done = job_tree.train(S3_ENDPOINT_URL="http://127.0.0.1:9", AWS_MAX_ATTEMPTS="1", AWS_EC2_METADATA_DISABLED="true")
    assert done.status == 0, done.output
    assert "intermediate output" in done.stderr
    assert (job_tree.base / "output/intermediate/a").read_text() == "a"
    assert job_tree.success == ""
