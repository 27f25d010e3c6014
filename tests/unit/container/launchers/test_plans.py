"""Launch plans, complete: command lines, environments and working directories, for one, two and twelve hosts."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from trainshed.base.errors import LaunchError
from trainshed.base.wings import has_wing
from trainshed.container import launchers, planning
from trainshed.container.cluster import sagemaker, single
from trainshed.container.launchers.horovod import NAMES as HOROVODS_NAMES
from trainshed.container.launchers.rank_environment import PEERS_MODULES, STACKS_HOOK
from trainshed.container.program.locate import Program, locate
from trainshed.container.roster import restarts_together
from trainshed.container.supervisor.launch_plan import LaunchPlan, ProcessSpec
from trainshed.contract.cluster import Cluster, Hardware
from trainshed.contract.wire.variables import IN_PLACE

TWELVE = tuple(f"algo-{number}" for number in range(1, 13))
TORCHRUN = {"trainshed_distribution": "torchrun", "sagemaker_program": "train.py", "epochs": "3"}
SCRIPT = {"sagemaker_program": "train.py", "epochs": "3"}
GIVEN = {"PATH": "/usr/bin:/bin", "HOME": "/home/u", "PYTHONPATH": "/own"}


def cluster_of(tree: Any, hosts: tuple[str, ...], current: str, processes: int, cpus: int = 8) -> Cluster:
    """What `cluster.resolve` finds, with hardware that does not depend on this machine."""
    job = tree.read()
    found = sagemaker.cluster(job, {}) if job.resources.given else single.cluster(job, {})
    return found.replace(
        processes_per_host=processes,
        hardware=Hardware(cpus=cpus),
        interface="eth0" if len(hosts) > 1 else "",
    )


def planned(
    tree: Any,
    hyperparameters: dict[str, str],
    hosts: tuple[str, ...] = ("algo-1",),
    current: str = "algo-1",
    processes: int = 1,
    program: Program | None = None,
    environ: dict[str, str] | None = None,
) -> LaunchPlan:
    """The plan of one host of a job."""
    tree.code("train.py")
    shuffled = random.Random(current).sample(hosts, len(hosts))
    tree.configure(hyperparameters=hyperparameters, resources={"current_host": current, "hosts": shuffled})
    job = tree.read()
    program = program or locate(job, f"{tree.base}/code", {})
    cluster = cluster_of(tree, hosts, current, processes)
    return planning.plan(job, cluster, program, GIVEN if environ is None else environ, "/scratch")


def without_contract(spec: ProcessSpec) -> dict[str, str]:
    """A process's environment without the SM_* variables, which tests/contract compares with the peer's."""
    ours = ("SM_", "SAGEMAKER_", "CURRENT_HOST")
    assert spec.env["SM_HOSTS"] and spec.env["SM_HP_EPOCHS"] == "3"
    return {name: value for name, value in spec.env.items() if not name.startswith(ours)}


def common(tree: Any, address: str, interface: str = "") -> dict[str, str]:
    interfaces = {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface} if interface else {}
    return {
        **interfaces,
        "PATH": "/usr/bin:/bin",
        "HOME": "/home/u",
        "PYTHONPATH": f"{STACKS_HOOK}:{tree.base}/code:/own:{PEERS_MODULES}",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "MASTER_ADDR": address,
        "MASTER_PORT": "7777",
        "TRAINSHED_NOTICE_FILE": "/scratch/notice.json",
    }


# --- script ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 12])
def test_a_plain_script_is_one_process_on_each_host(count: int, job_tree: Any) -> None:
    hosts = TWELVE[:count]
    for rank, host in enumerate(hosts):
        plan = planned(job_tree, SCRIPT, hosts, host)

        (spec,) = plan.processes
        assert spec.argv == (sys.executable, "train.py", "--epochs", "3")
        assert spec.cwd == f"{job_tree.base}/code"
        assert spec.log == f"{job_tree.base}/output/data/logs/{host}.rank{rank}.log"
        assert (spec.label, spec.rank, spec.signal_group) == ("", None, False)
        assert without_contract(spec) == (
            common(job_tree, "127.0.0.1") if count == 1 else common(job_tree, "algo-1", "eth0")
        )
        assert spec.env["SM_CURRENT_HOST"] == host and spec.env["SM_CURRENT_HOST_RANK"] == str(rank)
        assert (plan.launcher, plan.grace_seconds, plan.max_seconds, plan.notes) == ("script", 110.0, 0.0, ())


def test_a_host_outside_the_distribution_runs_the_script_alone(job_tree: Any) -> None:
    groups = [
        {"instance_group_name": "cpus", "instance_type": "c", "hosts": ["algo-1"]},
        {"instance_group_name": "gpus", "instance_type": "g", "hosts": ["algo-2"]},
    ]
    job_tree.code("train.py")
    job_tree.configure(
        resources=job_tree.hosts(2, 1, instance_groups=groups, current_group_name="cpus"),
        hyperparameters={**TORCHRUN, "sagemaker_distribution_instance_groups": '["gpus"]'},
    )
    job = job_tree.read()
    cluster = sagemaker.cluster(job, {}).replace(processes_per_host=4)
    plan = planning.plan(job, cluster, locate(job, f"{job_tree.base}/code", {}), GIVEN, "/scratch")

    assert plan.launcher == "script" and len(plan.processes) == 1 and "RANK" not in plan.processes[0].env


# --- torchrun: one process a rank ------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 12])
def test_each_rank_has_torchruns_whole_environment(count: int, processes: int, job_tree: Any) -> None:
    hosts, world = TWELVE[:count], count * processes
    ranks = []
    for number, host in enumerate(hosts):
        plan = planned(job_tree, TORCHRUN, hosts, host, processes)

        assert len(plan.processes) == processes and plan.launcher == "torchrun"
        for local_rank, spec in enumerate(plan.processes):
            rank = number * processes + local_rank
            address = "127.0.0.1" if count == 1 else "algo-1"
            assert spec.argv == (sys.executable, "train.py", "--epochs", "3")
            assert spec.cwd == f"{job_tree.base}/code"
            assert spec.log == f"{job_tree.base}/output/data/logs/{host}.rank{rank}.log"
            assert (spec.rank, spec.label) == (rank, f"{host}:{rank}" if world > 1 else "")
            assert without_contract(spec) == {
                **common(job_tree, address, "" if count == 1 else "eth0"),
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(processes),
                "GROUP_RANK": str(number),
                "GROUP_WORLD_SIZE": str(count),
                "ROLE_NAME": "default",
                "ROLE_RANK": str(rank),
                "ROLE_WORLD_SIZE": str(world),
                "TORCHELASTIC_RESTART_COUNT": "0",
                "TORCHELASTIC_MAX_RESTARTS": "0",
                "TORCHELASTIC_RUN_ID": "trainshed",
                "TORCHELASTIC_ERROR_FILE": f"/scratch/rank{rank}.error.json",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
                "OMP_NUM_THREADS": str(8 // processes),
            }
            ranks.append(rank)

    assert ranks == list(range(world)), "ranks are unique and complete across hosts"


@pytest.mark.parametrize("flag", ["sagemaker_distributed_dataparallel_enabled", "sagemaker_pytorch_ddp_enabled"])
def test_ranks_of_what_the_platform_starts_by_mpirun_have_open_mpis_names(flag: str, job_tree: Any) -> None:
    asked = {"sagemaker_program": "train.py", "epochs": "3"}
    found = []
    for host in TWELVE[:2]:
        outer = {**GIVEN, "OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_NODE_RANK": "7"}
        for spec in planned(job_tree, {**asked, flag: "true"}, TWELVE[:2], host, 3, environ=outer).processes:
            names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK")
            found.append([int(spec.env[f"OMPI_COMM_WORLD_{name}"]) for name in names])

    assert found == [[rank, 6, rank % 3, 3, rank % 3] for rank in range(6)]
    for other in ({flag: "false"}, {"sagemaker_torch_distributed_enabled": "true"}):
        (spec,) = planned(job_tree, {**asked, **other}).processes
        assert not [name for name in spec.env if name.startswith("OMPI_")]


def test_threads_are_shared_out_and_never_none(job_tree: Any) -> None:
    plan = planned(job_tree, TORCHRUN, processes=16)

    assert {spec.env["OMP_NUM_THREADS"] for spec in plan.processes} == {"1"}


def test_the_jobs_name_names_the_rendezvous(job_tree: Any) -> None:
    plan = planned(job_tree, {**TORCHRUN, "sagemaker_job_name": "my-job"})

    assert plan.processes[0].env["TORCHELASTIC_RUN_ID"] == "my-job"


# --- the user's own values -------------------------------------------------------------------------------------------

USERS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_SOCKET_IFNAME": "ib0",
    "GLOO_SOCKET_IFNAME": "ib1",
    "OMP_NUM_THREADS": "7",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "PYTHONUNBUFFERED": "",
    "PYTHONFAULTHANDLER": "0",
    "LD_LIBRARY_PATH": "/lib",
}


@pytest.mark.parametrize("hyperparameters", [SCRIPT, TORCHRUN])
def test_the_users_values_win_over_our_defaults(hyperparameters: dict[str, str], job_tree: Any) -> None:
    plan = planned(job_tree, hyperparameters, TWELVE[:2], "algo-2", 2, environ={**GIVEN, **USERS})

    for spec in plan.processes:
        assert {name: spec.env[name] for name in USERS} == USERS


def test_what_says_who_a_rank_is_cannot_be_inherited(job_tree: Any) -> None:
    outer = {
        "RANK": "5",
        "WORLD_SIZE": "9",
        "LOCAL_RANK": "5",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": "/outer",
        "SM_CURRENT_HOST": "other",
        "SM_NUM_GPUS": "64",
    }
    (spec,) = planned(job_tree, TORCHRUN, environ={**GIVEN, **outer}).processes

    assert (spec.env["RANK"], spec.env["WORLD_SIZE"], spec.env["LOCAL_RANK"]) == ("0", "1", "0")
    assert "TORCHELASTIC_USE_AGENT_STORE" not in spec.env and spec.env["TORCHELASTIC_ERROR_FILE"].startswith("/scratch/")
    assert (spec.env["SM_CURRENT_HOST"], spec.env["SM_NUM_GPUS"]) == ("algo-1", "0")


def test_the_plan_leaves_the_given_environment_as_it_was(job_tree: Any) -> None:
    given = dict(GIVEN)
    planned(job_tree, TORCHRUN, environ=given)

    assert given == GIVEN


@pytest.mark.parametrize(
    ("pythonpath", "packages", "expected"),
    [("/own", "", "{code}:/own"), ("", "", "{code}"), ("/own", "/pre/site", "{code}:/pre/site:/own")],
)
def test_the_code_comes_on_pythons_path_before_what_was_installed_and_after_the_hook_that_removes_itself(
    pythonpath: str, packages: str, expected: str, job_tree: Any
) -> None:
    code = f"{job_tree.base}/code"
    program = Program(
        name="train.py",
        kind="python",
        command=("python", "train.py"),
        folder=code,
        packages=packages,
        scripts="/pre/bin" if packages else "",
    )
    (spec,) = planned(job_tree, SCRIPT, program=program, environ={"PATH": "/bin", "PYTHONPATH": pythonpath}).processes

    assert spec.env["PYTHONPATH"] == f"{STACKS_HOOK}:{expected.format(code=code)}:{PEERS_MODULES}"
    assert spec.env["PATH"] == ("/pre/bin:/bin" if packages else "/bin")


def test_the_grace_is_the_jobs(job_tree: Any) -> None:
    assert planned(job_tree, {**SCRIPT, "trainshed_grace_seconds": "5"}).grace_seconds == 5.0
    assert planned(job_tree, {**TORCHRUN, "trainshed_grace_seconds": "5"}).grace_seconds == 5.0


# --- programs that are no Python file --------------------------------------------------------------------------------


@pytest.mark.parametrize("hyperparameters", [SCRIPT, TORCHRUN])
@pytest.mark.parametrize(
    ("kind", "command", "group"),
    [
        ("python", ("python", "train.py"), False),
        ("module", ("python", "-m", "pkg.train"), False),
        ("package", ("python", "-m", "train"), False),
        ("shell", ("/bin/sh", "/code/run.sh"), True),
        ("executable", ("/code/tool",), True),
    ],
)
def test_programs_of_every_kind_get_their_command_and_their_signals(
    hyperparameters: dict[str, str], kind: str, command: tuple[str, ...], group: bool, job_tree: Any
) -> None:
    program = Program(name="x", kind=kind, command=command, folder="/code")
    plan = planned(job_tree, hyperparameters, processes=2, program=program)

    for spec in plan.processes:
        assert spec.argv == (*command, "--epochs", "3") and spec.cwd == "/code" and spec.signal_group is group


@pytest.mark.parametrize(
    ("style", "arguments"), [("json", ("--b", "true")), ("flags", ("-b",)), ("sagemaker", ("-b", "True"))]
)
def test_the_command_line_has_the_style_that_the_job_asks_for(style: str, arguments: tuple[str, ...], job_tree: Any) -> None:
    job_tree.code("train.py")
    job_tree.configure(hyperparameters={"b": "true", "trainshed_argv": style})
    job = job_tree.read()
    plan = planning.plan(job, single.cluster(job, {}), locate(job, f"{job_tree.base}/code", {}), GIVEN, "/scratch")

    assert plan.processes[0].argv[2:] == arguments


# --- torch's own agent -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "restarts", "hosts", "processes", "alone"),
    [
        ("torchrun", "2", ("algo-1",), 2, True),
        ("torchrun", "0", ("algo-1",), 2, False),
        ("torchrun", "2", ("algo-1",), 1, False),
        ("torchrun", "2", ("algo-1", "algo-2"), 2, False),
        ("horovod", "2", ("algo-1",), 2, False),
        ("script", "2", ("algo-1",), 1, False),
    ],
)
def test_only_ranks_of_one_host_that_meet_by_torch_may_live_on(
    kind: str, restarts: str, hosts: tuple[str, ...], processes: int, alone: bool, job_tree: Any
) -> None:
    asked = {**TORCHRUN, "trainshed_distribution": kind, "trainshed_max_restarts": restarts}
    plan = planned(job_tree, asked, hosts, processes=processes, environ={**GIVEN, IN_PLACE: "/outer"})
    found = {spec.env.get(IN_PLACE) for spec in plan.processes}
    assert found == ({"/scratch/in-place"} if alone else {"/outer"} if kind == "script" else {None})


AGENT = {**TORCHRUN, "trainshed_engine": "torchrun", "trainshed_max_restarts": "3"}


@pytest.mark.parametrize(("current", "serves"), [("algo-1", "true"), ("algo-2", "false"), ("algo-12", "false")])
def test_the_elastic_agent_is_one_process_a_host_and_host_0_serves_the_rendezvous(
    current: str, serves: str, job_tree: Any
) -> None:
    plan = planned(job_tree, {**AGENT, "sagemaker_job_name": "my-job"}, TWELVE, current, 4)

    (spec,) = plan.processes
    assert spec.argv == (
        *(sys.executable, "-m", "trainshed.container.launchers.elastic"),
        *("--nnodes=12", "--nproc-per-node=4", "--max-restarts=3"),
        *("--rdzv-id=my-job", "--rdzv-backend=c10d", "--rdzv-endpoint=algo-1:7777", f"--rdzv-conf=is_host={serves}"),
        f"--log-dir={os.path.dirname(spec.env['TRAINSHED_AGENT_EVENTS'])}/agent",
        *("--no-python", sys.executable, "train.py", "--epochs", "3"),
    )
    assert (spec.rank, spec.label, spec.cwd) == (None, current, f"{job_tree.base}/code")
    assert "RANK" not in spec.env and spec.env["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize("kind", ["tensorflow", "jax", "script", "ray"])
def test_hosts_that_may_be_missing_need_the_elastic_agent(job_tree: Any, kind: str) -> None:
    asked = {"trainshed_distribution": kind, "trainshed_engine": "torchrun", "trainshed_min_nodes": "1"}
    with pytest.raises(LaunchError, match=f"trainshed_min_nodes = 1 needs torch's elastic agent, .* a {kind} job"):
        planned(job_tree, asked, TWELVE[:2])

    assert planned(job_tree, asked).launcher == kind  # one host: there is nobody to miss


@pytest.mark.parametrize(
    ("kind", "engine", "together"),
    [
        *((kind, "trainshed", True) for kind in ("torchrun", "horovod", "script", "jax", "ray")),
        *((kind, "torchrun", False) for kind in ("torchrun", "horovod", "pipeline")),
        *((kind, "torchrun", True) for kind in ("script", "mpi", "tensorflow")),
    ],
)
def test_hosts_restart_together_wherever_torch_has_no_agent(job_tree: Any, kind: str, engine: str, together: bool) -> None:
    job_tree.code("train.py")
    asked = {"trainshed_distribution": kind, "trainshed_engine": engine, "trainshed_max_restarts": "3"}
    job_tree.configure(hyperparameters=asked)
    several = Cluster(hosts=("algo-1", "algo-2"), current_host="algo-2", rank=1)

    assert restarts_together(job_tree.read(), several) == together
    assert not restarts_together(job_tree.read(), several.replace(hosts=("algo-1",), current_host="algo-1", rank=0))


@pytest.mark.parametrize(("current", "listens"), [("algo-1", (0,)), ("algo-2", ())])
def test_the_first_host_listens_on_the_jobs_port(job_tree: Any, current: str, listens: tuple[int, ...]) -> None:
    plan = planned(job_tree, TORCHRUN, TWELVE[:2], current)
    assert (plan.port, plan.listens, plan.span) == (7777, listens, 1)


@pytest.mark.parametrize(("current", "listens"), [("algo-1", (0, 1)), ("algo-3", (4, 5))])
def test_each_worker_of_tensorflow_listens_on_a_port_of_its_own(
    job_tree: Any, current: str, listens: tuple[int, ...]
) -> None:
    asked = {"trainshed_distribution": "tensorflow", "trainshed_processes_per_host": "2"}
    plan = planned(job_tree, asked, TWELVE[:3], current, 2)
    assert (plan.port, plan.listens, plan.span) == (7777, listens, 6)


# --- horovod ---------------------------------------------------------------------------------------------------------


def path_of(plan: LaunchPlan) -> list[str]:
    spec = plan.rank or plan.processes[0]
    return spec.env["PYTHONPATH"].split(":")


def test_ranks_for_horovod_are_torchruns_with_its_names_at_the_end_of_their_path(job_tree: Any) -> None:
    asked = {"sagemaker_program": "train.py", "epochs": "3", "trainshed_distribution": "horovod"}
    plan, torchrun = planned(job_tree, asked, processes=2), planned(job_tree, TORCHRUN, processes=2)

    assert plan.launcher == "horovod" and path_of(plan) == [*path_of(torchrun), HOROVODS_NAMES]
    assert [spec.env["RANK"] for spec in plan.processes] == ["0", "1"]
    assert HOROVODS_NAMES not in path_of(planned(job_tree, SCRIPT))


def test_mpi_has_horovods_names_unless_the_real_one_is_installed(job_tree: Any, tmp_path: Path) -> None:
    asked = {"sagemaker_program": "train.py", "epochs": "3", "sagemaker_mpi_enabled": "true"}
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mpirun").touch(0o755)
    (tmp_path / "site/horovod").mkdir(parents=True)
    environ = {**GIVEN, "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}

    assert path_of(planned(job_tree, asked, environ=environ))[-1] == HOROVODS_NAMES
    real = planned(job_tree, asked, environ={**environ, "PYTHONPATH": f"{tmp_path}/site"})
    assert HOROVODS_NAMES not in path_of(real)
    with pytest.raises(LaunchError, match=r"the real Horovod is installed.*each rank would train alone") as raised:
        planned(job_tree, {**asked, "trainshed_distribution": "horovod"}, environ={"PYTHONPATH": f"{tmp_path}/site"})
    assert "trainshed_distribution to mpi" in raised.value.hint


def test_a_variable_that_linux_would_refuse_is_left_out_and_told(job_tree: Any) -> None:
    plan = planned(job_tree, {**SCRIPT, "long": "x" * 140_000})

    assert "SM_HP_LONG" not in plan.processes[0].env
    assert any(note.startswith("SM_HP_LONG is not set: it is longer than the 128 KiB") for note in plan.notes)


# --- pipeline --------------------------------------------------------------------------------------------------------

AMAZONS = {
    "sagemaker_program": "train.py",
    "epochs": "3",
    "sagemaker_mpi_enabled": "true",
    "sagemaker_mpi_num_of_processes_per_host": "2",
    "sagemaker_mpi_custom_mpi_options": '""',
    "mp_parameters": '{"partitions": 2, "microbatches": 4}',
}


@pytest.fixture
def with_mpirun(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has an mpirun."""
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text("#!/bin/sh\n")
    mpirun.chmod(0o755)
    return {**GIVEN, "PATH": str(mpirun.parent)}


