"""mpirun's command line and variables, made from a job without starting anything."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from trainshed.base.errors import LaunchError
from trainshed.container import planning
from trainshed.container.cluster import resolve
from trainshed.container.launchers.mpi import options
from trainshed.container.launchers.mpi.mpi_watcher import rank_spec
from trainshed.container.program.locate import Program
from trainshed.contract.hyperparameters import decode
from trainshed.contract.reading import read_job


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes the plan of one host of a job; there is an mpirun, which is never started."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "mpirun").touch(0o755)

    def make(hosts=("algo-1",), current="algo-1", environ=None, **hyperparameters: str):
        base = tmp_path / "base"
        (base / "input/config").mkdir(parents=True, exist_ok=True)
        given = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "8", **hyperparameters}
        (base / "input/config/hyperparameters.json").write_text(json.dumps(given))
        resources = {"hosts": list(hosts), "current_host": current, "network_interface_name": "lo"}
        (base / "input/config/resourceconfig.json").write_text(json.dumps(resources))
        variables = {"SAGEMAKER_BASE_DIR": str(base), "PATH": str(bin_folder), **(environ or {})}
        job = read_job(variables)
        program = Program(name="train.py", kind="python", command=("/usr/bin/python3", "train.py"), folder="/code")
        return planning.plan(job, resolve(job, variables), program, variables, "/tmp/scratch")

    return make


def arguments_of(plan) -> list[str]:
    """mpirun's arguments before the program that it starts."""
    argv = list(plan.processes[0].argv)
    return argv[1 : argv.index("-I") - 1]


@pytest.mark.parametrize(
    ("text", "arguments", "variables"),
    [
        ("", [], {}),
        ("-x A=1 --mca btl tcp,self", ["--mca", "btl", "tcp,self"], {"A": "1"}),
        ("-x MESSAGE='two words' -verbose", ["-verbose"], {"MESSAGE": "two words"}),
        ("-x EMPTY= -x PATH", ["-x", "PATH"], {"EMPTY": ""}),
        ("-x URL=a=b", [], {"URL": "a=b"}),
        ("--NCCL_DEBUG INFO", [], {"NCCL_DEBUG": "INFO"}),
        ("--NCCL_DEBUG=WARN --bind-to core", ["--bind-to", "core"], {"NCCL_DEBUG": "WARN"}),
        ('--tune "my file"', ["--tune", "my file"], {}),
        ("-x", ["-x"], {}),
    ],
)
def test_options_are_split_as_a_shell_would(text, arguments, variables):
    chosen = options.read(decode({"sagemaker_mpi_custom_mpi_options": json.dumps(text)}))
    assert list(chosen.arguments) == arguments and chosen.variables == variables


def test_options_of_amazons_data_parallel_library_count_where_there_are_no_others():
    name = "sagemaker_distributed_dataparallel_custom_mpi_options"
    assert options.read(decode({name: "-verbose"})).arguments == ("-verbose",)
    both = decode({name: "-verbose", "sagemaker_mpi_custom_mpi_options": "-quiet"})
    assert options.read(both).arguments == ("-quiet",)


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"sagemaker_mpi_custom_mpi_options": '-x A="1'}, "cannot be split into words: no closing quotation"),
        ({"sagemaker_mpi_custom_mpi_options": "[1]"}, "must be a string of mpirun options"),
        ({"sagemaker_mpi_num_processes": "0"}, "must be a whole number of at least 1"),
    ],
)
def test_options_that_cannot_be_read_are_refused(planned, hyperparameters, message):
    with pytest.raises(LaunchError, match=message):
        planned(**hyperparameters)


def test_one_host_needs_no_names_and_no_network(planned):
    plan = planned()
    assert arguments_of(plan) == ["--leave-session-attached", "--host", "localhost:8"]
    assert not any("_if_include" in name for name in plan.processes[0].env)
    assert plan.rank.argv[-1] == "train.py"


def test_the_first_host_starts_mpirun_and_the_others_wait(planned):
    hosts = ("algo-1", "algo-2")
    assert arguments_of(planned(hosts))[1:] == ["--host", "algo-1:8,algo-2:8"]
    assert planned(hosts, "algo-2").processes == ()


def test_a_number_of_ranks_is_passed_on_unless_the_options_have_one(planned):
    assert arguments_of(planned(sagemaker_mpi_num_processes="4"))[-2:] == ["-np", "4"]
    both = planned(sagemaker_mpi_num_processes="4", sagemaker_mpi_custom_mpi_options="-np 3")
    assert arguments_of(both)[-2:] == ["-np", "3"]


