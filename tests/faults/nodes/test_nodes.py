"""A part of the matrix of launchers and events; TRAINSHED_TEST_NODES=1 runs all of it, which takes some 15 minutes."""

from __future__ import annotations

import os

import pytest

from support.docker_cli import Containers
from support.image_fixtures import base_image, cpu_image, docker, network  # noqa: F401 (fixtures)

from .matrix import Event, cells_of, run

pytestmark = [pytest.mark.docker, pytest.mark.torch]
# What no other test has: tests/faults, tests/roster and tests/mpi break hosts of one launcher or the other, too.
DEFAULT = {
    ("torchrun", "node 0 is SIGKILLed", 4),
    ("torchrun's agent", "a rank raises", 2),
    ("mpi", "node 0 is SIGKILLed", 3),
    ("mpi", "SIGTERM to one node", 2),
    ("pipeline", "a rank raises", 3),
}


def cells() -> list[object]:
    """(launcher, event, nodes) as pytest parameters."""
    everything = [(launcher, event, nodes) for nodes in (2, 3, 4) for launcher, event in cells_of(nodes)]
    wanted = [
        cell
        for cell in everything
        if os.environ.get("TRAINSHED_TEST_NODES") == "1" or (cell[0], cell[1].name, cell[2]) in DEFAULT
    ]
    return [
        pytest.param(
            *cell,
            id=f"{cell[0]}-{cell[2]}-{cell[1].name}".replace(" ", "-"),
            marks=[] if cell[1].name == "SIGTERM to one node" else pytest.mark.matrix,
        )
        for cell in wanted
    ]


@pytest.mark.parametrize(("launcher", "event", "nodes"), cells())
def test_all_nodes_end_with_the_same_reason(
    launcher: str,
    event: Event,
    nodes: int,
    torch_containers: Containers,
    network: str,  # noqa: F811
) -> None:
    row = run(launcher, event, nodes, torch_containers, network)
    assert not row.problem, f"{row.problem}\n{row.output}"
