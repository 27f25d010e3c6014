"""`trainshed run --on ray` on a real cluster of three nodes: placed, shipped, followed, stopped, refused."""

from __future__ import annotations

import json
import os
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.ray.cluster import LIMIT, Cluster, Started, job_file

Submit = Callable[..., Started]

TELLS = """\
import os, socket
from pathlib import Path
env, host = os.environ, os.environ["SM_CURRENT_HOST"]
data = Path(env["SM_CHANNEL_WORDS"])
print("words", sorted(one.name for one in data.iterdir()), (data / "deep/b.txt").read_text())
print("node", env["NODE"], env["SM_HP_EPOCHS"], env["COLOUR"], "RAY_ADDRESS" in env, env["CUDA_VISIBLE_DEVICES"] == "")
for name, text in {"same": "1", "own-" + host: "2", "clash": host}.items():
    Path(env["SM_MODEL_DIR"], name).write_text(text)
Path(env["SM_OUTPUT_DATA_DIR"], "plot.txt").write_text(host)
checkpoints = Path(env["SM_CHECKPOINT_DIR"])
(checkpoints / "state").mkdir()
(checkpoints / "state" / host).write_text("3" * 9_000_000)  # more than one part
print("in", env["SM_MODEL_DIR"])
print("said on stderr", file=__import__("sys").stderr)
"""


@pytest.mark.spine
def test_hosts_of_a_job_run_on_nodes_of_their_own_and_all_they_make_comes_home(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TELLS)
    (tmp_path / "words/deep").mkdir(parents=True)
    (tmp_path / "words/a.txt").write_text("a")
    (tmp_path / "words/deep/b.txt").write_text("b")
    (tmp_path / "words/link.txt").symlink_to("a.txt")
    (tmp_path / "words/nowhere").symlink_to("/nowhere")
    job_file(
        tmp_path, channels={"words": "words"}, instances=2, hyperparameters={"epochs": 3}, checkpoints={"folder": "kept"}
    )
    job = submit(cluster, "--env", "COLOUR=light blue")

    assert job.end() == 0, job.output
    nodes = set()
    for host in ("algo-1", "algo-2"):
        assert f"[{host}] words ['a.txt', 'deep', 'link.txt'] b\n" in job.output
        assert f"[{host}] said on stderr\n" in job.output
        (told,) = [line.split() for line in job.output.splitlines() if line.startswith(f"[{host}] node")]
        nodes.add(told[2])
        assert told[3:] == ["3", "light", "blue", "False", "True"]
        assert (tmp_path / f"run/{host}/output/data/plot.txt").read_text() == host
        assert (tmp_path / f"kept/state/{host}").stat().st_size == 9_000_000
        assert json.loads((tmp_path / f"run/{host}/output/data/run/{host}.json").read_text())["state"] == "Completed"
    assert len(nodes) == 2
    with tarfile.open(tmp_path / "run/output/model.tar.gz") as model:
        assert {"same", "own-algo-1", "own-algo-2", "clash", "algo-2/clash"} <= {
            name.lstrip("./") for name in model.getnames()
        }
    assert "model/clash differs between algo-1 and algo-2" in job.output
    assert job.status["TrainingJobStatus"] == "Completed"
    about = json.loads((tmp_path / "run/job.json").read_text())
    assert about["engine"] == "ray" and "light blue" not in (tmp_path / "run/logs/ray.log").read_text()
    trees = [line.split()[2] for line in job.output.splitlines() if "] in " in line]
    assert len(trees) == 2 and not any(Path(tree).exists() for tree in trees)  # nothing is left on the nodes


@pytest.mark.matrix
@pytest.mark.heavy
def test_a_channel_that_all_nodes_see_stays_where_it_is(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nprint('it is', os.path.realpath(os.environ['SM_CHANNEL_WORDS']))\n"
        "open(os.environ['SM_CHECKPOINT_DIR'] + '/there', 'w').close()\n"
    )
    (tmp_path / "shared/words").mkdir(parents=True)
    ray = {"python": sys.executable, "shared": [str(tmp_path / "shared")]}
    job_file(tmp_path, channels={"words": "shared/words"}, checkpoints={"folder": "shared/kept"}, ray=ray)
    job = submit(cluster)

    assert job.end() == 0, job.output
    assert f"it is {tmp_path}/shared/words\n" in job.output
    assert (tmp_path / "shared/kept/there").exists()