def test_mp_parameters_with_mpis_flag_are_a_pipeline_under_mpirun(job_tree: Any, with_mpirun: dict[str, str]) -> None:
    plan = planned(job_tree, AMAZONS, processes=2, environ=with_mpirun)

    assert plan.launcher == "pipeline" and plan.mpi is not None and plan.rank is not None
    assert plan.processes[0].argv[0] == "mpirun"
    environment = plan.rank.env
    assert json.loads(environment["TRAINSHED_PIPELINE"]) == {"partitions": 2, "microbatches": 4}
    assert json.loads(environment["SM_HP_MP_PARAMETERS"]) == {"partitions": 2, "microbatches": 4}
    assert json.loads(environment["SM_FRAMEWORK_PARAMS"])["sagemaker_mpi_enabled"] is True
    compat = environment["PYTHONPATH"].split(":")[-1]
    assert os.path.isdir(os.path.join(compat, "smdistributed", "modelparallel", "torch")) or not has_wing("compat")


def test_without_mpirun_the_supervisor_starts_such_a_jobs_ranks_and_says_so(
    job_tree: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))  # nor is there one beside our Python
    plan = planned(job_tree, AMAZONS, processes=2, environ={**GIVEN, "PATH": str(tmp_path)})

    assert plan.launcher == "pipeline" and plan.mpi is None
    assert [process.rank for process in plan.processes] == [0, 1]
    assert "mpirun is not installed: trainshed starts the ranks itself" in plan.notes
    assert plan.processes[1].env["RANK"] == "1" and "TRAINSHED_PIPELINE" in plan.processes[1].env


