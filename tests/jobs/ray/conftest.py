"""Ray clusters for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clients.venvs import make
from jobs.ray.cluster import Cluster, Started


@pytest.fixture(scope="session")
def python() -> Path:
    """A Python that has ray."""
    return make("ray")


@pytest.fixture(scope="session")
def cluster(python: Path) -> Iterator[Cluster]:
    """Three nodes with two CPUs each; no test takes any of them away."""
    made = Cluster(python, 2, 2, 2)
    yield made
    made.close()


@pytest.fixture
def own_cluster(python: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes a cluster for one test, of nodes with so many CPUs."""
    made: list[Cluster] = []

    def start(*cpus: int) -> Cluster:
        made.append(Cluster(python, *cpus))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Runs job.yaml of the test's folder on a cluster, which is free again afterwards."""
    made: list[Started] = []

    def submit(cluster: Cluster, *options: str, **environment: str) -> Started:
        words = ("run", "job.yaml", "--on", "ray", "--address", cluster.address, "--output", "run", *options)
        made.append(Started(cluster, tmp_path, *words, **environment))
        return made[-1]

    yield submit
    for one in made:
        one.process.kill()
        one.process.wait()
