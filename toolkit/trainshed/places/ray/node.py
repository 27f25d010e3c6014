"""The actor that is a host of the job on a node of Ray.

Ray brings this module to the node by value, since trainshed need not be there: it imports Python's own library and ray.
What else it needs of trainshed comes with the job's files, below `toolkit/` of its folder.
"""

from __future__ import annotations

import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from typing import Any

TOOLKIT = "toolkit"  # below the actor's folder; the host's tree is `ml` beside it
BUFFER = 1 << 20  # bytes of lines in one answer


class NodeError(Exception):
    """Something of this node is in the way; the message is for people."""


class HostActor:
    """One host of a job; its methods are called one at a time, but those of other concurrency groups.

    Args:
        folder: where the node keeps the job while it runs; "" for the node's own folder for temporary files.
        name: the host's, algo-1.
    """

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        self.above = folder
        self.folder = self.tree = ""
        self.incoming: dict[int, Incoming] = {}
        self.pipes: dict[int, str] = {}
        self.life = self.janitor = -1
        self.status = -1

    def open(self) -> dict[str, Any]:
        """Makes the folder; what the driver has to know of the node. Raises Trouble."""
        import ray

        try:
            if self.above:
                os.makedirs(self.above, exist_ok=True)
            self.folder = os.path.realpath(tempfile.mkdtemp(prefix=f"trainshed-{self.name}-", dir=self.above or None))
            self.tree = f"{self.folder}/ml"
            os.mkdir(self.tree)
            self._watch_folder()
        except OSError as error:
            raise NodeError(f"{self.above or tempfile.gettempdir()}: {error.strerror}") from None
        return {
            "tree": self.tree,
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "ports": free_ports(2),
            "address": str(ray.util.get_node_ip_address()),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        }

    def make(self, names: list[str]) -> None:
        """Makes folders, by their path below the actor's folder."""
        for name in names:
            os.makedirs(f"{self.folder}/{name}", exist_ok=True)

    def link(self, links: dict[str, str]) -> list[str]:
        """Has paths below the actor's folder lead to those of a file system that all nodes see; those that are not there."""
        missing = [target for target in links.values() if not os.path.exists(target)]
        for name, target in links.items():
            os.makedirs(os.path.dirname(f"{self.folder}/{name}"), exist_ok=True)
            os.symlink(target, f"{self.folder}/{name}")
        return missing

    def write(self, files: dict[str, bytes]) -> None:
        """Small files, for this user alone: hyperparameters may be secret."""
        for name, data in files.items():
            path = f"{self.folder}/{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)

    def receive(self, stream: int, data: bytes, last: bool) -> None:
        """A part of a tar, which is unpacked as it comes. Raises Trouble."""
        if stream not in self.incoming:
            self.incoming[stream] = Incoming(self.folder)
        self.incoming[stream].take(data, last)

    def start(self, python: str, environment: dict[str, str], without: tuple[str, ...]) -> None:
        """Starts `train`.

        Args:
            python: the interpreter, "" for that of Ray's workers.
            environment: beside that of the node. without: beginnings of the node's variables that `train` is not to see.

        Raises:
            Trouble: this node's Python does not do.
        """
        python = python or sys.executable
        self._check(python)
        own = {name: value for name, value in os.environ.items() if not name.startswith(without)}
        toolkit = f"{self.folder}/{TOOLKIT}/trainshed"
        train = [python, "-I", f"{toolkit}/machine/isolation.py", "trainshed.container.main"]
        keeper = [python, "-I", f"{toolkit}/machine/isolation.py", "trainshed.places.ray.keeper"]
        # Ray's workers let everybody else go first (nice 15); a training goes as the node's Ray does, where it may.
        nice = os.getpriority(os.PRIO_PROCESS, os.getppid())
        life, self.life = os.pipe()
        self.status, status = os.pipe()
        out, out_there = os.pipe()
        error, error_there = os.pipe()
        self.pipes = {out: "out", error: "err"}
        try:
            started = subprocess.Popen(
                [*keeper, str(life), str(status), str(nice), self.folder, *train],
                env={**own, **environment},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out_there,
                stderr=error_there,
                pass_fds=(life, status),
                start_new_session=True,
            ).wait()  # it forks: Ray kills a worker's children with the worker, and this one is to outlive it
        except OSError as problem:
            raise NodeError(f"{python}: {problem.strerror}") from None
        finally:
            for fd in (life, status, out_there, error_there):
                os.close(fd)
        if started == 0:
            os.write(self.janitor, b"keep\n")
        else:
            raise NodeError(f"{python} cannot run train: {os.read(error, BUFFER).decode(errors='replace').strip()[-500:]}")

    def lines(self, seconds: float) -> dict[str, Any]:
        """Returns what `train` has printed since the last call: `out`, `err`; `code`, its return code, when all lines have
        been passed on. Waits for something to tell, up to so many seconds."""
        told: dict[str, Any] = {"out": b"", "err": b"", "code": None}
        ready = select.select([*self.pipes, self.status], [], [], seconds)[0]
        if self.status in ready:
            answer = os.read(self.status, 64)
            told["code"] = int(answer or -signal.SIGKILL)  # the keeper itself was killed
            os.close(self.status)
        while ready := [fd for fd in ready if fd in self.pipes]:
            for fd in ready:
                data = os.read(fd, BUFFER)
                told[self.pipes[fd]] += data
                if not data:
                    os.close(fd)
                    del self.pipes[fd]
            # Processes that `train` has left may print for ever.
            over = told["code"] is not None and len(told["out"]) + len(told["err"]) < BUFFER
            ready = select.select([*self.pipes], [], [], 0)[0] if over else []
        return told

    def tell(self, word: bytes) -> None:
        """A word for the keeper; see there."""
        try:
            os.write(self.life, word)
        except OSError:  # there is none, or no more
            pass

    def listing(self, name: str) -> dict[str, tuple[str, int, int, int, str]]:
        """All files and links below a folder of the host's tree: (kind, size, time, mode, where a link leads) by their path.
        Kinds: file, link, folder (only empty ones)."""
        top = f"{self.tree}/{name}"
        found = {}
        for folder, folders, files in os.walk(top):
            links = [one for one in folders if os.path.islink(f"{folder}/{one}")]
            for one in [*files, *links]:
                path = f"{folder}/{one}"
                try:
                    state = os.lstat(path)
                    link = os.readlink(path) if os.path.islink(path) else ""
                except OSError:  # removed meanwhile
                    continue
                kind = "link" if link else "file"
                if link or os.path.isfile(path):
                    found[os.path.relpath(path, top)] = (kind, state.st_size, state.st_mtime_ns, state.st_mode & 0o777, link)
            if not folders and not files and folder != top:
                found[os.path.relpath(folder, top)] = ("folder", 0, 0, 0o755, "")
        return found

    def read(self, wanted: list[tuple[str, int, int]]) -> list[bytes | None]:
        """Parts of files: (path below the tree, first byte, bytes); None for a file that cannot be read."""
        parts: list[bytes | None] = []
        for name, first, count in wanted:
            try:
                with open(f"{self.tree}/{name}", "rb") as file:
                    file.seek(first)
                    parts.append(file.read(count))
            except OSError:
                parts.append(None)
        return parts

    def leave(self, seconds: float) -> None:
        """Removes what this host has here; waits so long for a `train` that still ends."""
        for fd in (self.life, self.janitor):
            if fd >= 0:
                os.close(fd)
        end = time.monotonic() + seconds
        while os.path.exists(self.folder) and time.monotonic() < end:
            time.sleep(0.05)

    def _watch_folder(self) -> None:
        """Has a shell remove the folder where this actor ends before there is a keeper, who does it from then on."""
        theirs, self.janitor = os.pipe()
        # A shell gives what it starts in the background no standard input, but for one that is named.
        wait = 'exec 3<&0; { read -r word <&3; [ "$word" = keep ] || rm -rf "$1"; } >/dev/null 2>&1 &'
        subprocess.Popen(["sh", "-c", wait, "sh", self.folder], stdin=theirs, start_new_session=True).wait()
        os.close(theirs)

    def _check(self, python: str) -> None:
        code = "import sys; assert sys.version_info >= (3, 10), sys.version.split()[0]\nimport psutil, yaml"
        try:
            done = subprocess.run([python, "-I", "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except OSError as error:
            raise NodeError(f"{python}: {error.strerror}") from None
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or [f"it exited with {done.returncode}"])[-1]
            raise NodeError(f"{python} cannot run train: {said}; it needs Python 3.10 or newer with psutil and pyyaml")


class Incoming:
    """A tar on its way from the driver into a folder. Raises Trouble where it cannot be unpacked."""

    def __init__(self, folder: str) -> None:
        self.problem = ""
        there, self.fd = os.pipe()
        self.thread = threading.Thread(target=self._unpack, args=(there, folder))
        self.thread.start()

    def take(self, data: bytes, last: bool) -> None:
        """The next part of it."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.fd, view) :]
        except BrokenPipeError:  # the other side says why
            last = True
        if last:
            os.close(self.fd)
            self.thread.join()
            if self.problem:
                raise NodeError(self.problem)

    def _unpack(self, fd: int, folder: str) -> None:
        try:
            with open(fd, "rb") as file, tarfile.open(fileobj=file, mode="r|") as tar:
                for member in tar:  # from the driver, which made it of files and folders alone
                    tar.extract(member, folder, set_attrs=not member.isdir(), **_EXTRACT)
                shutil.copyfileobj(file, _Nowhere())
        except (OSError, tarfile.TarError) as error:
            name = getattr(error, "filename", None) or folder
            self.problem = f"{name}: {getattr(error, 'strerror', None) or error}"


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)


# Of PEP 706; Python before 3.12 has it in its later versions only, and takes the tar as it is otherwise.
_EXTRACT: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}


def free_ports(count: int) -> list[int]:
    """Ports of this node that are free now. From below the range that the kernel takes for outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = 10_000 + int.from_bytes(os.urandom(4), "big") % 22_000
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
