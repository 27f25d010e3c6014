"""Who is in the job, from the variables that each scheduler sets."""

from __future__ import annotations

import pytest

from trainshed.base.errors import JobError
from trainshed.container.cluster import resolve
from trainshed.contract.reading import read_job
from trainshed.machine.hostlist import expand


def cluster(tmp_path, **environ):
    (tmp_path / "input/config").mkdir(parents=True, exist_ok=True)
    environ = {
        "SAGEMAKER_BASE_DIR": str(tmp_path),
        "TRAINSHED_DISTRIBUTION": "torchrun",
        "TRAINSHED_PROCESSES_PER_HOST": "4",
        **environ,
    }
    return resolve(read_job(environ), environ)


TRAINJOB = {"PET_NNODES": "3", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29400"}
PYTORCHJOB = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "WORLD_SIZE": "3",
    "RANK": "1",
    "MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "23456",
}
INDEXED = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1", "NNODES": "3", "MASTER_ADDR": "job-0.job"}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[08-10]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}
OPENMPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "a"}
LISTED = {"TRAINSHED_HOSTS": "n10,n2,n1", "TRAINSHED_HOST": "n2"}
COUNTED = {"NNODES": "3", "NODE_RANK": "1", "MASTER_ADDR": "first"}


@pytest.mark.parametrize(
    ("environ", "scheduler", "address"),
    [
        (TRAINJOB, "kubernetes", "job-node-0-0.job"),
        (PYTORCHJOB, "kubernetes", "job-master-0"),
        (INDEXED, "kubernetes", "job-0.job"),
        (SLURM, "slurm", "gpu08"),
        (OPENMPI, "openmpi", "a"),
        (LISTED, "static", "n1"),
        (COUNTED, "static", "first"),
    ],
    ids=["trainjob", "pytorchjob", "indexed-job", "slurm", "openmpi", "list", "count"],
)
def test_the_second_of_three_hosts_finds_its_place(tmp_path, environ, scheduler, address):
    found = cluster(tmp_path, **environ)
    assert (found.scheduler, found.rank, len(found.hosts), found.address) == (scheduler, 1, 3, address)
    assert found.current_host == found.hosts[1] and found.world_size == 12
    assert found.evidence


def test_a_range_of_hosts_counts_as_its_upper_end_for_torchs_elastic_agent(tmp_path):
    found = cluster(tmp_path, **{**TRAINJOB, "PET_NNODES": "1:4", "TRAINSHED_ENGINE": "torchrun"})
    assert (len(found.hosts), found.rank) == (4, 1)


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({**TRAINJOB, "PET_NODE_RANK": "3"}, "PET_NODE_RANK"),
        ({**TRAINJOB, "PET_NNODES": "1:4"}, "PET_NNODES"),
        ({**PYTORCHJOB, "RANK": "x"}, "RANK"),
        ({**COUNTED, "MASTER_ADDR": ""}, "MASTER_ADDR"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4(x3)"}, "tasks per node"),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "processes on this host"),
        ({**LISTED, "TRAINSHED_HOST": "n3"}, "TRAINSHED_HOST"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_variable(tmp_path, environ, variable):
    with pytest.raises(JobError) as raised:
        cluster(tmp_path, **environ)
    assert variable in str(raised.value)


def test_what_the_job_lists_counts_more_than_who_started_the_process(tmp_path):
    found = cluster(tmp_path, **SLURM, SM_HOSTS='["algo-1", "algo-2"]', SM_CURRENT_HOST="algo-2")
    assert (found.scheduler, found.hosts, found.rank) == ("sagemaker", ("algo-1", "algo-2"), 1)


def test_a_batch_script_of_slurm_and_a_lone_pod_are_single_hosts(tmp_path):
    batch = {name: value for name, value in SLURM.items() if name not in ("SLURM_STEP_ID", "SLURM_STEP_NODELIST")}
    assert cluster(tmp_path, **batch).scheduler == "single"
    assert cluster(tmp_path, KUBERNETES_SERVICE_HOST="10.0.0.1").scheduler == "single"


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("n1", ("n1",)),
        ("n1,n2", ("n1", "n2")),
        ("gpu[01-03,7],login", ("gpu01", "gpu02", "gpu03", "gpu7", "login")),
        ("rack[1-2]node[8-10]", tuple(f"rack{rack}node{node}" for rack in (1, 2) for node in (8, 9, 10))),
        ("a[099-101]-ib", ("a099-ib", "a100-ib", "a101-ib")),
    ],
)
def test_slurm_node_lists_expand_as_scontrol_expands_them(nodelist, hosts):
    assert expand(nodelist) == hosts


def test_a_node_list_of_open_brackets_is_no_reason_to_look_at_it_for_long():
    assert expand("n1," + "[" * 300_000 + ",n2") == ("n1", "n2")  # the square of their number in steps would be minutes