@pytest.mark.safety
@pytest.mark.spine
def test_stop_lets_the_script_end_and_brings_home_what_it_saved(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, sys, time\n"
        "def stop(*_):\n"
        "    open(os.environ['SM_MODEL_DIR'] + '/saved', 'w').close()\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    job_file(tmp_path, instances=2)
    job = submit(cluster)
    job.until(lambda: job.output.count("] ready") == 2)
    stop = job.start("stop", "./run")

    assert stop.wait(LIMIT) == 0, job.output
    assert job.end() == 143, job.output
    assert job.status["TrainingJobStatus"] == "Stopped"
    assert (tmp_path / "run/model/saved").exists()


@pytest.mark.matrix
@pytest.mark.safety
@pytest.mark.heavy
def test_a_script_that_does_not_stop_is_killed_when_its_grace_is_over(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('pid', os.getpid(), '.', flush=True)\ntime.sleep(600)\n"
    )
    job_file(tmp_path, grace_seconds=1)
    job = submit(cluster)
    job.until_said("pid")
    pid = int(job.output.split("pid ")[1].split()[0])
    job.process.terminate()

    assert job.end() == 143, job.output
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.matrix
@pytest.mark.safety
@pytest.mark.heavy
def test_nothing_of_a_job_goes_on_when_its_runner_is_killed(cluster: Cluster, submit: Submit, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time\nprint('in', os.environ['SM_MODEL_DIR'], os.getpid(), '.', flush=True)\ntime.sleep(600)\n"
    )
    job_file(tmp_path)
    job = submit(cluster)
    job.until_said(" .\n")
    folder, pid = job.output.split("in ")[-1].split()[:2]
    job.process.kill()

    deadline = time.monotonic() + LIMIT
    while os.path.exists(folder) or os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline, job.output
        time.sleep(0.1)
    (tmp_path / "train.py").write_text("print('again')\n")
    assert job.start("resume", "./run").wait(LIMIT) == 0, job.output
    assert "hosts on Ray" in job.output or "host on Ray" in job.output


REFUSED = {
    "more CPUs than any node has": ({"resources": {"cpus": 3}}, "the job asks for 1 x (3 CPUs)", "3 nodes: 3 with 2 CPUs\n"),
    "GPUs where there are none": ({"resources": {"cpus": 1, "gpus": 2}}, "1 x (1 CPU, 2 GPUs)", "can never hold"),
    "more hosts than fit": ({"instances": 7}, "7 x (1 CPU)", "can never hold"),
    "a folder that is not everywhere": (
        {"ray": {"shared": ["/"], "folder": "/proc/nothing"}},
        "/proc/nothing",
        "algo-1",
    ),
    "a Python that is not there": ({"ray": {"python": "/nowhere/python"}}, "/nowhere/python: No such file", "algo-1"),
}


@pytest.mark.matrix
@pytest.mark.heavy
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_what_is_asked_and_what_there_is(
    case: str, cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    fields, *told = REFUSED[case]
    (tmp_path / "train.py").write_text("")
    job_file(tmp_path, **fields)
    job = submit(cluster)

    assert job.end() == 69, job.output
    for text in told:
        assert text in job.output
    assert "Traceback" not in job.output


@pytest.mark.matrix
@pytest.mark.heavy
def test_a_job_waits_for_others_with_a_line_and_can_be_stopped_meanwhile(
    cluster: Cluster, submit: Submit, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    job_file(tmp_path, instances=3, resources={"cpus": 2}, grace_seconds=1)
    first = submit(cluster)
    first.until(lambda: first.output.count("] ready") == 3)
    (tmp_path / "second").mkdir()
    waiting = Started(
        cluster, tmp_path / "second", "run", "../job.yaml", "--on", "ray", "--address", cluster.address, "--output", "run"
    )
    waiting.until_said("waiting for 3 x (2 CPUs)")
    waiting.process.terminate()

    assert waiting.end() == 143, waiting.output
    assert "stopped by SIGTERM before Ray had started the job" in waiting.output
    assert waiting.status["TrainingJobStatus"] == "Stopped"


@pytest.mark.matrix
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_answers_is_told_at_once(
    address: str, python: Path, tmp_path: Path, own_cluster: object
) -> None:
    (tmp_path / "train.py").write_text("")
    job_file(tmp_path)
    lone = Started(_Nowhere(python), tmp_path, "run", "job.yaml", "--on", "ray", "--address", address)  # type: ignore[arg-type]

    assert lone.end() == 69
    assert f"no Ray cluster answers at {address}" in lone.output


class _Nowhere:
    def __init__(self, python: Path) -> None:
        self.python = python


@pytest.mark.matrix
@pytest.mark.heavy
def test_a_cluster_of_another_version_is_refused_in_words(
    own_cluster: Callable[..., Cluster], submit: Submit, tmp_path: Path
) -> None:
    cluster = own_cluster(1)
    cluster.tell("version 2.9.0")
    (tmp_path / "train.py").write_text("")
    job_file(tmp_path)
    job = submit(cluster)

    assert job.end() == 69
    assert "has other versions of Ray or Python (2.9.0" in job.output and "install the cluster's versions" in job.output
