"""The failure table, row by row: `train` as PID 1 of a container."""

from __future__ import annotations

import pytest

from support.docker_cli import Containers

from .container_cases import CASES, DEAD_NODE, SHARED_MEMORY, TWO_NODES, run_container, run_two_nodes
from .harness import Case, check, named

pytestmark = pytest.mark.docker


@pytest.mark.parametrize("case", named(CASES))
def test_train_ends_in_a_container_as_the_failure_table_says(case: Case, bare_containers: Containers) -> None:
    check(case, run_container(case, bare_containers))


@pytest.mark.parametrize("case", named(TWO_NODES))
def test_the_first_of_two_nodes_ends_as_the_failure_table_says(
    case: Case, bare_containers: Containers, network: str
) -> None:
    check(case, run_two_nodes(case, bare_containers, network))


@pytest.mark.torch
def test_the_first_of_two_nodes_names_the_second_when_that_is_killed_in_the_middle_of_a_collective(
    torch_containers: Containers, network: str
) -> None:
    check(DEAD_NODE, run_two_nodes(DEAD_NODE, torch_containers, network))


@pytest.mark.torch
def test_a_data_loader_without_shared_memory_is_told_how_much_there_is(torch_containers: Containers) -> None:
    check(SHARED_MEMORY, run_container(SHARED_MEMORY, torch_containers))
