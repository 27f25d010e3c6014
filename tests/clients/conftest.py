"""Fixtures for Amazon's SDKs as clients of our image. They need Docker, a compose command, and pip once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from clients import compose, venvs
from clients.sdks import BUCKET, Client, environment
from support.docker_cli import docker as docker_cli
from support.free_ports import free_ports
from support.image_fixtures import base_image, container, cpu_image, docker, network  # noqa: F401 (fixtures)
from support.runner_project import project  # noqa: F401 (fixture)

NETWORK = "sagemaker-local"  # both SDKs' name for the network of their containers
COMPOSED = '{{.ID}} {{.Label "com.docker.compose.project.working_dir"}}'


@pytest.fixture(scope="session")
def clients_folder(docker: str) -> Iterator[Path]:  # noqa: F811
    """Where the clients of this worker work: outside of /root, which the SDKs refuse.

    Containers that compose has left behind, which it does after every job, are removed with it; the network of all SDKs goes
    with the last one that may use it. It is made here, once: two SDKs that look for it at the same time each make one, and
    from then on Docker refuses both ("ambiguous").
    """
    with open(shutil.which("docker") or os.devnull, "rb") as users:  # a file that all checkouts have in common
        with _alone():
            fcntl.flock(users, fcntl.LOCK_SH)
            _make_network()
        folder = Path(tempfile.mkdtemp(prefix="trainshed-test-clients-"))
        try:
            yield folder
        finally:
            _remove_containers(folder)
            shutil.rmtree(folder, ignore_errors=True)
            with _alone(), contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                docker_cli("network", "rm", *_networks(), check=False)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Held while the SDKs' network is made or removed, by one process of this machine at a time."""
    with open(Path(tempfile.gettempdir()) / "trainshed-test-clients-network.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _networks(label: str = "") -> list[str]:
    """Docker's numbers of the networks with the SDKs' name, of those with `label` if one is given."""
    only = ["--filter", f"label={label}"] if label else []
    return docker_cli("network", "ls", "--no-trunc", "--quiet", "--filter", f"name=^{NETWORK}$", *only).stdout.split()


def _make_network() -> None:
    """See to it that Docker has the SDKs' network once, with the label by which compose knows its own.

    A killed session may have left two, or one of somebody else, which nobody can use.
    """
    label = f"com.docker.compose.network={NETWORK}"
    made = _networks()
    if len(made) != 1 or _networks(label) != made:
        if made:
            docker_cli("network", "rm", *made)
        docker_cli("network", "create", "--label", label, NETWORK)


@pytest.fixture(scope="session")
def fixed_names() -> Iterator[None]:
    """SDK v3's host names are the same in every job: one session of a machine has them at a time."""
    with open(Path(tempfile.gettempdir()) / "trainshed-test-sdk3.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def containers(folder: Path) -> list[str]:
    """Containers that compose has made from a file below `folder`."""
    listed = docker_cli("ps", "--all", "--format", COMPOSED).stdout.splitlines()
    return [line.split()[0] for line in listed if line.partition(" ")[2].startswith(str(folder))]


def printed(folder: Path) -> str:
    """All that the containers of the last job have printed: compose and the SDKs may lose its end."""
    text = ""
    for name in containers(folder):
        done = docker_cli("logs", name)
        text += done.stdout + done.stderr
    return text.replace("\r\n", "\n")


def _remove_containers(folder: Path) -> None:
    left = containers(folder)
    if left:
        docker_cli("rm", "--force", "--volumes", *left, check=False)


def _python(request: pytest.FixtureRequest, name: str) -> Path:
    """The Python of a client's environment; making one takes a while, and says so."""
    manager = request.config.pluginmanager.getplugin("capturemanager")
    try:
        if manager is None:
            return venvs.make(name)
        with manager.global_and_fixture_disabled():
            return venvs.make(name)
    except venvs.VenvError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def moto(request: pytest.FixtureRequest, docker: str) -> Iterator[str]:  # noqa: F811
    """URL of a server that answers as S3 and STS, at an address that this machine and containers share."""
    address = _bridge_address()
    port = free_ports()
    command = [str(_python(request, "moto")), "-m", "moto.server", "-H", address, "-p", str(port)]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://{address}:{port}"
    try:
        deadline = time.monotonic() + 300
        while status_of(f"{url}/moto-api/") != 200:
            assert server.poll() is None and time.monotonic() < deadline, "moto's server does not answer"
            time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait()


def _bridge_address() -> str:
    """This machine's address on Docker's default network. Some daemons name no gateway; then the interface tells."""
    form = "{{(index .IPAM.Config 0).Gateway}}"
    gateway = docker_cli("network", "inspect", "bridge", "--format", form).stdout.strip()
    addresses = psutil.net_if_addrs().get("docker0", [])
    found = [gateway] if gateway else [one.address for one in addresses if one.family == socket.AF_INET]
    assert found, "Docker's network `bridge` names no gateway, and there is no interface docker0 with an IPv4 address"
    return found[0]


def without_proxy() -> urllib.request.OpenerDirector:
    """What opens a URL of this machine."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def status_of(url: str) -> int:
    """The status that a URL answers with, 0 where nobody answers."""
    try:
        with without_proxy().open(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.fixture(scope="session")
def composing() -> str:
    """PATH with a compose that the SDKs can use."""
    try:
        return os.pathsep.join(place for place in (compose.folder(), os.environ["PATH"]) if place)
    except compose.ComposeError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def _sdk(name: str) -> Any:
    """The fixture of one SDK, with a bucket."""

    @pytest.fixture(scope="module", name=name)
    def fixture(
        request: pytest.FixtureRequest,
        clients_folder: Path,
        composing: str,
        moto: str,
        cpu_image: str,  # noqa: F811
    ) -> Iterator[Client]:
        if name == "sdk3":
            request.getfixturevalue("fixed_names")
        home = clients_folder / name
        home.mkdir()
        client = Client(_python(request, name), home, {**environment(home, moto), "PATH": composing})
        try:
            assert client.call("s3", make=BUCKET).ok
            yield client
        finally:
            client.kill()

    return fixture


sdk2, sdk3 = _sdk("sdk2"), _sdk("sdk3")


@pytest.fixture(scope="session")
def peer(request: pytest.FixtureRequest) -> Path:
    """The Python of an environment with `sagemaker-training`."""
    if sys.version_info[:2] != venvs.PINNED_FOR and os.environ.get("CI") != "true":
        pytest.skip("sagemaker-training is built from source, which is tried with one Python only")
    return _python(request, "peer")


@pytest.fixture
def folder(clients_folder: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder for one test's job, which containers may fill as root."""
    place = Path(tempfile.mkdtemp(prefix="job-", dir=clients_folder))
    yield place
    _remove_containers(clients_folder)
    shutil.rmtree(place, ignore_errors=True)
