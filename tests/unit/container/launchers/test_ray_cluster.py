"""What a job that brings its own Ray cluster runs on each host, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from trainshed.base.errors import LaunchError
from trainshed.container.launchers import ray_cluster
from trainshed.container.launchers.launch import Launch
from trainshed.container.launchers.ray_cluster.ray_watcher import RayWatcher
from trainshed.container.program.locate import Program
from trainshed.container.roster.roster import Alone
from trainshed.container.supervisor.launch_plan import LaunchPlan, ProcessSpec
from trainshed.contract.cluster import Cluster, Hardware

HOSTS = ("algo-1", "algo-2", "algo-3")
MEMORY = 10_000_000_000


@pytest.fixture
def launch(job_tree: Any) -> Any:
    """Makes the launch of a host by its index; /dev/shm has so many bytes."""

    def make(rank: int, shared: int = MEMORY, **environment: str) -> Launch:
        job_tree.configure(hyperparameters={"sagemaker_program": "train.py", "trainshed_distribution": "ray"})
        hardware = Hardware(cpus=4, gpus=2, memory_bytes=MEMORY, shm_bytes=shared)
        return Launch(
            job=job_tree.read(),
            cluster=Cluster(hosts=HOSTS, current_host=HOSTS[rank], rank=rank, address="algo-1", hardware=hardware),
            program=Program(command=("/usr/bin/python3", "train.py"), folder="/code", name="train.py", kind="python"),
            arguments=("--epochs", "3"),
            environment={"PATH": "/usr/bin", **environment},
            scratch="/tmp/scratch",
        )

    return make


def options(spec: ProcessSpec) -> dict[str, str]:
    """The options of a node, by name."""
    words = spec.argv[4:]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_the_script_runs_beside_the_head_alone(launch: Any) -> None:
    head, script = ray_cluster.plan(launch(0)).later
    (node,) = ray_cluster.plan(launch(2)).later

    assert options(head)["--head"] == "7777" and "--address" not in options(head)
    assert options(node)["--address"] == "algo-1:7777" and "--head" not in options(node)
    assert script.argv == ("/usr/bin/python3", "train.py", "--epochs", "3")
    assert script.env["RAY_ADDRESS"] == "algo-1:7777" and script.rank == 0
    assert (head.helper, node.helper, node.label) == ("Ray's head", "Ray's node", "algo-3:ray")


def test_nodes_have_what_the_host_has_and_do_not_hear_of_other_clusters(launch: Any) -> None:
    (node,) = ray_cluster.plan(launch(1, RAY_ADDRESS="elsewhere:6379")).later

    assert options(node)["--num-cpus"] == "4" and options(node)["--num-gpus"] == "2"
    assert "RAY_ADDRESS" not in node.env and node.env["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize(
    ("shared", "objects", "folder", "note"),
    [
        (MEMORY, "3000000000", None, ""),
        (1_000_000_000, "900000000", None, "/dev/shm has 1000 MB: Ray's objects get that, and not 3000 MB"),
        (64_000_000, "3000000000", "/tmp/scratch/ray", "/dev/shm has 64 MB: Ray keeps its objects in files"),
        (0, "3000000000", "/tmp/scratch/ray", "docker run --shm-size 8g"),
    ],
)
def test_shared_memory_that_is_small_is_told(launch: Any, shared: int, objects: str, folder: str | None, note: str) -> None:
    plan = ray_cluster.plan(launch(1, shared))

    found = options(plan.later[0])
    assert (found["--object-store-memory"], found.get("--plasma-directory")) == (objects, folder)
    assert note in "".join(plan.notes) and bool(plan.notes) == bool(note)


def test_several_processes_per_host_are_refused(launch: Any) -> None:
    asked = launch(0)
    distribution = asked.job.distribution.replace(processes_per_host=2)
    with pytest.raises(LaunchError, match="no meaning for the distribution ray"):
        ray_cluster.plan(asked.replace(job=asked.job.replace(distribution=distribution)))


# --- the order ------------------------------------------------------------------------------------


class Started:
    """A process of a made-up run."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec, self.pid, self.returncode = spec, 1, None

    @property
    def alive(self) -> bool:
        return self.returncode is None


