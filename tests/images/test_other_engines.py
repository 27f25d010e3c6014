"""Engines that are not Docker's daemon beside us: on another machine, blind to our folders, Podman and its socket."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import image_build
from support.docker_cli import docker as docker_cli
from support.projects import OWNER, TALK, run, start

pytestmark = pytest.mark.docker
LIMIT = 600.0  # seconds after which something hangs
PATIENCE = 120.0  # seconds for a daemon to answer
IMAGE = image_build.SMALL_IMAGE

TRAIN = """\
import os
here = os.environ["SM_CURRENT_HOST"]
print("data", sorted(os.listdir(os.environ["SM_CHANNEL_TRAIN"])), open(os.environ["SM_CHANNEL_TEST"] + "/b.csv").read())
checkpoint = os.environ["SM_CHECKPOINT_DIR"] + "/step-" + here
step = int(open(checkpoint).read()) if os.path.exists(checkpoint) else 0
print("starting at", step)
open(checkpoint, "w").write(str(step + 1))
os.makedirs(os.environ["SM_MODEL_DIR"] + "/deep", exist_ok=True)
open(os.environ["SM_MODEL_DIR"] + "/deep/model-" + here, "w").write("weights")
open(os.environ["SM_OUTPUT_DATA_DIR"] + "/report-" + here, "w").write("fine")
print("metric loss=0.5 step=1")
"""
DEAF = """\
import os, signal, time
open(os.environ["SM_MODEL_DIR"] + "/begun", "w").write("weights")
signal.signal(signal.SIGTERM, lambda *_: None)
print("running", flush=True)
while True:
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Engine:
    """An engine: the variables that lead `trainshed` there, and what to put before `ps` to ask it by hand."""

    environment: dict[str, str]
    command: tuple[str, ...]
    copies: bool = False

    def ask(self, *arguments: str) -> str:
        """What one of its commands prints."""
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def left(self) -> list[str]:
        """Containers and networks of ours that it has."""
        label = ("--quiet", "--filter", "label=org.trainshed.run")
        return self.ask("ps", "--all", *label).split() + self.ask("network", "ls", *label).split()


