"""The spine: one real whole job of every capability in every place, as docs/evidence/spine.md lists it (doc_tables.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from support.paths import ROOT

TESTS = ROOT / "tests"
PLAIN = "as plain processes do"
# Each row of README's "What works where": for its three columns a test of the spine, or the words why there is none.
PLACES = {
    "plain processes": (
        "jobs/runner/test_run_processes.py::test_one_host_trains_and_everything_comes_home",
        "jobs/launchers/test_torch.py::test_two_ranks_reduce_a_tensor_under_either_engine",
        "jobs/runner/test_run_processes.py::test_ranks_of_two_hosts_find_each_other_on_one_machine",
    ),
    "Docker": (
        "images/test_runner_docker.py::test_one_container_trains_as_its_caller_and_leaves_nothing_of_roots",
        PLAIN,
        "images/test_two_hosts.py::test_tables_are_learnt_on_two_containers_by_the_name_of_a_program",
    ),
    "machines that you can ssh to": (
        "jobs/ssh/test_one_machine.py::test_a_job_goes_there_and_its_results_come_home",
        PLAIN,
        "jobs/ssh/test_several_machines.py::test_ranks_on_three_machines_train_one_model",
    ),
    "Slurm": (
        PLAIN,
        PLAIN,
        "jobs/slurm/test_jobs.py::test_a_job_on_two_nodes_is_followed_to_its_end_and_its_model_comes_home",
    ),
    "Ray": (
        "jobs/ray/test_jobs.py::test_stop_lets_the_script_end_and_brings_home_what_it_saved",
        PLAIN,
        "jobs/ray/test_jobs.py::test_hosts_of_a_job_run_on_nodes_of_their_own_and_all_they_make_comes_home",
    ),
    "Kubernetes": (
        "jobs/kubernetes/test_followed.py::test_detached_and_stopped",
        PLAIN,
        "jobs/kubernetes/test_followed.py::test_a_job_of_two_hosts_from_its_manifest_to_its_end",
    ),
    "local modes of Amazon's SDKs": (
        "clients/test_sdk2.py::test_a_script_gets_hyperparameters_of_every_type_and_its_channels",
        PLAIN,
        "clients/test_sdk2.py::test_torch_distributed_on_two_hosts_adds_up",
    ),
    "Amazon SageMaker": ("never run against the service",) * 3,
    "NVIDIA GPUs": ("never run on a GPU by these tests",) * 3,
}


@cache
def spine() -> dict[str, tuple[str, list[str]]]:
    """File below tests/ -> what it is about, in its own words, and its tests of which a case has the mark."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if "mark.spine" in (text := path.read_text()) and (marked := [*_marked(file := ast.parse(text))]):
            found[str(path.relative_to(TESTS))] = (ast.get_docstring(file) or "").partition("\n")[0], marked
    return found


def _marked(file: ast.Module) -> Iterator[str]:
    """Tests with the mark: by a decorator, by `pytestmark`, or in a table of the file's own."""
    values = [node for node in file.body if isinstance(node, ast.Assign) and _mentions(node.value, {"spine"})]
    names = {"spine", *(name.id for node in values for name in node.targets if isinstance(name, ast.Name))}
    tests = [node for node in file.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    yield from (
        test.name for test in tests if "pytestmark" in names or any(_mentions(one, names) for one in test.decorator_list)
    )


def _mentions(code: ast.expr, names: set[str]) -> bool:
    return any(getattr(node, "attr", getattr(node, "id", "")) in names for node in ast.walk(code))


def place_rows() -> list[tuple[str, ...]]:
    """Each place with what runs there."""
    return [(place, *(f"`{cell}`" if "::" in cell else cell for cell in cells)) for place, cells in PLACES.items()]


def rows() -> list[tuple[str, str]]:
    """What each file is about, and its tests."""
    return [(about, "<br>".join(f"`{file}::{test}`" for test in tests)) for file, (about, tests) in spine().items()]
