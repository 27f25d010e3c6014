"""An interpreter from which ranks are forked.

`train` starts it just as it would start a rank, with a socket more. `sitecustomize` (`hangs/hook`), the last of what Python
does before it runs a program, runs this file: it imports what the script imports first, and waits for requests. A rank is
forked here and returns from here: Python then runs the script in it, as it would have done without all of this, with its own
`__main__`, arguments and exit. So what differs from a plain start is what this file does, and what `proof` looks for.

Messages, each one datagram: ours is `ready` with the variables that imports have read, or `plain` with a reason; the
request is `fork` with the variables in which the rank differs from this process, and three descriptors: its stdout and
stderr, and a socket, on which the rank sends its number and waits for one byte. Fields end with a NUL.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_STACKS = "/memfd:trainshed-stacks (deleted)"  # of `hangs/hook`
_ADOPTION = 30.0  # seconds until a rank is a child of `train`
_PDEATHSIG, _SET_MM, _MM_MAP = 1, 35, 14  # <linux/prctl.h>
_SIGKILL = 9
_PRIVATE, _READ_WRITE = 0x22, 3  # MAP_PRIVATE | MAP_ANONYMOUS, PROT_READ | PROT_WRITE
_NAME = "train-warm"
_OLD_TORCHS = 67280421310721  # c10::detail::default_rng_seed_val, with which torch once began in every process


def _borrow(name: str) -> Any:
    """A module of Python's that the script shall find as unloaded as it was."""
    before = set(sys.modules)
    module = __import__(name)
    for new in sys.modules.keys() - before:
        del sys.modules[new]
    return module


