"""Trainings with TensorFlow, JAX, XGBoost and LightGBM on three hosts, as on one; .ci/frameworks has what they need."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.paths import ROOT

FOLDER = os.environ.get("TRAINSHED_TEST_FRAMEWORKS", "")
pytestmark = [
    pytest.mark.skipif(not os.path.exists(f"{FOLDER}/bin/python"), reason="TRAINSHED_TEST_FRAMEWORKS names no environment"),
    pytest.mark.matrix,
]
# Each process has a third of twelve samples; the gradient is the mean over all of them.
JAX = """\
import os
import jax, numpy
import jax.numpy as jnp
from jax.experimental import multihost_utils
jax.distributed.initialize(num_processes=int(os.environ["WORLD_SIZE"]), process_id=int(os.environ["RANK"]))
rank, world = jax.process_index(), jax.process_count()
x = numpy.random.default_rng(0).normal(size=(12, 3)).astype("float32")
y = x @ numpy.array([1.0, -2.0, 3.0], "float32")
mine = slice(rank * 12 // world, (rank + 1) * 12 // world)
gradient = jax.jit(jax.value_and_grad(lambda w, x, y: jnp.mean((x @ w - y) ** 2)))
w = jnp.zeros(3)
for step in range(20):
    loss, grad = gradient(w, x[mine], y[mine])
    loss, grad = (multihost_utils.process_allgather(one).mean(axis=0) for one in (loss, grad))
    w = w - 0.1 * grad
print(f"RESULT rank={rank} of={world} loss={float(loss):.5f}", flush=True)
"""
TENSORFLOW = """\
import json, os
import numpy, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
told = json.loads(os.environ["TF_CONFIG"])
rank, world = told["task"]["index"], len(told["cluster"]["worker"])
assert strategy.num_replicas_in_sync == world
x = numpy.random.default_rng(0).normal(size=(12, 3)).astype("float32")
y = x @ numpy.array([1.0, -2.0, 3.0], "float32")
mine = slice(rank * 12 // world, (rank + 1) * 12 // world)
with strategy.scope():
    w = tf.Variable(tf.zeros(3))

@tf.function
def step():
    def replica():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(tf.constant(x[mine]), w) - y[mine]) ** 2)
        grad = tf.distribute.get_replica_context().all_reduce("MEAN", tape.gradient(loss, w))
        w.assign_sub(0.1 * grad)
        return loss
    return strategy.reduce("MEAN", strategy.run(replica), axis=None)

for _ in range(20):
    loss = step()
print(f"RESULT rank={rank} of={world} loss={float(loss):.5f}", flush=True)
"""
PARAMETER_SERVERS = """\
import os
import numpy, tensorflow as tf
told = tf.distribute.cluster_resolver.TFConfigClusterResolver()
role = told.task_type
if role in SERVE:
    print(f"SERVES {role}{told.task_id}", flush=True)
    tf.distribute.Server(told.cluster_spec(), job_name=role, task_index=told.task_id, protocol="grpc").join()
assert role == "chief"
strategy = tf.distribute.ParameterServerStrategy(told)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
x = numpy.random.default_rng(0).normal(size=(12, 3)).astype("float32")
y = x @ numpy.array([1.0, -2.0, 3.0], "float32")
with strategy.scope():
    w = tf.Variable(tf.zeros(3))

@tf.function
def step():
    def replica():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(tf.constant(x), w) - y) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss
    return strategy.run(replica)

for _ in range(20):
    loss = coordinator.schedule(step)
    coordinator.join()
print(f"RESULT rank=0 of=1 loss={float(loss.fetch()):.5f} on {w.device}", flush=True)
"""
# After the blocks of docs/distributions.md, by the comment that each begins with.
TREES = {
    "XGBoost": """
import xgboost
with together:
    data = xgboost.DMatrix(x[mine], y[mine])
    model = xgboost.train({"objective": "binary:logistic", "max_depth": 3, "nthread": 1}, data, 10)
    predicted = model.predict(xgboost.DMatrix(x))
""",
    "LightGBM": """
import lightgbm
options = {**options, "objective": "binary", "verbose": -1, "num_threads": 1, "num_leaves": 7}
predicted = lightgbm.train(options, lightgbm.Dataset(x[mine], y[mine]), 10).predict(x)
""",
}
TABLE = """
import numpy
x = numpy.random.default_rng(0).normal(size=(3000, 5))
y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(int)
mine = slice(rank, None, world)
"""


def documented(library: str) -> str:
    """The block of docs/distributions.md for a library."""
    page = (ROOT / "docs/distributions.md").read_text()
    return re.findall(rf"```python\n(# {library}.*?)```", page, re.DOTALL)[0]


def run(folder: Path, kind: str, script: str, hosts: int, *more: str) -> subprocess.CompletedProcess[str]:
    """`trainshed run` with the environment's Python."""
    (folder / "train.py").write_text(script)
    words = ["run", "train.py", "--distribution", kind, "--instances", str(hosts), "--output", f"{kind}-{hosts}", *more]
    environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    command = [f"{FOLDER}/bin/python", "-m", "trainshed", *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)


