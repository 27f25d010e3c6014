"""The container engine's absence, silence and errors become advice. The engines here are small shell scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.runner_project import Project
from trainshed.places.container_command import CommandFacts, create
from trainshed.places.container_engine import EngineError, find_engine, hint_for, identity_of, reason
from trainshed.places.containers import host_addresses
from trainshed.runner.files import layout
from trainshed.runner.job.job import Job

HEALTHY = '{"ServerVersion": "27.0", "Runtimes": {"runc": {}, "nvidia": {}}, "SecurityOptions": ["name=seccomp"]}'
ROOTLESS = '{"ServerVersion": "27.0", "SecurityOptions": ["name=seccomp", "name=rootless"]}'
PODMAN = '{"host": {"security": {"rootless": true}}, "version": {"Version": "5.0"}}'
NO_DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
DENIED = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"


def engine(folder: Path, name: str, script: str) -> dict[str, str]:
    """An environment in which this shell script is the only engine."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}"}


def test_docker_is_taken_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = engine(tmp_path, "docker", f"echo '{HEALTHY}'")
    engine(tmp_path, "podman", "exit 1")
    monkeypatch.setenv("PATH", environ["PATH"])
    found = find_engine(environ)
    assert (found.command, found.kind, found.rootless, found.gpus) == (("docker",), "docker", False, True)


def test_podman_is_taken_where_docker_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = engine(tmp_path, "podman", f"echo '{PODMAN}'")
    monkeypatch.setenv("PATH", environ["PATH"])
    found = find_engine(environ)
    assert (found.kind, found.rootless) == ("podman", True)


def test_a_variable_names_another_command_with_its_options(tmp_path: Path) -> None:
    engine(tmp_path, "mydocker", f'[ "$1 $2" = "--context lab" ] && echo \'{ROOTLESS}\'')
    found = find_engine({"DOCKER": f"{tmp_path}/mydocker --context lab", "PATH": ""})
    assert found.command == (f"{tmp_path}/mydocker", "--context", "lab")
    assert (found.rootless, found.gpus) == (True, False)


@pytest.mark.parametrize(
    ("options", "variables", "address", "elsewhere"),
    [
        ("", {}, "unix:///from/the/context.sock", False),
        ("", {"DOCKER_HOST": "tcp://far:2376"}, "tcp://far:2376", True),
        (" --context lab", {"DOCKER_HOST": "tcp://far:2376"}, "ssh://me@lab", True),
        (" --context=lab", {}, "ssh://me@lab", True),
        (" -c lab", {}, "ssh://me@lab", True),
        (" -H unix:///run/podman/podman.sock", {"DOCKER_HOST": "tcp://far:2376"}, "unix:///run/podman/podman.sock", False),
        (" --host=tcp://near:2375", {}, "tcp://near:2375", True),
    ],
)
def test_an_engine_is_where_its_client_would_look_for_it(
    tmp_path: Path, options: str, variables: dict[str, str], address: str, elsewhere: bool
) -> None:
    script = f"""case "$*" in
"context inspect lab"*) echo ssh://me@lab ;;
"context inspect"*) echo unix:///from/the/context.sock ;;
*info*) echo '{HEALTHY}' ;;
esac"""
    engine(tmp_path, "mydocker", script)
    found = find_engine({"DOCKER": f"{tmp_path}/mydocker{options}", "PATH": "", **variables})
    assert (found.address, found.elsewhere) == (address, elsewhere)


@pytest.mark.safety
def test_a_password_in_an_address_is_shown_nowhere(tmp_path: Path) -> None:
    environ = {"DOCKER_HOST": "tcp://me:hunter22@far:2376", "PATH": ""}
    engine(tmp_path, "mydocker", f"echo '{HEALTHY}'")
    assert find_engine({**environ, "DOCKER": f"{tmp_path}/mydocker"}).place == "tcp://me:******@far:2376"
    engine(tmp_path, "mydocker", f"echo '{NO_DAEMON}' >&2; exit 1")
    with pytest.raises(EngineError) as caught:
        find_engine({**environ, "DOCKER": f"{tmp_path}/mydocker"})
    assert caught.value.hint == "check that tcp://me:******@far:2376 is the right address and that you may use it"