def test_ours_are_variables_so_that_options_and_the_users_variables_win(planned):
    hosts = ("algo-1", "algo-2")
    environment = planned(hosts).processes[0].env
    assert environment["OMPI_MCA_hwloc_base_binding_policy"] == "none"
    assert environment["OMPI_MCA_btl_tcp_if_include"] == environment["OMPI_MCA_oob_tcp_if_include"] == "lo"
    chosen = planned(hosts, environ={"OMPI_MCA_hwloc_base_binding_policy": "core"}).processes[0].env
    assert chosen["OMPI_MCA_hwloc_base_binding_policy"] == "core"


@pytest.mark.parametrize("parameter", ["btl_tcp_if_include", "btl_tcp_if_exclude"])
def test_no_interface_is_named_where_the_user_names_or_excludes_some(planned, parameter):
    hosts = ("algo-1", "algo-2")
    for plan in (
        planned(hosts, sagemaker_mpi_custom_mpi_options=f"--mca {parameter} eth7"),
        planned(hosts, environ={f"OMPI_MCA_{parameter}": "eth7"}),
    ):
        ours = {k: v for k, v in plan.processes[0].env.items() if k.startswith("OMPI_MCA_btl_tcp_if") and v != "eth7"}
        assert not ours and plan.processes[0].env["OMPI_MCA_oob_tcp_if_include"] == "lo"


@pytest.mark.safety
def test_secret_variables_stay_off_the_command_line(planned):
    plan = planned(sagemaker_mpi_custom_mpi_options="-x API_TOKEN=hunter22")
    assert "hunter22" not in " ".join(plan.processes[0].argv)
    assert plan.rank.env["API_TOKEN"] == "hunter22"


def test_programs_that_are_not_python_or_have_no_mpi4py_run_as_they_are(planned, tmp_path):
    assert planned().rank.argv == ("/usr/bin/python3", "train.py") or "mpi4py" in planned().rank.argv
    (tmp_path / "site/mpi4py").mkdir(parents=True)
    (tmp_path / "site/mpi4py/run.py").touch()
    with_it = planned(environ={"PYTHONPATH": str(tmp_path / "site")})
    assert with_it.rank.argv == ("/usr/bin/python3", "-m", "mpi4py", "train.py")


def test_an_image_without_mpirun_is_told_what_to_install(planned, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(LaunchError, match="there is no mpirun") as caught:
        planned(environ={"PATH": "/nowhere"})
    assert "openmpi-bin" in caught.value.hint and "torchrun" in caught.value.hint


def test_torchrun_says_that_mpi_options_are_not_used(planned):
    plan = planned(
        sagemaker_mpi_enabled="false",
        sagemaker_distributed_dataparallel_enabled="true",
        sagemaker_distributed_dataparallel_custom_mpi_options="-verbose",
    )
    assert any("custom_mpi_options has no effect" in note for note in plan.notes)


@pytest.mark.parametrize("by", ["slot", "node"])
def test_twelve_hosts_in_any_order_agree_on_master_world_and_labels(planned, by):
    names = [f"algo-{number}" for number in range(1, 13)]
    labels = {}
    for index, name in enumerate(names):
        listed = list(names)
        random.Random(index).shuffle(listed)
        plan = planned(listed, name)
        if index == 0:
            assert arguments_of(plan)[2] == ",".join(f"{host}:8" for host in names)
        for local in range(8):
            rank = index * 8 + local if by == "slot" else local * 12 + index
            numbers = {"RANK": rank, "SIZE": 96, "LOCAL_RANK": local, "LOCAL_SIZE": 8}
            spec = rank_spec(plan.mpi, {**plan.rank.env, **{f"OMPI_COMM_WORLD_{k}": str(v) for k, v in numbers.items()}}, ())
            assert spec.env["MASTER_ADDR"] == "algo-1" and spec.env["WORLD_SIZE"] == "96"
            assert (spec.env["RANK"], spec.env["GROUP_RANK"]) == (str(rank), str(index))
            assert spec.log.endswith(f"/{name}.rank{rank}.log")
            labels[rank] = spec.label
    expected = {r: f"{names[r // 8 if by == 'slot' else r % 12]}:{r}" for r in range(96)}
    assert labels == expected


def test_a_proxy_that_open_mpi_did_not_start_is_no_rank(planned):
    assert rank_spec(planned().mpi, {"PMI_RANK": "0"}, ()) is None
