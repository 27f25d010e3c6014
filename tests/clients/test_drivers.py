"""What stands in front of mpirun, torchrun and sshd for SDK v3's drivers; whole jobs are in test_sdk3."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainshed.container.drivers import mpirun, sshd, torchrun
from trainshed.container.drivers.interfaces import DRIVER_VARIABLE, is_valid

HERE = ["lo", "eth0", "eth1"]
DRIVER = {DRIVER_VARIABLE: "/opt/ml/input/data/sm_drivers/distributed_drivers"}


def corrected(words: str, environ: dict[str, str] | None = None, default: str = "eth0") -> tuple[str, list[str]]:
    made, notes = mpirun.corrected(words.split(), environ or {}, interfaces=HERE, default=lambda: default)
    return " ".join(made), notes


def test_an_interface_that_is_not_there_is_replaced_wherever_mpirun_takes_one() -> None:
    given = "-mca btl_tcp_if_include ethwe -mca oob_tcp_if_include ethwe -x NCCL_SOCKET_IFNAME=ethwe -np 1 python a.py"
    made, notes = corrected(given)

    assert made == given.replace("ethwe", "eth0")
    assert notes == ["network interface 'ethwe' does not exist in this container; using eth0"]


@pytest.mark.parametrize(
    "words",
    [
        "-mca btl_tcp_if_include eth1 -np 2 a.out",
        "--mca btl_tcp_if_include 10.0.0.0/8 a.out",
        "-x NCCL_SOCKET_IFNAME=eth a.out",
        "-x NCCL_SOCKET_IFNAME=^lo a.out",
        "-x NCCL_SOCKET_IFNAME a.out",
        "-mca btl ^openib a.out",
        "--host a:2,b:2 -np 2 a.out",
        "-mca btl_tcp_if_include",
        "",
    ],
)
def test_everything_else_passes_as_it_is(words: str) -> None:
    assert corrected(words) == (words, [])


def test_without_any_network_nothing_is_replaced() -> None:
    assert corrected("-mca btl_tcp_if_include ethwe a.out", default="") == ("-mca btl_tcp_if_include ethwe a.out", [])


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("--host algo-1:2,algo-2:2 -np 2 a.out", "4"),
        ("--host algo-1,algo-2,algo-3 -np 1 a.out", "3"),
        ("--host algo-1:2 -np 2 a.out", "2"),
        ("--host algo-1:2,algo-2:2 -np 3 a.out", "3"),  # a count of its own
    ],
)
def test_the_drivers_count_of_one_host_becomes_that_of_all(words: str, count: str) -> None:
    made, notes = corrected(words, DRIVER)

    assert made.split()[made.split().index("-np") + 1] == count
    assert bool(notes) == (made != words)


def test_the_real_mpirun_is_the_next_one_on_the_path(tmp_path: Path) -> None:
    for name in ("front", "real", "later"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mpirun").write_text("#!/bin/sh\n")
        (tmp_path / name / "mpirun").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "front")
    path = os.pathsep.join(str(tmp_path / name) for name in ("link", "front", "real", "later"))

    assert mpirun.real("mpirun", path, str(tmp_path / "front")) == f"{tmp_path}/real/mpirun"
    assert mpirun.real("mpirun", str(tmp_path / "front"), str(tmp_path / "front")) == ""


def test_torchruns_variables_are_replaced_only_where_they_name_nothing() -> None:
    environ = {"NCCL_SOCKET_IFNAME": "ethwe", "GLOO_SOCKET_IFNAME": "eth1", "OTHER": "ethwe"}
    changed, notes = torchrun.corrected(environ, interfaces=HERE, default=lambda: "eth0")

    assert changed == {"NCCL_SOCKET_IFNAME": "eth0"}
    assert len(notes) == 1
    assert torchrun.corrected({}, interfaces=HERE, default=lambda: "eth0") == ({}, [])


@pytest.mark.parametrize(
    ("named", "found"),
    [("eth0", True), ("eth", True), ("ethwe", False), ("=eth0", True), ("ethwe,eth1", True), ("", False), ("^lo", True)],
)
def test_what_counts_as_there(named: str, found: bool) -> None:
    assert is_valid(named, HERE) is found


def test_hosts_of_a_job_find_the_same_seed_and_other_jobs_another(tmp_path: Path) -> None:
    config = tmp_path / "input/config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text('{"lr": "0.1"}')
    job = {"TRAINING_JOB_NAME": "job-1", "SM_HOSTS": '["algo-1", "algo-2"]'}
    seed = sshd.job_seed({**job, "SM_CURRENT_HOST": "algo-1"}, str(tmp_path))

    assert len(seed) == 32
    assert sshd.job_seed({**job, "SM_CURRENT_HOST": "algo-2"}, str(tmp_path)) == seed
    assert sshd.job_seed({**job, "TRAINING_JOB_NAME": "job-2"}, str(tmp_path)) != seed
    assert sshd.job_seed({**job, "TRAINSHED_ROSTER_TOKEN": "secret"}, str(tmp_path)) != seed
    (config / "hyperparameters.json").write_text('{"lr": "0.2"}')
    assert sshd.job_seed(job, str(tmp_path)) != seed


def test_the_jobs_key_opens_the_jobs_hosts_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / ".ssh"
    own = sshd.install(str(folder), ["algo-1", "algo-2"], "PRIVATE", "ssh-ed25519 AAAA")

    assert own == f"{folder}/id_ed25519"
    assert (folder / "id_ed25519").read_text() == "PRIVATE"
    assert (folder / "authorized_keys").read_text() == "ssh-ed25519 AAAA\n"
    assert (folder / "known_hosts").read_text() == "algo-1,algo-2 ssh-ed25519 AAAA\n"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {(folder / name).stat().st_mode & 0o777 for name in ("id_ed25519", "authorized_keys")} == {0o600}


def test_a_key_of_the_images_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "id_ed25519").write_text("OWN")

    assert sshd.install(str(tmp_path), ["a", "b"], "PRIVATE", "ssh-ed25519 AAAA") == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["id_ed25519"]


def test_a_login_finds_the_variables_of_its_host(tmp_path: Path) -> None:
    sshd.write_environment(str(tmp_path), {"SM_HOSTS": '["a", "b"]', "HOME": "/root", "LINES": "a\nb", "PATH": "/x"})

    assert (tmp_path / "environment").read_text() == 'SM_HOSTS=["a", "b"]\nPATH=/x\n'


def test_sshd_is_left_as_it_is_for_everyone_else(tmp_path: Path) -> None:
    assert sshd.options({"SM_HOSTS": '["a", "b"]'}, str(tmp_path)) == []
    alone = sshd.options({**DRIVER, "SM_HOSTS": '["a"]'}, str(tmp_path))
    assert alone == ([] if os.geteuid() else ["-o", "PasswordAuthentication=no", "-o", "KbdInteractiveAuthentication=no"])
    assert not (tmp_path / ".ssh").exists()
