"""The failure table, row by row: `train` as PID 1 of a container."""

from __future__ import annotations

import pytest

from container.docker_cli import Containers

from .container_cases import CASES, DEAD_NODE, run_container, run_dead_node
from .harness import Case, check, named

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("case", named(CASES))
def test_train_ends_in_a_container_as_the_failure_table_says(case: Case, bare_containers: Containers) -> None:
    check(case, run_container(case, bare_containers))


@pytest.mark.torch
def test_the_first_node_ends_with_a_hint_at_the_second_when_that_is_killed(
    torch_containers: Containers, network: str
) -> None:
    check(DEAD_NODE, run_dead_node(torch_containers, network))
