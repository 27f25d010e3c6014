"""The token by which the hosts of a run know each other, wherever the runner starts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from trainshed.contract.wire.variables import ROSTER_TOKEN
from trainshed.places.container_command import CommandFacts, create
from trainshed.places.container_engine import Engine
from trainshed.places.kubernetes.manifests import manifests
from trainshed.places.processes import Processes
from trainshed.places.slurm.submit import environment_of
from trainshed.runner.files import layout
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import Job

pytestmark = pytest.mark.safety


def job(**fields: object) -> Job:
    return Job(**{"name": "x", "image": "img:1", "program": "train.py", "instances": 2, **fields})  # type: ignore[arg-type]


def plan(wanted: Job) -> Run:
    return layout.plan(wanted, in_containers=True, now=0)


def of_containers(wanted: Job) -> tuple[list[str], Mapping[str, str]]:
    arguments, client = create(plan(wanted), 0, CommandFacts(Engine(("docker",)), uid=1, gid=1, user="ada", memory=1 << 30))
    return arguments, client


def of_slurm(wanted: Job) -> tuple[list[str], Mapping[str, str]]:
    return [], environment_of(plan(wanted), {})


def of_kubernetes(wanted: Job) -> tuple[list[str], Mapping[str, str]]:
    objects, _ = manifests(wanted)
    (secret,) = [made for made in objects if made["kind"] == "Secret"]
    shown = [str(made) for made in objects if made is not secret]
    assert any(secret["metadata"]["name"] in text for text in shown)
    return shown, {ROSTER_TOKEN: secret["stringData"]["token"]}


@pytest.mark.parametrize("place", [of_containers, of_slurm, of_kubernetes])
def test_every_place_gives_the_hosts_a_random_token_that_no_command_line_shows(
    place: Callable[[Job], tuple[list[str], Mapping[str, str]]],
) -> None:
    tokens = set()
    for _ in range(2):
        shown, variables = place(job())
        token = variables[ROSTER_TOKEN]
        assert len(token) == 64 and not any(token in text for text in shown)
        tokens.add(token)
    assert len(tokens) == 2


def test_a_dry_run_of_processes_shows_that_there_is_one_and_not_which() -> None:
    wanted = job(image="")
    (_, line), _ = Processes(wanted, {}, print).describe(layout.plan(wanted, in_containers=False, now=0))

    assert f"{ROSTER_TOKEN}=******" in line


@pytest.mark.parametrize("place", [of_containers, of_slurm])
def test_a_token_of_the_jobs_own_wins(place: Callable[[Job], tuple[list[str], Mapping[str, str]]]) -> None:
    _, variables = place(job(environment={ROSTER_TOKEN: "mine"}))

    assert variables[ROSTER_TOKEN] == "mine"


def test_one_host_needs_none() -> None:
    assert ROSTER_TOKEN not in of_containers(job(instances=1))[1]
    assert not [made for made in manifests(job(instances=1))[0] if made["kind"] == "Secret"]