class Template:
    """See above. Watches from construction; `serve` does the rest.

    Args:
        socket: the descriptor that `train` has passed.
        variable: the one that named it, which no rank has.
        hook: the folder on PYTHONPATH that no rank has.
        load: loads another file of this folder, without a place among the modules.
    """

    def __init__(self, socket: int, variable: str, hook: str, load: Callable[[str], Any]) -> None:
        self._fd = socket
        self._parent = os.getppid()
        del os.environ[variable]
        folders = os.environ["PYTHONPATH"]
        os.environ["PYTHONPATH"] = folders.removeprefix(f"{hook}{os.pathsep}")
        with open("/proc/self/environ", "rb") as file:
            given = file.read().replace(os.fsencode(folders), os.environb[b"PYTHONPATH"]).split(b"\0")
        self._given = [one for one in given if one and not one.startswith(os.fsencode(f"{variable}="))]
        self._started = list(os.environb)
        with open("/proc/self/comm") as file:
            self._comm = file.read().rstrip("\n")
        self._imports = load("imports.py")
        self._proof = load("proof.py")
        self._opened, self._streams = self._proof.open_files(inherited=True), _streams()
        self._watch = self._imports.ImportWatch()

    def serve(self) -> None:
        """Returns in each rank, and nowhere else."""
        try:
            why = self._prepare()
            socket, self._ctypes = _borrow("_socket"), _borrow("ctypes")
            self._libc = self._ctypes.CDLL(None)
            self._socket = socket.socket(fileno=self._fd)
            self._space = socket.CMSG_SPACE(3 * 4)
            if why := why or self._unfit():
                self._leave(why)
            self._socket.send(_fields("ready", *sorted(self._watch.reads)))
            _rename(_NAME)
        except BaseException as error:
            self._leave(f"importing failed: {type(error).__name__}: {error}")
        try:
            self._become(*self._wait())
        except BaseException:
            os._exit(1)

    def _leave(self, why: str) -> NoReturn:
        """Tells `train` why it has to start ranks plainly, and ends."""
        try:
            os.write(self._fd, _fields("plain", why[:1000]))
        finally:
            os._exit(0)

    # --- the interpreter itself ---

    def _prepare(self) -> str:
        """Imports; returns why that was in vain, "" where it was not."""
        script = sys.argv[0]
        try:
            if why := self._proof.tool_at_work():
                return str(why)
            if self._imports.find_spec("usercustomize") is not None:
                return "there is a usercustomize, which Python runs before the script imports anything"
            count = self._imports.run_leading_imports(script)
        finally:
            self._watch.end()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if not count:
            return f"{os.path.basename(script)} does not begin with imports of installed packages"
        self._files = self._proof.ImportedFiles((os.path.abspath(script),), self._imports.is_library_path)
        return ""

    def _unfit(self) -> str:
        """Why no rank may be forked from here, "" where they may."""
        if _programs_ended() and not self._watch.programs:  # they were started past `subprocess`
            self._watch.reads.add(self._imports.EVERYTHING)
        if seeded := self._watch.seeded():
            return f"importing seeds the generator of {seeded[0]}"
        if self._streams != _streams():
            return "importing redirects a standard stream"
        opened = (*self._opened, os.readlink(f"/proc/self/fd/{self._fd}"), _STACKS)
        why: str = self._proof.tool_at_work() or self._proof.not_inherited(opened, self._is_users, _borrow("gc"))
        if not why and not self._show_environment():
            return "this kernel does not let a process say what its environment is"
        return why

    def _is_users(self, path: str) -> bool:
        return path.startswith("/") and not self._imports.is_library_path(path)

    def _wait(self) -> tuple[list[int], list[bytes]]:
        """Serves requests; returns in each rank, with its descriptors and variables."""
        while True:
            data, ancillary, _, _ = self._socket.recvmsg(1 << 20, self._space)
            if not data:
                os._exit(0)
            fds = [int.from_bytes(ancillary[0][2][at : at + 4], sys.byteorder) for at in (0, 4, 8)]
            if changed := self._files.changed():
                self._leave(f"{changed} has changed")
            between = os.fork()  # it ends at once: then `train` adopts the rank
            if between == 0:
                if os.fork() == 0:
                    return fds, data.split(b"\0")[1:-1]
                os._exit(0)
            os.waitpid(between, 0)
            for fd in fds:
                os.close(fd)

    # --- a rank ---

    def _become(self, fds: list[int], changes: list[bytes]) -> None:
        """Makes this process what a plain start would have made."""
        out, err, control = fds
        self._socket.close()
        self._follow_parent()
        for fd, stream in ((out, 1), (err, 2)):
            os.dup2(fd, stream)
            os.close(fd)
        _renew_stacks()
        self._set_environment(changes)
        _renew_state(self._watch.unseeded)
        _rename(self._comm)
        os.write(control, str(os.getpid()).encode())
        if not os.read(control, 1):  # `train` is gone, or has waited for too long
            os._exit(1)
        os.close(control)

    def _follow_parent(self) -> None:
        """Waits to be a child of `train`, leads a session, and ends with `train`."""
        end = time.monotonic() + _ADOPTION
        while os.getppid() != self._parent:
            if time.monotonic() > end:
                os._exit(1)
            time.sleep(0.0005)
        os.setsid()
        self._libc.prctl(_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != self._parent:  # it died before the line above took effect
            os._exit(1)

    def _set_environment(self, changes: list[bytes]) -> None:
        """Changes variables; their order and /proc/PID/environ are as if the process had been started with them."""
        changed = {name: value for name, _, value in (change.partition(b"=") for change in changes)}
        now = {**os.environb, **changed}
        for name in list(os.environb):
            del os.environb[name]
        for name in dict.fromkeys((*self._started, *now)):
            if name in now:
                os.environb[name] = now[name]
        self._given = [
            name + b"=" + changed.get(name, value) for name, _, value in (one.partition(b"=") for one in self._given)
        ]
        self._show_environment()

    def _show_environment(self) -> bool:
        """Has /proc/PID/environ show the rank's (PR_SET_MM_MAP of prctl(2)); whether the kernel allows it."""
        block = b"".join(one + b"\0" for one in self._given)
        libc, number = self._libc, self._ctypes.c_uint64
        libc.mmap.restype = libc.sbrk.restype = self._ctypes.c_void_p
        start = libc.mmap(None, self._ctypes.c_size_t(len(block) or 1), _READ_WRITE, _PRIVATE, -1, self._ctypes.c_long(0))
        self._ctypes.memmove(start, block, len(block))
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        code, data, heap, stack, arguments = (26, 27), (45, 46), (47,), (28,), (48, 49)
        before, after = ([int(fields[one - 3]) for one in some] for some in ((*code, *data, *heap), (*stack, *arguments)))
        # struct prctl_mm_map: these, no auxiliary vector, the same executable. What the heap ends at may not move meanwhile.
        made = (number * 13)(*before, 0, *after, start, start + len(block), 0, 0xFFFFFFFF << 32)
        size = self._ctypes.sizeof(made)
        made[5] = libc.sbrk(0)
        return bool(libc.prctl(_SET_MM, _MM_MAP, self._ctypes.byref(made), self._ctypes.c_long(size), 0) == 0)


def _fields(*texts: str) -> bytes:
    return b"".join(os.fsencode(text) + b"\0" for text in texts)


def _streams() -> list[str]:
    return [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)]


def _programs_ended() -> bool:
    """Whether this process has reaped one that it had started."""
    resource = _borrow("resource")
    return bool(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


def _rename(name: str) -> None:
    with open("/proc/self/comm", "w") as file:
        file.write(name)


def _renew_stacks() -> None:
    """A file of this process alone for what `hangs/hook` reports."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            ours = os.readlink(f"/proc/self/fd/{number}") == _STACKS
        except OSError:  # the one that listed them
            continue
        if ours:
            new = os.memfd_create(_STACKS[len("/memfd:") : -len(" (deleted)")])
            os.dup2(new, number, inheritable=False)
            os.close(new)


def _renew_state(unseeded: list[Any]) -> None:
    """What each process draws for itself at import: seeds, a key, the time, the number of its thread."""
    for generator in unseeded:
        generator.seed()
    loaded: Callable[[str], Any] = sys.modules.get
    if numpy := loaded("numpy.random"):
        numpy.seed()
    torch = loaded("torch")
    if torch and torch.initial_seed() != _OLD_TORCHS:
        torch.default_generator.seed()
    if process := loaded("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)
    if threading := loaded("threading"):
        threading.main_thread()._set_native_id()
    if hooks := loaded("trainshed.observe.stepping.hooks"):
        hooks.renew()
    if logging := loaded("logging"):
        whole = isinstance(logging._startTime, int)  # since Python 3.13
        logging._startTime = time.time_ns() if whole else time.time()