class Run:
    """A made-up run. time: seconds since its start."""

    def __init__(self) -> None:
        self.ranks: list[Any] = []
        self.stopping = False
        self.time = 0.0
        self.said: list[str] = []
        self.ended: list[str] = []
        self.error: BaseException | None = None

    def now(self) -> float:
        return self.time

    def say(self, text: str) -> None:
        self.said.append(text)

    def start_process(self, spec: ProcessSpec) -> Any:
        self.ranks.append(Started(spec))
        return self.ranks[-1]

    def abandon(self, error: BaseException) -> None:
        self.error = self.error or error
        self.stopping = True

    def dismiss(self, helper: Any) -> None:
        self.ended.append(f"dismissed {helper.spec.helper}")

    def end_helper(self, helper: Any) -> None:
        self.ended.append(f"ended {helper.spec.helper}")

    def kill_helper(self, helper: Any) -> None:
        self.ended.append(f"killed {helper.spec.helper}")


class Others(Alone):
    """The first host's roster with two others. sent: letters to them, come: those from them."""

    def __init__(self, rank: int) -> None:
        super().__init__("algo-1")
        self.names, self.rank = HOSTS, rank
        self.sent: list[tuple[int, dict[str, Any]]] = []
        self.come: list[tuple[int, dict[str, Any]]] = []

    def post(self, to: int, body: dict[str, Any]) -> None:
        self.sent.append((to, body))

    def letters(self) -> list[tuple[int, dict[str, Any]]]:
        come, self.come = self.come, []
        return come


def watcher(rank: int) -> tuple[RayWatcher, Others, Run]:
    """A host's watcher, which has had no turn yet."""
    node = ProcessSpec(argv=("node",), env={}, cwd="/", helper="Ray's node")
    script = ProcessSpec(argv=("script",), env={}, cwd="/", rank=0)
    plan = LaunchPlan(processes=(), later=(node, script)[: 2 if rank == 0 else 1], start_seconds=60, grace_seconds=5)
    roster = Others(rank)
    return RayWatcher(plan, roster), roster, Run()


def started(one: RayWatcher, run: Run) -> None:
    """The node says that it has started."""
    one.printed(run.ranks[0], ray_cluster.JOINED.encode() + b"\n")


def test_the_script_starts_when_the_last_node_has_joined() -> None:
    host, roster, run = watcher(0)
    host.turn(run)
    assert [one.spec.argv for one in run.ranks] == [("node",)] and not roster.sent
    started(host, run)
    host.turn(run)
    assert [to for to, letter in roster.sent if letter["secret"]["RAY_AUTH_TOKEN"]] == [1, 2]
    roster.come = [(2, {"type": "ray joined"})]
    run.time = 20
    host.turn(run)
    assert len(run.ranks) == 1 and run.said == ["waiting for Ray on algo-2 (20 s of 60 s)"]
    roster.come = [(1, {"type": "ray joined"})]
    host.turn(run)
    assert run.ranks[1].spec.argv == ("script",)
    assert run.ranks[1].spec.env == run.ranks[0].spec.env == roster.sent[0][1]["secret"]


def test_nodes_start_after_the_head_and_serve_until_the_script_is_done() -> None:
    host, roster, run = watcher(1)
    host.turn(run)
    assert not run.ranks and host.busy()
    roster.come = [(0, {"type": "ray started", "secret": {"RAY_AUTH_TOKEN": "s"}})]
    host.turn(run)
    started(host, run)
    host.turn(run)
    assert run.ranks[0].spec.env == {"RAY_AUTH_TOKEN": "s"} and roster.sent == [(0, {"type": "ray joined"})]
    run.stopping = True
    host.turn(run)
    assert not run.ended  # the script may save what workers on this host hold
    roster.come = [(0, {"type": "ray script done"})]
    host.turn(run)
    assert run.ended == ["dismissed Ray's node", "ended Ray's node"] and not host.busy()
    run.time = 11
    host.turn(run)
    assert run.ended[-1] == "killed Ray's node"


def test_hosts_that_do_not_join_in_time_are_named() -> None:
    host, _, run = watcher(0)
    run.time = 61
    host.turn(run)
    assert "Ray has not started on algo-1, algo-2, algo-3 within 60 s" in str(run.error)


def test_a_script_that_failed_ends_nothing_before_the_cause_is_known() -> None:
    host, roster, run = watcher(0)
    host.turn(run)
    started(host, run)
    roster.come = [(1, {"type": "ray joined"}), (2, {"type": "ray joined"})]
    host.turn(run)
    run.ranks[1].returncode = 1
    host.turn(run)
    assert host.busy() and not run.ended
    run.stopping = True
    host.turn(run)
    assert not host.busy() and [letter for _, letter in roster.sent[-2:]] == [{"type": "ray script done"}] * 2