def losses(folder: Path, kind: str, script: str, hosts: int) -> set[str]:
    """What the ranks print; each of them has to."""
    done = run(folder, kind, script, hosts)
    found = re.findall(rf"RESULT rank=(\d) of={hosts} loss=(\S+)", done.stdout + done.stderr)
    assert sorted(rank for rank, _ in found) == [str(rank) for rank in range(hosts)], done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    return {loss for _, loss in found}


@pytest.mark.exact
@pytest.mark.parametrize(("kind", "script"), [("jax", JAX), ("tensorflow", TENSORFLOW)])
def test_three_hosts_train_as_one(tmp_path: Path, kind: str, script: str) -> None:
    alone = losses(tmp_path, kind, script, 1)

    assert losses(tmp_path, kind, script, 3) == alone and len(alone) == 1


@pytest.mark.parametrize(("kind", "script"), [("jax", JAX), ("tensorflow", TENSORFLOW)])
def test_a_process_that_fails_ends_all_hosts_with_its_cause(tmp_path: Path, kind: str, script: str) -> None:
    done = run(tmp_path, kind, script.replace("print(", "assert rank != 1, 'rank one is unwell'\nprint("), 3)

    assert done.returncode == 1 and "rank 1 on algo-2" in done.stderr and "rank one is unwell" in done.stderr, done.stderr


@pytest.mark.exact
@pytest.mark.parametrize(("kind", "script"), [("jax", JAX), ("tensorflow", TENSORFLOW)])
def test_all_hosts_start_again_after_a_failure_and_train_as_one(tmp_path: Path, kind: str, script: str) -> None:
    """Rank 1 dies in the middle of the first attempt, while the others wait for it; the ports are free for the second."""
    alone = losses(tmp_path, kind, script, 1)
    dies = "(rank, number, os.environ['TORCHELASTIC_RESTART_COUNT']) == (1, 10, '0') and os.kill(os.getpid(), 9)\n"
    for loop in ("for step in range(20):\n", "for _ in range(20):\n"):
        script = script.replace(loop, f"for number in range(20):\n    {dies}")
    done = run(tmp_path, kind, script, 3, "--max-restarts", "1")

    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stdout + done.stderr
    assert "restart 1 of 1, from the beginning: rank 1 on algo-2 was killed by SIGKILL" in text, text
    found = re.findall(r"RESULT rank=(\d) of=3 loss=(\S+)", text)
    assert sorted(rank for rank, _ in found) == ["0", "1", "2"] and {loss for _, loss in found} == alone, text


@pytest.mark.parametrize("flag", [(), ("--hp", "sagemaker_parameter_server_enabled=true", "--distribution", "script")])
def test_a_chief_trains_with_workers_and_servers_on_three_hosts(tmp_path: Path, flag: tuple[str, ...]) -> None:
    """By the platform's flag servers are TensorFlow's own, and the script is none."""
    alone = losses(tmp_path, "tensorflow", TENSORFLOW, 1)
    script = PARAMETER_SERVERS.replace("SERVE:", "('worker',):" if flag else "('worker', 'ps'):")
    done = run(tmp_path, "parameter_server", script, 3, *flag)

    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"RESULT rank=0 of=1 loss=(\S+) on /job:ps", done.stdout + done.stderr)) == alone
    served = set(re.findall(r"SERVES (\w+)", done.stdout + done.stderr))
    assert served == {"worker0", "worker1"} | (set() if flag else {"ps0", "ps1", "ps2"})


def test_a_parameter_server_that_is_killed_is_the_cause(tmp_path: Path) -> None:
    script = PARAMETER_SERVERS.replace("SERVE:", "('worker', 'ps'):").replace(
        "    tf.distribute.Server(",
        "    told.task_id == 1 and role == 'ps' and os.kill(os.getpid(), 9)\n    tf.distribute.Server(",
    )
    done = run(tmp_path, "parameter_server", script, 3)

    assert done.returncode and "parameter server 1 on algo-2 was killed by SIGKILL" in done.stderr, done.stderr


@pytest.mark.parametrize("library", TREES)
def test_trees_grow_together_with_the_addresses_that_the_page_takes(tmp_path: Path, library: str) -> None:
    told = "loss = -numpy.log(numpy.where(y, predicted, 1 - predicted)).mean()\n"
    told += "print(f'RESULT rank={rank} of={world} loss={loss:.5f}', flush=True)\n"

    found = losses(tmp_path, "script", documented(library) + TABLE + TREES[library] + told, 3)
    assert len(found) == 1 and float(found.pop()) < 0.5
