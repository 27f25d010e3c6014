"""A node of the job's Ray cluster: runs `ray start --block`, and leaves nothing of it when it ends.

A program of its own, in the user's Python, which need not have trainshed:

    ray_node.py WORDS FOLDER (--head PORT | --address HOST:PORT) OPTIONS...

It prints WORDS once the node has joined. Of what `ray start` prints only the reason of its end is told. All processes of
Ray are ended with this one, also where it takes them long.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time

STARTED = "Ray runtime started"  # of `ray start`, in all its versions
PATIENCE = 2.0  # seconds that Ray has to end its processes itself; a head alone takes half a minute
KEPT = 1000  # lines of `ray start`
ATTEMPTS = 5
LONGEST_FOLDER = 44  # bytes: sun_path takes 107, and Ray adds /session_<time>_<pid>/sockets/plasma_store.<n>
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>


def main(words: str, folder: str, side: str, address: str, *options: str) -> int:
    """The exit status: 0 after SIGTERM, else 1, since a node ends for no other reason of its own."""
    if importlib.util.find_spec("ray") is None:
        return _fail(f"{sys.executable} has no Ray: add ray[train] to requirements.txt, or take an image that has it")
    if side == "--head" and not _is_free(int(address)):
        return _fail(f"port {address} is taken on this host: give the job another with trainshed_master_port, on all hosts")
    os.makedirs(folder, exist_ok=True)
    link = _short(folder)
    if not link:
        return _fail("no folder for Ray's sockets: neither /tmp nor /var/tmp nor /dev/shm can be written")
    try:
        return _run(words, link, side, address, options)
    finally:
        os.unlink(link)


def _run(words: str, folder: str, side: str, address: str, options: tuple[str, ...]) -> int:
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    for _ in range(ATTEMPTS):
        node = _Node(_command(folder, side, address, options), words)
        node.wait(stopped)
        _kill_all()
        if stopped.is_set():
            return 0
        if node.joined or not node.was_slow():
            break
        print("Ray gave up on its own start, for which it has 30 s: trying again", flush=True)
    return _fail(node.reason())


def _command(folder: str, side: str, address: str, options: tuple[str, ...]) -> list[str]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--temp-dir", folder, *options]
    # Ray's own choices are the same for all nodes of a machine, and its workers' ports (10002 to 19999) may hold the job's.
    command += ["--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", str(_any_port())]
    if side == "--head":
        command += ["--head", "--port", address, "--include-dashboard", "false", "--disable-usage-stats"]
        return [*command, "--ray-client-server-port", str(_any_port())]
    host, _, port = address.rpartition(":")
    return [*command, "--address", f"{socket.gethostbyname(host)}:{port}"]


class _Node:
    """`ray start` and what it prints. joined: whether it has said that the node is there."""

    def __init__(self, command: list[str], words: str) -> None:
        self.joined = False
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._words = words
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self, stopped: threading.Event) -> None:
        """Until it ends; asks it to where this process is asked to."""
        while self.process.poll() is None and not stopped.wait(0.1):
            pass
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                return
        self._reader.join(PATIENCE)

    def was_slow(self) -> bool:
        """Whether it has given up on its processes, which had not answered in the time that it gives them."""
        return any("timed out during startup" in line for line in self.lines)

    def reason(self) -> str:
        """Why it has ended: what it says of processes that are gone, else the last line."""
        said = [line for line in self.lines if line and not line.startswith("Remaining processes")]
        gone = next((number for number, line in enumerate(said) if "exited unexpectedly" in line), len(said) - 1)
        return f"`ray start` ended with {self.process.returncode}: {' '.join(said[gone : gone + 3])}"

    def _read(self) -> None:
        """Passes on nothing but its end: the rest is about how to add nodes by hand."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.split(" -- ", 1)[-1].strip())
            del self.lines[:-KEPT]
            if STARTED in line:
                self.joined = True
                self.lines.clear()
                print(self._words, flush=True)


def _short(folder: str) -> str:
    """A link to the folder, whose own path is too long for sockets; "" if none can be made."""
    for place in (os.environ.get("TMPDIR", "/tmp"), "/tmp", "/var/tmp", "/dev/shm"):
        link = f"{place}/ray-{os.urandom(4).hex()}"
        if len(link.encode()) <= LONGEST_FOLDER:
            try:
                os.symlink(folder, link)
            except OSError:
                continue
            return link
    return ""


def _kill_all() -> None:
    """Kills all that is below this process; orphans come to it, so that none escapes."""
    while True:
        try:
            with open(f"/proc/self/task/{threading.main_thread().native_id}/children") as file:
                children = [int(pid) for pid in file.read().split()]
        except OSError:
            return
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _fail(why: str) -> int:
    print(why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