@pytest.mark.parametrize(
    ("name", "inspected"),
    [
        ("podman", '[{"name": "n", "subnets": [{"subnet": "10.89.0.0/24", "gateway": "10.89.0.1"}], "dns_enabled": false}]'),
        ("docker", '[{"Name": "n", "IPAM": {"Driver": "default", "Config": [{"Subnet": "10.89.0.0/24"}]}}]'),
    ],
)
def test_podmans_hosts_get_addresses_since_its_networks_may_know_no_names(tmp_path: Path, name: str, inspected: str) -> None:
    run = layout.plan(Job(name="x", image="i", instances=3, output=str(tmp_path / "run")), in_containers=True, now=0)
    script = f"""case "$1" in
info) echo '{PODMAN if name == "podman" else HEALTHY}' ;;
network) echo '{inspected}' ;;
version) echo 'Podman Engine,' ;;
esac"""
    engine(tmp_path / "bin", name, script)
    found = find_engine({"DOCKER": f"{tmp_path}/bin/{name}", "PATH": ""})
    addresses = host_addresses(found, run)
    assert addresses == {"algo-1": "10.89.0.2", "algo-2": "10.89.0.3", "algo-3": "10.89.0.4"}
    arguments, _ = create(run, 1, CommandFacts(found, uid=0, gid=0, user="root", memory=1 << 30), addresses)
    assert [arguments[at + 1] for at, word in enumerate(arguments) if word in ("--ip", "--add-host")] == [
        "algo-1:10.89.0.2",
        "10.89.0.3",
        "algo-3:10.89.0.4",
    ]


def test_no_engine_is_one_line_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="docker is not installed") as caught:
        find_engine({"PATH": str(tmp_path)})
    assert "leave the image out" in caught.value.hint
    assert caught.value.exit_code == 69


@pytest.mark.parametrize(
    ("said", "fix"), [(NO_DAEMON, "sudo systemctl start docker"), (DENIED, "sudo usermod -aG docker $USER")]
)
def test_a_daemon_that_does_not_answer_is_said_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, fix: str
) -> None:
    environ = engine(tmp_path, "docker", f'echo \'{{"ServerErrors": ["{said}"]}}\'; exit 1')
    engine(tmp_path, "docker", f"echo '{said}' >&2; exit 1")
    monkeypatch.setenv("PATH", environ["PATH"])
    with pytest.raises(EngineError, match="docker does not answer") as caught:
        find_engine(environ)
    assert said[:30] in caught.value.message
    assert fix in caught.value.hint


def test_errors_that_docker_reports_with_status_zero_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = engine(tmp_path, "docker", f'echo \'{{"ServerVersion": "", "ServerErrors": ["{NO_DAEMON}"]}}\'')
    monkeypatch.setenv("PATH", environ["PATH"])
    with pytest.raises(EngineError, match="Cannot connect"):
        find_engine(environ)


@pytest.mark.parametrize(
    ("stderr", "line"),
    [
        ("docker: Error response from daemon: Conflict. It is used.\nSee 'docker run --help'.\n", "Conflict. It is used."),
        ("Unable to find image\nError response from daemon: pull access denied\n", "pull access denied"),
        ("", "no reason given"),
    ],
)
def test_the_reason_is_the_line_that_says_why(stderr: str, line: str) -> None:
    assert reason(stderr) == line


def test_an_image_without_train_is_explained() -> None:
    text = 'OCI runtime create failed: exec: "train": executable file not found in $PATH: unknown'
    assert "pip install trainshed" in hint_for(text)


def test_a_job_for_an_image_fails_before_anything_is_made(project: Project, tmp_path: Path) -> None:
    project.write({"train.py": ""})
    engine(tmp_path / "bin", "docker", f"echo '{NO_DAEMON}' >&2; exit 1")
    done = project.trainshed("run", "train.py", "--image", "x", DOCKER=str(tmp_path / "bin/docker"))
    assert done.status == 69
    assert "docker does not answer: Cannot connect" in done.stderr
    assert "hint: start it" in done.stderr
    assert not (project.folder / "runs").exists()


def test_an_image_that_cannot_be_pulled_is_said_with_its_nearest(project: Project, tmp_path: Path) -> None:
    project.write({"train.py": ""})
    script = f"""case "$1 $2" in
info*) echo '{HEALTHY}' ;;
"image inspect") exit 1 ;;
"image ls") echo trainshed:cpu; echo other:latest ;;
pull*) echo 'Error response from daemon: pull access denied for trainshd' >&2; exit 1 ;;
esac"""
    engine(tmp_path / "bin", "docker", script)
    done = project.trainshed("run", "train.py", "--image", "trainshd:cpu", DOCKER=str(tmp_path / "bin/docker"))
    assert done.status == 69
    assert "the image trainshd:cpu is not on this machine and cannot be pulled: pull access denied" in done.stderr
    assert "did you mean 'trainshed:cpu'?" in done.stderr


def test_an_image_is_known_by_its_digest_where_it_came_from_a_registry() -> None:
    pulled = {"Id": "sha256:12", "RepoDigests": ["example.org/a@sha256:34", "example.org/b@sha256:34"]}

    assert identity_of("a:1", pulled) == {"name": "a:1", "id": "sha256:12", "digest": "example.org/a@sha256:34"}
    assert identity_of("a:1", {"Id": "sha256:12", "RepoDigests": []}) == {"name": "a:1", "id": "sha256:12"}
    assert identity_of("a:1", {"Id": 7, "RepoDigests": None}) == {"name": "a:1"}
