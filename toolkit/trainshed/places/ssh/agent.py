"""The agent that runs on the machines of a job: this one file, sent there as it is, run by whatever Python 3 they have.

    agent.py probe                  what the machine has, as JSON
    agent.py ports                  two free ports
    agent.py listen                 a port of all addresses that answers with a word, until standard input ends
    agent.py reach PORT WORD ADDRESS...   which of the addresses lead to a listener with that word
    agent.py claim HOST RUN         a new folder for a host of the run; what an earlier start of this run left goes
    agent.py has PATH               whether there is one
    agent.py name PATH NEW          gives a folder its name, unless there is one of that name
    agent.py store FOLDER           makes a folder for data of many runs
    agent.py locked FILE COMMAND... runs a command while nobody else uses what the file stands for
    agent.py link FOLDER NEW        hard links in NEW for the names on standard input (with NUL between) in FOLDER
    agent.py unpack FOLDER          a tar on standard input goes there
    agent.py pack FOLDER            what is in it, as a tar on standard output
    agent.py start HOST             starts what standard input says (JSON), which outlives this connection
    agent.py follow HOST POSITION   the log from that byte on, until `train` has ended; how, on standard error
    agent.py signal HOST NAME       SIGTERM, SIGINT or SIGKILL for `train`; SIGKILL for all that it left, too
    agent.py remove HOST            ends what is left, and removes the folder

It knows nothing of trainshed. HOST is the folder of one host of one run:

    ml/          its /opt/ml
    log          what `train` prints
    keeper.json  who keeps it: process, start time, boot; what ends it
    status.json  how it ended
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LOOK = 0.1  # seconds between two looks at the log
LATE = 5.0  # seconds that `start` may need until the keeper's file is there
ENDED = "trainshed-agent: ended "  # begins the line about the end
HERE = "trainshed-agent: here"  # the line that says that the connection is there
LOST = 137  # the exit status of what was killed with its keeper


def probe() -> None:
    """Prints what the machine has."""
    folder = os.path.dirname(os.path.abspath(__file__))
    disk = os.statvfs(folder)
    known = {}
    for name in ("psutil", "yaml", "trainshed"):
        # In an interpreter of its own: a broken package must not take this one along.
        code = f"import {name} as m; print(getattr(m, '__version__', ''), m.__file__)"
        done = subprocess.run([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        said = done.stdout.decode("utf-8", "replace").strip()
        known[name] = (
            said.split(" ", 1) if done.returncode == 0 and " " in said else ([""] * 2 if done.returncode == 0 else None)
        )
    print(json.dumps({
        "python": list(sys.version_info[:3]), "executable": sys.executable, "modules": known, "folder": folder,
        "free": disk.f_bavail * disk.f_frsize, "now": time.time(), "addresses": addresses(), "boot": boot(),
        "hostname": socket.gethostname(), "uid": os.getuid(), "gid": os.getgid(), "user": os.environ.get("USER", ""),
        "rsync": bool(shutil.which("rsync")),
        "engines": [name for name in ("docker", "podman") if shutil.which(name)],
    }))  # fmt: skip


def addresses() -> list[list[str]]:
    """[interface, address] of everything but loopback and link-local addresses."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue
            found.append([name, socket.inet_ntoa(answer[20:24])])
    try:
        with open("/proc/net/if_inet6") as file:
            for line in file:
                digits, _, _, scope, _, name = line.split()
                if scope == "00":  # global
                    found.append([name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))])
    except (OSError, ValueError):
        pass
    return [pair for pair in found if not pair[1].startswith("127.")]


def ports() -> None:
    """Prints two free ports."""
    held = [socket.socket() for _ in range(2)]
    for one in held:
        one.bind(("", 0))
    print(json.dumps([one.getsockname()[1] for one in held]))


def listen() -> None:
    """Answers everybody with a word of its own."""
    word = os.urandom(8).hex()
    try:
        door = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError, AttributeError):
        door = socket.socket()
        door.bind(("", 0))
        door.listen(64)
    print(json.dumps([door.getsockname()[1], word]), flush=True)
    end = time.monotonic() + 120
    while time.monotonic() < end:
        ready, _, _ = select.select([door.fileno(), 0], [], [], 5)
        if 0 in ready and not os.read(0, 1024):
            return
        if door.fileno() in ready:
            guest, _ = door.accept()
            with guest:
                try:
                    guest.sendall(word.encode())
                except OSError:
                    pass


def reach(port: str, word: str, *candidates: str) -> None:
    """Prints what came of each address: "" where it leads there, else why not."""
    told = []
    for address in candidates:
        try:
            with socket.create_connection((address, int(port)), timeout=3) as one:
                one.settimeout(3)
                answer = one.recv(64)
            told.append("" if answer == word.encode() else "somebody else answers")
        except TimeoutError:
            told.append("no answer in 3 s")
        except OSError as error:
            told.append(os.strerror(error.errno) if error.errno else str(error))
    print(json.dumps(told))