def test_our_own_pipeline_is_the_supervisors_whatever_the_image_has(job_tree: Any, with_mpirun: dict[str, str]) -> None:
    own = {"trainshed_distribution": "pipeline", "sagemaker_program": "train.py", "epochs": "3"}
    own["trainshed_pipeline"] = '{"partitions": 2, "partition_file": "plan.json"}'
    plan = planned(job_tree, own, processes=2, environ=with_mpirun)

    assert plan.launcher == "pipeline" and plan.mpi is None and len(plan.processes) == 2
    environment = plan.processes[0].env
    assert json.loads(environment["TRAINSHED_PIPELINE"]) == {"partitions": 2, "partition_file": "plan.json"}
    # transformers would otherwise take the job for one of Amazon's library
    assert "sagemaker_mpi_enabled" not in environment["SM_FRAMEWORK_PARAMS"] and "SM_HP_MP_PARAMETERS" not in environment


@pytest.mark.parametrize(("users", "ranks"), [({}, "0"), ({"PYTHONHASHSEED": "7"}, "7")])
def test_a_pipelines_ranks_hash_strings_alike(
    users: dict[str, str], ranks: str, job_tree: Any, with_mpirun: dict[str, str]
) -> None:
    own = {"trainshed_distribution": "pipeline", "sagemaker_program": "train.py", "epochs": "3"}
    plan = planned(job_tree, own, processes=2, environ={**with_mpirun, **users})
    assert {process.env["PYTHONHASHSEED"] for process in plan.processes} == {ranks}


