"""The command lines of containers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainshed.places.container_command import CommandFacts, create, create_network, mounts, network_name
from trainshed.places.container_engine import Engine
from trainshed.runner.files import layout
from trainshed.runner.files.owner import caller
from trainshed.runner.files.run import Run
from trainshed.runner.job.job import ALL_GPUS, ChannelSpec, Job, Resources

GIB = 1 << 30
MACHINE = CommandFacts(Engine(("docker",)), uid=1000, gid=100, user="ada", memory=64 * GIB)
JOB = Job(name="x", image="img:1", program="train.py", source_dir="/src")


def plan(**fields: object) -> Run:
    return layout.plan(replace(JOB, **fields), in_containers=True, now=0)  # type: ignore[arg-type]


def arguments(machine: CommandFacts = MACHINE, index: int = 0, **fields: object) -> list[str]:
    return create(plan(**fields), index, machine)[0]


def value_of(flag: str, given: list[str]) -> str:
    return given[given.index(flag) + 1]


def test_one_host_has_a_name_limits_and_no_network_of_its_own() -> None:
    run = plan(resources=Resources(cpus=1.5, memory=8 * GIB, shm_size=GIB))
    given = create(run, 0, MACHINE)[0]
    assert given[0] == "create"
    assert given[-2:] == ["img:1", "train"]
    assert value_of("--name", given) == f"x-1970-01-01-00-00-00-000-{run.id[:6]}-algo-1"
    assert value_of("--hostname", given) == "algo-1"
    assert value_of("--user", given) == "1000:100"
    assert (value_of("--memory", given), value_of("--cpus", given)) == (str(8 * GIB), "1.5")
    assert value_of("--shm-size", given) == str(GIB)
    assert "--network" not in given
    assert "--gpus" not in given
    assert network_name(plan()) == ""


def test_several_hosts_reach_each_other_by_their_names() -> None:
    run = plan(instances=2)
    for index, host in enumerate(("algo-1", "algo-2")):
        given = create(run, index, MACHINE)[0]
        assert value_of("--network", given) == network_name(run) == create_network(run)[-1]
        assert value_of("--network-alias", given) == host


def test_everything_is_labelled_so_that_it_is_found_when_the_runner_is_dead() -> None:
    run = plan(instances=2)
    for given in (create_network(run), create(run, 1, MACHINE)[0]):
        assert f"org.trainshed.run={run.id}" in given
        assert f"org.trainshed.folder={run.folder}" in given
    assert "org.trainshed.host=algo-2" in given


@pytest.mark.parametrize(("memory", "size"), [(64 * GIB, 2 * GIB), (3 * GIB, 3 * GIB // 2)])
def test_shared_memory_is_two_gib_or_half_of_what_there_is(memory: int, size: int) -> None:
    assert value_of("--shm-size", arguments(replace(MACHINE, memory=memory))) == str(size)


def test_data_is_mounted_read_only_and_the_rest_writable() -> None:
    run = plan(channels=(ChannelSpec("train", "/data/train"),), checkpoints="/kept")
    tree = f"{run.folder}/algo-1"
    assert mounts(run, run.hosts[0]) == [
        (f"{tree}/input", "/opt/ml/input", False),
        (f"{tree}/output", "/opt/ml/output", False),
        (f"{run.folder}/model", "/opt/ml/model", False),
        ("/kept", "/opt/ml/checkpoints", False),
        (f"{tree}/code", "/opt/ml/code", False),
        ("/data/train", "/opt/ml/input/data/train", True),
    ]
    assert "type=bind,source=/data/train,target=/opt/ml/input/data/train,readonly" in create(run, 0, MACHINE)[0]


def test_a_channel_is_writable_where_the_job_says_so() -> None:
    given = arguments(channels=(ChannelSpec("train", "/data/train", access="rw"),))
    assert "type=bind,source=/data/train,target=/opt/ml/input/data/train" in given


def test_without_code_of_the_jobs_own_the_images_is_not_hidden() -> None:
    run = plan(source_dir="")
    assert not [target for _, target, _ in mounts(run, run.hosts[0]) if target.endswith("/code")]


def test_a_path_with_a_comma_is_quoted_as_the_engine_reads_it() -> None:
    given = arguments(channels=(ChannelSpec("train", '/data/a,"b"'),))
    assert 'type=bind,"source=/data/a,""b""",target=/opt/ml/input/data/train,readonly' in given


def test_values_of_variables_are_handed_over_unseen() -> None:
    given, client = create(plan(environment={"API_TOKEN": "hunter22", "PATH": "/bin"}), 0, MACHINE)
    assert "hunter22" not in " ".join(given)
    assert given[given.index("API_TOKEN") - 1] == "--env"
    assert client["API_TOKEN"] == "hunter22"
    assert "PATH=/bin" in given, "the client itself needs its own PATH"
    assert "PATH" not in client


def test_a_user_whom_the_image_does_not_know_gets_a_home_and_a_name() -> None:
    _, client = create(plan(), 0, MACHINE)
    assert "HOME=/tmp" in create(plan(), 0, MACHINE)[0]
    assert "USER=ada" in create(plan(), 0, MACHINE)[0]
    assert "HOME" not in client
    assert "HOME=/tmp" not in create(plan(), 0, replace(MACHINE, uid=0))[0]
    assert "HOME=/home/me" in create(plan(environment={"HOME": "/home/me"}), 0, MACHINE)[0]


def test_rootless_engines_map_the_caller_themselves() -> None:
    assert "--user" not in arguments(replace(MACHINE, engine=Engine(("docker",), rootless=True)))
    podman = arguments(replace(MACHINE, engine=Engine(("podman",), "podman", rootless=True)))
    assert value_of("--userns", podman) == "keep-id"
    assert value_of("--user", podman) == "1000:100"


def test_gpus_that_are_there_are_divided_among_the_hosts() -> None:
    machine = replace(MACHINE, devices=("0", "1", "2", "3"))
    assert value_of("--gpus", arguments(machine)) == '"device=0,1,2,3"'
    assert value_of("--gpus", arguments(machine, 1, instances=2)) == '"device=2,3"'
    assert value_of("--gpus", arguments(machine, resources=Resources(gpus=1))) == '"device=0"'
    assert "--gpus" not in arguments(machine, resources=Resources(gpus=0))


def test_gpus_that_are_asked_for_and_not_seen_are_left_to_the_engine() -> None:
    assert value_of("--gpus", arguments(resources=Resources(gpus=ALL_GPUS))) == "all"


def test_podman_takes_gpus_as_devices() -> None:
    machine = replace(MACHINE, engine=Engine(("podman",), "podman"), devices=("0", "1"))
    assert [part for part in arguments(machine) if "nvidia" in part] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]


def test_files_belong_to_who_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    monkeypatch.setattr("os.getgid", lambda: 0)
    assert caller({"SUDO_UID": "1000", "SUDO_GID": "100"}) == (1000, 100)
    assert caller({}) == (0, 0)
    monkeypatch.setattr("os.getuid", lambda: 5)
    assert caller({"SUDO_UID": "1000", "SUDO_GID": "100"}) == (5, 0)