def claim(host: str, run: str) -> None:
    """Makes the folder of a host, which only a start of the same run may have made before."""
    os.umask(0o077)
    if os.path.isdir(host):
        with open(host + "/run") as file:
            if file.read() != run:
                raise SystemExit(f"{host} belongs to another run of this name: remove it, or rename the job")
        if alive(host):
            raise SystemExit(f"{host}: the run is still running there")
        remove(host)
    os.makedirs(host)
    with open(host + "/run", "w") as file:
        file.write(run)


def has(path: str) -> None:
    """Prints yes or no."""
    print("yes" if os.path.exists(path) else "no")


def name(path: str, new: str) -> None:
    """Renames a folder; where another one has got that name meanwhile, which is as good, it goes."""
    try:
        os.rename(path, new)
    except OSError:
        if not os.path.isdir(new):
            raise
        shutil.rmtree(path, ignore_errors=True)


def store(folder: str) -> None:
    """Makes a folder, which may be there."""
    os.makedirs(folder, exist_ok=True)


def locked(path: str, *command: str) -> None:
    """Becomes the command, with the lock; waits for who has it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.set_inheritable(file, True)
    os.execvp(command[0], command)


def link(folder: str, new: str) -> None:
    """Lays out names of a folder once more; other disks get copies."""
    os.makedirs(new, exist_ok=True)
    names = [os.fsdecode(name) for name in sys.stdin.buffer.read().split(b"\0") if name]
    with open(folder + ".lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for name in names:
            source, target = folder + "/" + name, new + "/" + name
            if os.path.isdir(source):
                os.makedirs(target, exist_ok=True)
                continue
            try:
                os.link(source, target)
            except FileNotFoundError:  # it was gone before it could be sent
                continue
            except OSError:
                shutil.copy2(source, target)


def unpack(folder: str) -> None:
    """Lays out a tar, which comes from the runner."""
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for member in archive:
            if hasattr(tarfile, "fully_trusted_filter"):
                archive.extract(member, folder, filter="fully_trusted")
            else:
                archive.extract(member, folder)
    print("whole", flush=True)


def pack(folder: str) -> None:
    """Writes a tar of what is in a folder; nothing of a missing one."""
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        if os.path.isdir(folder):
            for name in sorted(os.listdir(folder)):
                archive.add(folder + "/" + name, arcname=name)
    sys.stdout.buffer.flush()


def start(host: str) -> None:
    """Starts a keeper in a session of its own, which starts `train`; returns when it has."""
    order = json.load(sys.stdin)
    if alive(host):
        raise SystemExit("it runs already")
    for name in ("status.json", "keeper.json"):
        if os.path.exists(host + "/" + name):
            os.unlink(host + "/" + name)
    ready, done = os.pipe()
    if os.fork():
        os.close(done)
        with os.fdopen(ready) as answer:
            said = answer.read()
        if said:
            raise SystemExit(said)
        return
    os.setsid()  # no signal of this connection's end
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.close(ready)
    log = os.open(host + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    for number, to in ((0, null), (1, log), (2, log)):
        os.dup2(to, number)
    keep(host, order, done)


def keep(host: str, order: dict[str, Any], done: int) -> None:
    """Starts `train`, says so, waits for its end, notes it. Never returns."""
    code = 1
    note = ""
    try:
        process = subprocess.Popen(
            order["command"], env=dict(os.environ, **order["environment"]), cwd="/", stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )  # fmt: skip
        known = {"keeper": identity(os.getpid()), "train": identity(process.pid), "marks": order["marks"],
                 "remove": order.get("remove") or []}  # fmt: skip
        write(host + "/keeper.json", known)
        os.close(done)
        code = process.wait()
        if code < 0:
            note = "killed by " + signal.Signals(-code).name
            code = 128 - code
    except BaseException as error:
        note = "cannot start {}: {}".format(order["command"][0], error)
        try:
            os.write(done, note.encode())
        except OSError:
            pass
    try:
        write(host + "/status.json", {"code": code, "note": note})
    finally:
        os._exit(0)


def follow(host: str, first: str) -> None:
    """Passes the log on, until the end."""
    sys.stderr.write(HERE + "\n")
    sys.stderr.flush()
    position = int(first)
    since = time.monotonic()
    while True:
        over = ended(host, since)
        while True:  # what was printed before the end is all there now
            try:
                with open(host + "/log", "rb") as log:
                    log.seek(position)
                    data = log.read(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            position += len(data)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        if over is not None:
            sys.stderr.write(ENDED + json.dumps(over) + "\n")
            return
        ready, _, _ = select.select([0], [], [], LOOK)
        if ready and not os.read(0, 1024):  # nobody is there any more
            return


def ended(host: str, since: float) -> dict[str, Any] | None:
    """How `train` ended; None while it runs."""
    running = alive(host)
    told = read(host + "/status.json")
    if told or running:
        return told
    if not os.path.isdir(host):
        return {"code": LOST, "note": f"its folder {host} is gone"}
    known = read(host + "/keeper.json")
    if known is None:
        late = time.monotonic() - since > LATE
        return {"code": LOST, "note": "it was never started: the runner was killed before"} if late else None
    if known["keeper"]["boot"] != boot():
        return {"code": LOST, "note": "the machine was started again meanwhile"}
    if is_process(known["train"]):  # without its keeper: nobody will know its exit status
        return None
    return {"code": LOST, "note": "what kept it there was killed; its exit status is not known"}


def alive(host: str) -> bool:
    """Returns whether the keeper lives."""
    known = read(host + "/keeper.json")
    return known is not None and is_process(known["keeper"])


def send(host: str, name: str) -> None:
    """Sends a signal to `train`, if it is still that process."""
    known = read(host + "/keeper.json")
    if known is None:
        return
    if is_process(known["train"]):
        try:
            os.kill(known["train"]["pid"], getattr(signal, name))
        except ProcessLookupError:
            pass
    if name == "SIGKILL":
        end_left(known)


def end_left(known: dict[str, Any]) -> None:
    """Kills the run's processes of this machine that have left its process tree, until none is left."""
    if known["remove"]:
        subprocess.run(known["remove"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    marks = {mark.encode() for mark in known["marks"]}  # variables that together are this host's: `train` hands them on
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = False
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in (os.getpid(), known["keeper"]["pid"]):
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if not marks.issubset(file.read().split(b"\0")):
                        continue
                os.kill(int(name), signal.SIGKILL)
                found = True
            except OSError:
                continue
        if not found:
            return
        time.sleep(0.05)


def remove(host: str) -> None:
    """Ends what is left of a host, removes its folder, and the run's when it is empty."""
    known = read(host + "/keeper.json")
    if known is not None:
        send(host, "SIGKILL")
        end = time.monotonic() + 5
        while alive(host) and time.monotonic() < end:
            time.sleep(0.05)
    if not os.path.isfile(host + "/run"):
        raise SystemExit(f"{host} was not made by trainshed: it stays")
    problems = []
    shutil.rmtree(host, onerror=lambda _, path, why: problems.append(f"{path}: {why[1]}"))
    try:
        os.rmdir(os.path.dirname(host))
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EACCES, errno.EPERM):
            problems.append(str(error))
    if problems:
        raise SystemExit(problems[0])


def identity(pid: int) -> dict[str, Any]:
    """The identity of a process: another one may get its number later."""
    return {"pid": pid, "started": started(pid), "boot": boot()}


def is_process(known: dict[str, Any]) -> bool:
    """Returns whether a process is still the one that it was, and no zombie."""
    if known["boot"] != boot() or started(known["pid"]) != known["started"]:
        return False
    return state(known["pid"]) not in ("Z", "X", "")


def started(pid: int) -> str:
    """When a process started, in the kernel's ticks (proc(5), /proc/pid/stat, field 22); "" where there is none."""
    return (stat(pid) or [""] * 20)[19]


def state(pid: int) -> str:
    """Its state, a letter (field 3)."""
    return (stat(pid) or [""])[0]


def stat(pid: int) -> list[str]:
    """The fields after the name, which may hold anything; [] where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().decode("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def boot() -> str:
    """Which start of the machine this is."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def read(path: str) -> dict[str, Any] | None:
    """A JSON file; None while it is not there."""
    try:
        with open(path) as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return None


def write(path: str, value: object) -> None:
    """A JSON file that is there whole or not at all."""
    with open(path + ".tmp", "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)


def main() -> None:
    """Does what the command line says."""
    known: dict[str, Callable[..., None]] = {
        "probe": probe, "ports": ports, "listen": listen, "reach": reach, "claim": claim, "has": has, "name": name,
        "store": store, "locked": locked, "link": link,
        "unpack": unpack, "pack": pack, "start": start, "follow": follow, "signal": send, "remove": remove,
    }  # fmt: skip
    try:
        known[sys.argv[1]](*sys.argv[2:])
    except BrokenPipeError:
        os._exit(1)
    except OSError as error:
        raise SystemExit(f"{error.filename or sys.argv[1]}: {error.strerror or error}") from None


if __name__ == "__main__":
    main()
