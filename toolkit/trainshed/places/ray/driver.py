"""The process that holds a run's connection to Ray: one for each attempt. The only module that imports ray.

It is told what to do on standard input (`DriverRequest`, pickled by the runner), then by JSON lines on a socket. It answers
there: {"say": text}, {"started": ...}, {"ended": host, "code": ..., "note": ...}, {"fetched": [...]}, {"error": ...}.
What hosts print it writes to the pipes that the runner reads them from. It is a process of its own because Ray's library
ends the process that loses its cluster, and because the runner watches others the same way.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import queue
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from trainshed.base.errors import EXIT_INTERNAL, EXIT_SIGNAL_BASE, EXIT_UNAVAILABLE, TrainshedError, exit_status
from trainshed.base.secrets import new_token
from trainshed.base.units import duration
from trainshed.runner.files.grace import KILL_SECONDS
from trainshed.runner.files.run import Run

from ..copying import Brought, merge
from ..processes import FOREIGN_PREFIXES
from . import demand, node, shipping
from .environment import READY, RendezvousPoint, environment_of
from .mirror import FolderMirror, words_of
from .wishes import RayOptions

ANSWER_SECONDS = 3.0  # for a head to take a connection
SILENT_SECONDS = 20.0  # that a head may be away; Ray itself waits for a minute
BEAT_SECONDS = 2.0  # between two looks at the head
LOOK_SECONDS = 2.0  # between two looks at what hosts have written
LINES_SECONDS = 2.0  # that a host is asked to wait for lines
PATIENCE = 2.0  # seconds without resources before it is said
STARTS = 3  # times that the job is placed where nodes are lost meanwhile
WINDOW = 4  # parts on their way to the nodes
LIVE_OUTPUT = 16 << 20  # bytes of the largest file of output/ that comes home while the job runs
GROUPS = {"files": 1, "lines": 1}
LEAVE_SECONDS = 5.0  # for nodes to remove the hosts' folders
# Variables of a node that hosts do not get: Ray's own, and those that would speak of another job. Ray sets OMP_NUM_THREADS.
NODES_OWN = (*FOREIGN_PREFIXES, "RAY_", "OMP_NUM_THREADS", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_")


class RayError(TrainshedError):
    """Ray refuses, or is not there."""

    exit_code = EXIT_UNAVAILABLE


class NodeLost(RayError):
    """A host was lost with its node before the job ran."""


@dataclass(frozen=True)
class DriverRequest:
    """The request of the runner.

    run: that has been placed. secrets: variables with values that were looked up. ready: the folder of ready programs.
    pipes: descriptors of each host's two outputs. control: that of the socket.
    """

    run: Run
    options: RayOptions
    secrets: dict[str, str]
    ready: str
    pipes: list[tuple[int, int]]
    control: int


@dataclass
class Actor:
    """A host as it is known here."""

    number: int
    handle: Any
    about: dict[str, Any] = field(default_factory=dict)
    mirrors: list[FolderMirror] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    lost: bool = False


class Driver:
    """One attempt of a run on Ray."""

    def __init__(self, order: DriverRequest, control: socket.socket) -> None:
        import ray

        self.ray = ray
        self.order, self.run, self.options = order, order.run, order.options
        self.control = control
        self.sending = threading.Lock()
        self.commands: queue.Queue[dict[str, Any]] = queue.Queue()
        self.actors: list[Actor] = []
        self.group: Any = None
        self.head = ""
        self.gone = ""  # why the cluster is, once it is
        self.serving = False
        self.leaving = False
        self.syncing = threading.Lock()
        self.ending = threading.Lock()

    # What is said to the runner

    def tell(self, **what: object) -> None:
        """One line to the runner."""
        with self.sending:
            try:
                self.control.sendall(json.dumps(what).encode() + b"\n")
            except OSError:  # it has ended
                os._exit(EXIT_INTERNAL)

    def say(self, text: str) -> None:
        """A line for people."""
        self.tell(say=text)

    def hear(self) -> None:
        """Takes what the runner says. Its end, or `leave`, before the hosts run ends this process: Ray clears up."""
        with self.control.makefile("rb") as lines:
            for line in lines:
                command = json.loads(line)
                if "leave" in command:
                    break
                self.commands.put(command)
        if not self.serving:
            os._exit(0)
        self.commands.put({"leave": True})

    # From the connection to hosts that run

    def start(self) -> None:
        """Returns when all hosts run. Raises TrainshedError."""
        self.connect()
        threading.Thread(target=self.watch_head, daemon=True).start()
        for left in reversed(range(STARTS)):
            bundles, how = self.judge()
            try:
                self.place(bundles, how)
                self.ship()
                self.launch(bundles)
                return
            except NodeLost as error:
                self.give_back()
                if not left:
                    raise
                self.say(f"{error.message}: placing the job again")

    def connect(self) -> None:
        """Joins the cluster. Raises RayError, soon: Ray itself would wait for a minute and a half."""
        address = self.options.address
        if address != "auto" and not _answers(address):
            raise RayError(
                f"no Ray cluster answers at {address}",
                hint="a cluster's head listens at port 6379, its door for clients (ray://) at 10001; see `ray status` there",
            )
        try:
            self.ray.init(address=address, namespace="trainshed", log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            raise _refusal(error, address) from None
        self.head = address.removeprefix("ray://")
        if not address.startswith("ray://"):
            self.head = self.ray.get_runtime_context().gcs_address

    def nodes(self) -> list[demand.RayNode]:
        """Those that live."""
        return [demand.RayNode(str(one["NodeManagerAddress"]), one["Resources"]) for one in self.ray.nodes() if one["Alive"]]

    def judge(self) -> tuple[list[demand.Bundle], str]:
        """Returns what is asked for, and how it is placed. Raises RayError where the cluster can never have it."""
        nodes = self.nodes()
        bundles = demand.bundles(self.run.job, nodes, self.options)
        how = demand.strategy(bundles, nodes, self.options)
        if not self.options.autoscaling and not demand.fits(bundles, nodes, how):
            several = f", placed as {how}," if len(bundles) > 1 else ""
            raise RayError(
                f"the job asks for {demand.asked(bundles)}{several} which the cluster can never hold: it has "
                f"{demand.had(nodes, bundles)}",
                hint="ask for less (resources.cpus, resources.gpus), start nodes, or say ray.autoscaling: true",
            )
        if how == "SPREAD" and self.options.placement == "auto" and len(bundles) > 1:
            self.say(f"note: hosts share nodes: the cluster has {demand.had(nodes)}")
        return bundles, how

    def place(self, bundles: list[demand.Bundle], how: str) -> None:
        """Waits for the resources, and starts an actor in each part of them. Raises RayError."""
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.group = placement_group(bundles, strategy=how)
        begun = time.monotonic()
        said = False
        while not self.group.wait(timeout_seconds=1):
            waited = time.monotonic() - begun
            if not said and waited >= PATIENCE:
                said = True
                free = {name: count for name, count in self.ray.available_resources().items() if count}
                self.say(
                    f"waiting for {demand.asked(bundles)}: free now, on all nodes: "
                    f"{demand.shown(free) or 'nothing'}; the cluster has {demand.had(self.nodes(), bundles)}"
                )
            if self.options.wait_seconds and waited >= self.options.wait_seconds:
                raise RayError(
                    f"the cluster has not given {demand.asked(bundles)} within {duration(self.options.wait_seconds)}",
                    hint="others use it; see `ray status`, or raise ray.wait_seconds",
                )
            if not self.options.autoscaling and not demand.fits(bundles, self.nodes(), how):
                left = demand.had(self.nodes(), bundles)
                raise RayError(f"the job asks for {demand.asked(bundles)}, and the cluster lost nodes: it has {left}")
        self.ray.cloudpickle.register_pickle_by_value(node)
        kind = self.ray.remote(concurrency_groups=GROUPS, max_restarts=0, max_task_retries=0)(node.HostActor)
        for number, (host, bundle) in enumerate(zip(self.run.hosts, bundles, strict=True)):
            where = PlacementGroupSchedulingStrategy(placement_group=self.group, placement_group_bundle_index=number)
            own = {name: count for name, count in bundle.items() if name not in ("CPU", "GPU", "memory")}
            made = kind.options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                memory=bundle.get("memory"),
                resources=own or None,
                scheduling_strategy=where,
                name=f"{self.run.name}/{host.name}/{os.getpid()}",
            ).remote(self.options.folder, host.name)
            self.actors.append(Actor(number, made))
        for actor in self.actors:
            actor.about = self._get(actor.handle.open.remote(), actor)
        where = ", ".join(
            f"{host.name} on {actor.about['host']}" for host, actor in zip(self.run.hosts, self.actors, strict=True)
        )
        self.say(f"placed: {where}")

    def ship(self) -> None:
        """Brings the job's files to the nodes. Raises TrainshedError."""
        load = shipping.load_of(self.run, self.options, self.order.ready)
        for actor, host in zip(self.actors, self.run.hosts, strict=True):
            small = shipping.relocated(load.small[actor.number], host, actor.about["tree"])
            folders = [name for name in shipping.folders_of(self.run, host) if name not in load.links[actor.number]]
            self._get(actor.handle.make.remote(folders), actor)
            self._get(actor.handle.write.remote(small), actor)
            missing = self._get(actor.handle.link.remote(load.links[actor.number]), actor)
            if missing:
                raise RayError(
                    f"{actor.about['host']} does not see {', '.join(missing)}, which ray.shared says that all nodes do"
                )
        for number, parcel in enumerate(load.parcels):
            self._send(number, parcel)
        shared: dict[str, str] = {}  # who owns which checkpoint
        checkpoints = self.run.job.checkpoint_path
        for actor, host in zip(self.actors, self.run.hosts, strict=True):
            actor.mirrors = [self._mirror(actor, "output", host.output, {}, most=LIVE_OUTPUT)]
            if not self.options.sees(self.run.checkpoints):
                mirror = self._mirror(actor, checkpoints, self.run.checkpoints, shared)
                mirror.given(actor.number == 0)
                actor.mirrors.append(mirror)

    def launch(self, bundles: list[demand.Bundle]) -> None:
        """Starts `train` on all nodes. Raises RayError."""
        run, first = self.run, self.actors[0].about
        meeting = RendezvousPoint(first["address"], first["ports"][0], first["ports"][1], new_token())
        started = []
        for actor, bundle in zip(self.actors, bundles, strict=True):
            tree = actor.about["tree"]
            ready = f"{os.path.dirname(tree)}/{READY}" if self.order.ready else ""
            environment = environment_of(run, bundle, tree, meeting, self.order.secrets, ready)
            started.append(actor.handle.start.remote(self.options.python or run.job.python, environment, NODES_OWN))
        for actor, reference in zip(self.actors, started, strict=True):
            self._get(reference, actor)

    # While hosts run

    def serve(self) -> None:
        """Follows the hosts and does what the runner says, until it has had enough."""
        for actor in self.actors:
            threading.Thread(target=self.follow, args=(actor,), daemon=True).start()
        threading.Thread(target=self.keep_home, daemon=True).start()
        while not self.leaving:
            command = self.commands.get()
            if "word" in command:
                self.pass_on(self.actors[command["host"]], command["word"])
            elif "fetch" in command:
                self.tell(fetched=self.fetch())
            else:
                self.leaving = True
        self.leave()

    def pass_on(self, actor: Actor, word: str) -> None:
        """A word for a host's keeper; after K it is over soon, whatever its node says."""
        actor.handle.tell.remote(word.encode())
        if word == "K":
            threading.Timer(KILL_SECONDS, self.give_up, (actor, "its node does not answer")).start()

    def follow(self, actor: Actor) -> None:
        """Passes on what a host prints, and tells how it ended."""
        silent = 0.0
        while not actor.over.is_set():
            try:
                told = self.ray.get(actor.handle.lines.options(concurrency_group="lines").remote(LINES_SECONDS))
            except self.ray.exceptions.ActorUnavailableError:
                silent = silent or time.monotonic()
                if time.monotonic() - silent < SILENT_SECONDS:
                    time.sleep(1)
                    continue
                return self.give_up(actor, "its node does not answer")
            except Exception as error:
                actor.lost = True
                return self.give_up(actor, self.gone or self.why_lost(actor, error))
            silent = 0.0
            for fd, data in zip(self.order.pipes[actor.number], (told["out"], told["err"]), strict=True):
                _write(fd, data)
            if told["code"] is not None:
                code = told["code"]
                self.ended(actor, exit_status(code), f"killed by {signal.Signals(-code).name}" if code < 0 else "")

    def give_up(self, actor: Actor, note: str) -> None:
        """A host that nobody can ask any more."""
        self.ended(actor, EXIT_SIGNAL_BASE + signal.SIGKILL, note)

    def ended(self, actor: Actor, code: int, note: str) -> None:
        """Tells how a host ended, once."""
        with self.ending:
            if actor.over.is_set():
                return
            actor.over.set()
            self.tell(ended=actor.number, code=code, note=note)
            for fd in self.order.pipes[actor.number]:
                os.close(fd)

    def why_lost(self, actor: Actor, error: Exception) -> str:
        """In words, why an actor is gone."""
        text = " ".join(str(error).split())
        where = actor.about.get("host", "")
        if re.search(r"node[^.]*(died|dead|terminated|unexpectedly)|unavailable", text, re.IGNORECASE):
            return f"its node {where} was lost".replace("  ", " ")
        if "out of memory" in text.lower() or "OOM" in text:
            return f"Ray ended it on {where}: the node's memory was full"
        return f"Ray lost it on {where}: {text[:300]}"

    def watch_head(self) -> None:
        """Says that the cluster is gone when its head has not answered for a while."""
        answered = time.monotonic()
        while time.monotonic() - answered < SILENT_SECONDS:
            time.sleep(BEAT_SECONDS)
            if _answers(self.head):
                answered = time.monotonic()
        self.gone = f"the head of the Ray cluster at {self.head} does not answer any more"
        if not self.serving:
            self.tell(error=self.gone, hint="", code=EXIT_UNAVAILABLE)
            os._exit(EXIT_UNAVAILABLE)
        for actor in self.actors:
            if not actor.over.is_set():
                actor.handle.tell.remote(b"T")  # its node may live
                self.give_up(actor, self.gone)

    # What hosts have written

    def keep_home(self) -> None:
        """Brings home what is new, again and again: what a lost node had by then is not lost with it."""
        said: set[str] = set()
        while not self.leaving:
            time.sleep(LOOK_SECONDS)
            for actor in self.actors:
                with self.syncing:
                    if actor.over.is_set() or self.leaving:
                        continue
                    try:
                        for mirror in actor.mirrors:
                            mirror.look()
                    except (OSError, TrainshedError) as error:
                        words = error.message if isinstance(error, TrainshedError) else f"{error.filename}: {error.strerror}"
                        if words not in said:
                            said.add(words)
                            self.say(f"warning: what {self.name_of(actor)} writes does not come home: {words}")
                    except Exception:  # Ray's: `follow` hears of it, too
                        continue

    def fetch(self) -> list[str]:
        """Brings home all that ended hosts have; a message for each whose results did not all come."""
        lost = []
        brought = Brought()
        with self.syncing:
            for actor in self.actors:
                name = self.name_of(actor)
                if self.gone or actor.lost:
                    self.say(f"warning: {name} was lost with its node: what it wrote last may be missing")
                    continue
                try:
                    self._fetch_one(actor, brought)
                except TrainshedError as error:
                    lost.append(f"the results of {name} are not all here: {error.message}")
                except OSError as error:
                    lost.append(f"the results of {name} are not all here: {error.filename}: {error.strerror}")
                except Exception as error:
                    lost.append(f"the results of {name} are not all here: {self.why_lost(actor, error)}")
        for note in brought.notes:
            self.say(f"warning: {note}")
        return lost

    def _fetch_one(self, actor: Actor, brought: Brought) -> None:
        run, name = self.run, self.name_of(actor)
        with tempfile.TemporaryDirectory(prefix=".copying-", suffix=".tmp", dir=run.folder) as aside:
            model = self._mirror(actor, "model", f"{aside}/model", {})
            for mirror in (*actor.mirrors, model):
                mirror.most = None
                mirror.look(last=True)
                if mirror.clashes:
                    mirror.bring_clashes(f"{aside}/clashes")
                    brought.owners.update({f"{mirror.home}/{path}": owner for path, owner in mirror.owned.items()})
                    merge(f"{aside}/clashes", mirror.home, mirror.home, name, brought)
                for note in words_of(mirror.left_out, name):
                    self.say(f"warning: {note}")
            if os.path.isdir(model.home):
                merge(model.home, run.model, run.model, name, brought)

    def leave(self) -> None:
        """Ends what still runs and gives everything back."""
        waiting = [actor.handle.leave.remote(LEAVE_SECONDS) for actor in self.actors if not actor.lost]
        if waiting and not self.gone:
            self.ray.wait(waiting, num_returns=len(waiting), timeout=LEAVE_SECONDS)
        if not self.gone:
            self.give_back()
            self.ray.shutdown()

    def give_back(self) -> None:
        """Ends the actors and returns what the job holds of the cluster."""
        for actor in self.actors:
            self.ray.kill(actor.handle)
        self.actors = []
        if self.group is not None:
            from ray.util import remove_placement_group

            remove_placement_group(self.group)
            self.group = None

    # Small things

    def name_of(self, actor: Actor) -> str:
        """The host's name."""
        return self.run.hosts[actor.number].name

    def _mirror(self, actor: Actor, folder: str, home: str, owned: dict[str, str], most: int | None = None) -> FolderMirror:
        handle = actor.handle
        listing = handle.listing.options(concurrency_group="files")
        read = handle.read.options(concurrency_group="files")
        return FolderMirror(
            lambda: self.ray.get(listing.remote(folder)),
            lambda wanted: self.ray.get(read.remote([(f"{folder}/{path}", *part) for path, *part in wanted])),
            home,
            owned,
            self.name_of(actor),
            most,
        )

    def _send(self, number: int, parcel: shipping.Parcel) -> None:
        """One parcel to all that get it: each part goes into the object store once, and few are on their way at a time."""
        takers = [self.actors[host] for host in parcel.hosts]
        on_the_way: list[list[Any]] = []
        try:
            for data, last in shipping.packed(parcel):
                part = self.ray.put(data)
                on_the_way.append(
                    [one.handle.receive.options(concurrency_group="files").remote(number, part, last) for one in takers]
                )
                while len(on_the_way) > (0 if last else WINDOW):
                    for actor, reference in zip(takers, on_the_way.pop(0), strict=True):
                        self._get(reference, actor, f"{parcel.what}: ")
        except OSError as error:
            raise TrainshedError(f"{parcel.what} cannot be sent to the nodes: {error.filename}: {error.strerror}") from None

    def _get(self, reference: Any, actor: Actor, what: str = "") -> Any:
        """What a call to an actor answers. Raises RayError."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            words = str(cause) if type(cause).__name__ == node.NodeError.__name__ else f"{type(cause).__name__}: {cause}"
        except self.ray.exceptions.RayError as error:
            why = self.why_lost(actor, error)
            raise NodeLost(f"{self.name_of(actor)} was lost before it started: {why}", hint="see `ray status`") from None
        raise RayError(f"{self.name_of(actor)}, on {actor.about.get('host') or 'its node'}: {what}{words}")


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:  # nobody reads it any more
            return


def _answers(address: str) -> bool:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _refusal(error: Exception, address: str) -> RayError:
    """Why Ray does not let us in, in words."""
    text = " ".join(str(error).split())
    ours = f"Python {platform.python_version()}, Ray {sys.modules['ray'].__version__}"
    if re.search(r"version mismatch|incompatible|versions? (differ|mismatch)", text, re.IGNORECASE):
        found = re.findall(r"(?:Ray|Python)(?: version)?:? ?v?(\d+\.\d+[.\w]*)", text)
        theirs = f" ({', '.join(dict.fromkeys(found))})" if found else ""
        return RayError(
            f"the Ray cluster at {address} has other versions of Ray or Python{theirs} than this machine: {ours}",
            hint="install the cluster's versions here: the same Ray, the same Python up to its second number",
        )
    if isinstance(error, ConnectionError):
        if address == "auto":
            return RayError(
                "no Ray cluster runs on this machine",
                hint="name one with --address HOST:6379 or ray://HOST:10001, or start one with `ray start --head`",
            )
        return RayError(f"the Ray cluster at {address} does not take us in: {text[:300]}")
    return RayError(f"Ray: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def main() -> None:
    """The driver: its order comes on standard input."""
    order: DriverRequest = pickle.load(sys.stdin.buffer)  # from the runner, which started this process
    control = socket.socket(fileno=order.control)
    driver = Driver(order, control)
    threading.Thread(target=driver.hear, daemon=True).start()
    try:
        driver.start()
        driver.serving = True
        driver.tell(started=[actor.about for actor in driver.actors])
        driver.serve()
    except TrainshedError as error:
        driver.tell(error=error.message, hint=error.hint, code=error.exit_code)
    except Exception as error:
        traceback.print_exc()  # to logs/ray.log
        driver.tell(
            error=f"Ray: {type(error).__name__}: {_first_line(error)}", hint="see logs/ray.log", code=EXIT_UNAVAILABLE
        )
    os._exit(0)  # what Ray's own threads still do is not waited for


if __name__ == "__main__":
    main()
