"""The failure table, row by row: `train` as PID 1 of a container."""

from __future__ import annotations

import signal

import pytest

from support.docker_cli import Containers
from support.paths import TOOLKIT

from .container_cases import CASES, DEAD_NODE, INSIDE, SHARED_MEMORY, TWO_NODES, run_container, run_two_nodes
from .harness import Case, check, named

pytestmark = [pytest.mark.docker, pytest.mark.safety]
KINDS = ("out of memory", "docker stop and a handler of two seconds", "full disk below output", "no process left to start")


@pytest.mark.parametrize("case", named(CASES, KINDS))
def test_train_ends_in_a_container_as_the_failure_table_says(case: Case, bare_containers: Containers) -> None:
    check(case, run_container(case, bare_containers))


@pytest.mark.parametrize("case", named(TWO_NODES, ("script of the second node fails",)))
def test_the_first_of_two_nodes_ends_as_the_failure_table_says(
    case: Case, bare_containers: Containers, network: str
) -> None:
    check(case, run_two_nodes(case, bare_containers, network))


def test_docker_stop_right_after_docker_run_is_heard(bare_containers: Containers) -> None:
    """The command on PATH blocks stop signals before Python starts: the kernel drops what process 1 does not handle.

    Nobody can block them before the shell runs its first lines, so on a busy machine one signal may come before that.
    """
    options = ("--volume", f"{TOOLKIT}:{INSIDE}:ro", "--env", f"PYTHONPATH={INSIDE}")
    for name in ("first", "second", "third"):
        job = bare_containers.job(name).write({"code/train.py": "import time\ntime.sleep(600)\n"})
        running = bare_containers.start(f"{INSIDE}/train", job=job, options=options)
        running.stop(grace=30)
        end = running.wait()
        if end.status != 128 + signal.SIGKILL:
            break

    assert end.status == 128 + signal.SIGTERM, end.output
    failure = job.read("output/failure")  # none where the signal has met the shell before Python
    assert failure == "" or failure.startswith("Interrupted: "), failure


@pytest.mark.torch
def test_the_first_of_two_nodes_names_the_second_when_that_is_killed_in_the_middle_of_a_collective(
    torch_containers: Containers, network: str
) -> None:
    check(DEAD_NODE, run_two_nodes(DEAD_NODE, torch_containers, network))


@pytest.mark.torch
def test_a_data_loader_without_shared_memory_is_told_how_much_there_is(torch_containers: Containers) -> None:
    check(SHARED_MEMORY, run_container(SHARED_MEMORY, torch_containers))