@pytest.mark.parametrize(("engine", "first"), [("mpi", "mpirun"), ("torchrun", sys.executable)])
def test_a_pipelines_ranks_are_started_by_whoever_the_job_names(
    engine: str, first: str, job_tree: Any, with_mpirun: dict[str, str]
) -> None:
    own = {**AMAZONS, "trainshed_engine": engine}
    plan = planned(job_tree, own, processes=2, environ=with_mpirun)

    assert plan.launcher == "pipeline" and plan.processes[0].argv[0] == first


def test_the_engine_mpi_is_for_pipelines(job_tree: Any) -> None:
    with pytest.raises(LaunchError, match="trainshed_engine = mpi works with the distribution pipeline"):
        planned(job_tree, {**TORCHRUN, "trainshed_engine": "mpi"})


def test_an_elastic_agent_under_another_leader_has_its_rendezvous_there(job_tree: Any) -> None:
    settings = {"trainshed_distribution": "torchrun", "trainshed_engine": "torchrun", "trainshed_min_nodes": "1"}
    hosts = ("algo-1", "algo-2", "algo-3")
    plan = planned(job_tree, settings, hosts, "algo-2")
    for leads in (True, False):
        (before,), (after,) = plan.processes, launchers.moved(plan, 1, "algo-2", leads, 3).processes
        changed = dict(word.split("=", 1) for word in after.argv if word not in before.argv)
        assert changed.pop("--rdzv-endpoint").startswith("algo-2:")
        assert changed.pop("--nnodes") == "1:2" and changed.pop("--rdzv-id").endswith("-1")
        assert f"is_host={str(leads).lower()}" in changed.pop("--rdzv-conf").split(",") and not changed
        assert len(after.argv) == len(before.argv) and after.env == before.env