def wait_until(condition: Callable[[], object], what: str, seconds: float = LIMIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not in {seconds:g} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def place(docker: str) -> Iterator[Path]:
    """A folder for storages and sockets of engines; its path is short, as those of sockets must be."""
    if os.getuid() != 0:
        pytest.skip("only root starts container engines")
    folder = Path(tempfile.mkdtemp(prefix="ts-", dir="/var/tmp"))
    yield folder
    # Podman keeps its storage mounted, the last one first.
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in reversed([point for point in mounted if point.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", point], capture_output=True)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def image_file(docker: str, place: Path) -> Path:
    """An archive of a small image with `train`, for engines that have images of their own."""
    docker_cli("tag", image_build.build_small(), f"{IMAGE}:latest")
    docker_cli("save", "--output", str(place / "image.tar"), f"{IMAGE}:latest", timeout=LIMIT)
    return place / "image.tar"


@contextlib.contextmanager
def daemon(command: list[str], answers: Callable[[], bool], log: Path) -> Iterator[None]:
    """A daemon for the time of a test; skips where it does not come up, for not every machine lets one."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    try:
        end = time.monotonic() + PATIENCE
        while not answers():
            if process.poll() is not None or time.monotonic() > end:
                lines = log.read_text(errors="replace").strip().splitlines()
                pytest.skip(f"no engine of this kind can be started here: {(lines or ['it says nothing'])[-1][:300]}")
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def skip_without_containers(command: tuple[str, ...]) -> None:
    """Skips where an engine answers, but this machine does not let it run anything."""
    for options in ([], ["--network", "ts-probe"]):
        if options:
            subprocess.run([*command, "network", "create", options[1]], capture_output=True, timeout=LIMIT)
        probe = [*command, "run", "--rm", *options, IMAGE, "true"]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=LIMIT)
        if options:
            subprocess.run([*command, "network", "rm", options[1]], capture_output=True, timeout=LIMIT)
        if done.returncode != 0:
            pytest.skip(f"{command[0]} runs no containers here: {done.stderr.strip()[-300:]}")


def answers(*command: str) -> bool:
    return subprocess.run([*command, "info"], capture_output=True, timeout=LIMIT).returncode == 0


@pytest.fixture(scope="module")
def hidden(docker: str) -> Iterator[Path]:
    """The folder that the project is in, and that the daemon of `blind` sees empty."""
    folder = Path(tempfile.mkdtemp(prefix="trainshed-test-hidden-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def blind(place: Path, image_file: Path, hidden: Path) -> Iterator[Engine]:
    """A Docker daemon in a file system and a network of its own, with a socket here, as one in a virtual machine has."""
    dockerd = shutil.which("dockerd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if dockerd is None or shutil.which("unshare") is None or shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin") is None:
        pytest.skip("needs dockerd, unshare and ip")
    script = (
        'mount --make-rprivate / && mount -t tmpfs -o size=1m tmpfs "$1" && PATH=$PATH:/usr/sbin:/sbin ip link set lo up && '
        'exec "$2" --data-root "$3/data" --exec-root "$3/exec" --pidfile "$3/pid" -H "unix://$3/docker.sock"'
    )
    folder = place / "d"
    folder.mkdir()
    command = ["unshare", "--mount", "--net", "sh", "-c", script, "sh", str(hidden), dockerd, str(folder)]
    address = f"unix://{folder}/docker.sock"
    with daemon(command, lambda: answers("docker", "-H", address), place / "dockerd.log"):
        docker_cli("-H", address, "load", "--input", str(image_file), timeout=LIMIT)
        skip_without_containers(("docker", "-H", address))
        yield Engine({"DOCKER_HOST": address}, ("docker", "-H", address), copies=True)


@pytest.fixture(scope="module")
def remote(blind: Engine) -> Iterator[Engine]:
    """The same daemon, reached as one on another machine is."""
    path = blind.environment["DOCKER_HOST"].removeprefix("unix://")
    server = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{server.getsockname()[1]}"

    def pipe(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            for one in (source, target):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def serve(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as upstream:
            upstream.connect(path)
            back = threading.Thread(target=pipe, args=(upstream, client), daemon=True)
            back.start()
            pipe(client, upstream)
            back.join()

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield Engine({"DOCKER_HOST": address}, ("docker", "-H", address), copies=True)
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.fixture(scope="module")
def podman(place: Path, image_file: Path) -> Iterator[tuple[str, ...]]:
    """Podman's command with a storage of its own, the image in it."""
    if shutil.which("podman") is None:
        pytest.skip("needs podman")
    (place / "p").mkdir()
    # Its usual limits are higher than what a machine like CI's lets anybody have.
    (place / "p/containers.conf").write_text('[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_CONF", f"{place}/p/containers.conf")
        yield _podman(place, image_file)


def _podman(place: Path, image_file: Path) -> tuple[str, ...]:
    command = ("podman", "--root", f"{place}/p/root", "--runroot", f"{place}/p/run", "--cgroup-manager", "cgroupfs")
    if not answers(*command):
        pytest.skip("podman does not work here")
    loaded = subprocess.run([*command, "load", "--input", str(image_file)], capture_output=True, text=True, timeout=LIMIT)
    assert loaded.returncode == 0, loaded.stderr
    skip_without_containers(command)
    return command


@pytest.fixture(scope="module")
def podman_command(podman: tuple[str, ...]) -> Engine:
    """Podman itself, without a daemon."""
    return Engine({"DOCKER": " ".join(podman)}, podman)


@pytest.fixture(scope="module")
def podman_socket(podman: tuple[str, ...], place: Path) -> Iterator[Engine]:
    """Podman's service, which speaks Docker's language, asked by Docker's client."""
    address = f"unix://{place}/p/s.sock"
    command = [*podman, "system", "service", "--time=0", address]
    with daemon(command, lambda: answers("docker", "-H", address), place / "podman.log"):
        yield Engine({"DOCKER_HOST": address}, ("docker", "-H", address))


ENGINES = ("blind", "remote", "podman_command", "podman_socket")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each of them."""
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def project(hidden: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project; index of runs and temporary files are its own."""
    folder = Path(tempfile.mkdtemp(dir=hidden))
    folder.chmod(0o755)
    files = {"train.py": TRAIN, "talk.py": TALK, "deaf.py": DEAF}
    for name, text in {
        **{f"src/{key}": value for key, value in files.items()},
        "data/a.csv": "1",
        "test/b.csv": "2",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name in ("state", "tmp"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder / "state"))
    yield folder
    shutil.rmtree(folder)


def assert_clean(project: Path, engine: Engine) -> None:
    """Nothing is left on the engine, nor here but the run, which is its owner's."""
    assert engine.left() == []
    assert os.listdir(project / "tmp") == []
    owner = OWNER if os.getuid() == 0 else os.getuid()
    for folder in project.glob("runs/*"):
        assert {path.lstat().st_uid for path in [folder, *folder.rglob("*")]} == {owner}
        assert not list(folder.glob(".*"))


DATA = ("--channel", "train=data", "--channel", "test=test/b.csv", "--image", IMAGE)


def test_a_job_gets_its_files_and_its_results_come_home(engine: Engine, project: Path) -> None:
    for step in (0, 1):
        done = run(project, "run", "src/train.py", *DATA, "--checkpoints", "kept", **engine.environment)
        assert done[0] == 0, done[1] + done[2]
        assert f"data ['a.csv'] 2\nstarting at {step}\n" in done[1]
        assert ("files are copied to it and back" in done[2]) == engine.copies
    newest = max(project.glob("runs/*"))
    assert (newest / "model/deep/model-algo-1").read_text() == "weights"
    assert (newest / "algo-1/output/data/report-algo-1").read_text() == "fine"
    assert (project / "kept/step-algo-1").read_text() == "2"
    assert (newest / "output/model.tar.gz").is_file()
    assert_clean(project, engine)


def test_two_hosts_reach_each_other_by_name(engine: Engine, project: Path) -> None:
    status, stdout, stderr = run(project, "run", "src/talk.py", *DATA, "--instances", "2", **engine.environment)
    assert status == 0, stdout + stderr
    assert "[algo-1] heard algo-2" in stdout
    assert_clean(project, engine)


def start_deaf(engine: Engine, project: Path) -> subprocess.Popen[str]:
    """A runner whose script is at work, and does not heed stop signals."""
    process = start(project, "run", "src/deaf.py", *DATA, "--grace", "0.5", **engine.environment)
    wait_until(
        lambda: any("running" in log.read_text() for log in project.glob("runs/*/logs/*.log")) or process.poll() is not None,
        "the script runs",
    )
    return process


def test_what_a_killed_runner_left_is_ended_collected_and_removed(engine: Engine, project: Path) -> None:
    process = start_deaf(engine, project)
    process.send_signal(signal.SIGKILL)
    output = process.communicate(timeout=LIMIT)
    (folder,) = project.glob("runs/*")
    assert len(engine.left()) == 1, output
    if engine.environment.get("DOCKER_HOST"):  # who forgets to say where it ran is told
        status, _, stderr = run(project, "stop", folder.name)
        assert status == 69
        assert f"hint: set DOCKER_HOST={engine.environment['DOCKER_HOST']}" in stderr
        assert len(engine.left()) == 1
    status, _, stderr = run(project, "stop", folder.name, **engine.environment)
    assert status == 0, stderr
    assert (folder / "model/begun").read_text() == "weights"
    state = json.loads((folder / "status.json").read_text())
    assert state["TrainingJobStatus"] in ("Failed", "Stopped")
    assert_clean(project, engine)
    status, _, stderr = run(project, "rm", folder.name, **engine.environment)
    assert status == 0, stderr
    assert not folder.exists()


def test_ctrl_c_brings_home_what_was_made(engine: Engine, project: Path) -> None:
    process = start_deaf(engine, project)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, stderr
    (folder,) = project.glob("runs/*")
    assert (folder / "model/begun").read_text() == "weights"
    assert_clean(project, engine)


def test_pipe_mode_is_refused_where_files_are_copied(blind: Engine, remote: Engine, project: Path) -> None:
    (project / "job.yaml").write_text(
        f"program: src/train.py\nimage: {IMAGE}\nchannels: {{train: {{path: data, input_mode: Pipe}}}}\n"
    )
    for engine in (blind, remote):
        status, stdout, stderr = run(project, "run", "job.yaml", **engine.environment)
        assert status == 69, stdout + stderr
        assert "Pipe mode does not work here" in stderr and "use File mode" in stderr
        assert "Traceback" not in stderr
        assert_clean(project, engine)


def test_an_address_where_nobody_listens_is_one_line(docker: str, project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    status, stdout, stderr = run(project, "run", "src/train.py", *DATA, DOCKER_HOST=address)
    assert (status, stdout) == (69, "")
    assert f"hint: check that {address} is the right address" in stderr
    assert len(stderr.splitlines()) <= 2
    assert not (project / "runs").exists()
