"""Starts one process with a pipe for each of its two output streams.

Plain fork and exec instead of `subprocess`: `train` has one thread, has to call prctl in the child, and starts in half
the time without that module.
"""

from __future__ import annotations

import os

from trainshed.base.errors import EXIT_NOT_FOUND
from trainshed.machine.processes import die_with_parent
from trainshed.machine.signals import signal

from .launch_plan import ProcessSpec, StartError

PIPE_BYTES = 1 << 20  # fewer wake-ups for chatty scripts; the kernel may grant less
_FILES_EACH = 3  # two pipes and a log
_OTHER_FILES = 64
_F_SETPIPE_SZ = 1031  # <fcntl.h>; `fcntl` of Python 3.10 on Linux has it, but not everywhere


def make_room(processes: int) -> None:
    """Raises this process's own limit of open files where so many processes need more and the hard limit allows it."""
    needed = _OTHER_FILES + _FILES_EACH * processes
    if 0 < os.sysconf("SC_OPEN_MAX") < needed:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def spawn(spec: ProcessSpec) -> tuple[int, int, int]:
    """Starts the process in a new session; returns (PID, stdout pipe, stderr pipe), the pipes non-blocking.

    Raises:
        StartError: the working directory or the program does not exist or cannot be used.
    """
    executable = find_executable(spec.argv[0], spec.env.get("PATH", os.defpath), spec.cwd)
    if executable is None:
        raise StartError(spec, "exec", FileNotFoundError(2, "No such file or directory", spec.argv[0]))
    opened: list[int] = []
    parent = os.getpid()
    try:
        for make in (open_pipe, open_pipe, os.pipe):
            opened += make()
        pid = os.fork()
    except OSError as error:
        for fd in opened:
            os.close(fd)
        raise StartError(spec, "fork", error) from error
    out_read, out_write, err_read, err_write, status_read, status_write = opened
    if pid == 0:
        _become(spec, executable, out_write, err_write, status_write, parent)
    os.close(out_write)
    os.close(err_write)
    os.close(status_write)
    with os.fdopen(status_read, "rb") as status:
        message = status.read()
    if message:
        os.waitpid(pid, 0)
        os.close(out_read)
        os.close(err_read)
        stage, number = message.decode().split()
        raise StartError(spec, stage, OSError(int(number), os.strerror(int(number)), spec.argv[0]))
    return pid, out_read, err_read


def open_pipe() -> tuple[int, int]:
    """A pipe for the output of a process: the end to read, which does not block, and the end to write."""
    import fcntl

    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        fcntl.fcntl(read, _F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:  # the user's share of pipe memory is used up
        pass
    return read, write


def _become(spec: ProcessSpec, executable: str, out: int, err: int, status: int, parent: int) -> None:
    """In the child: turns into the program, or writes to `status` why it cannot. Never returns."""
    stage = "exec"
    try:
        os.setsid()
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above took effect
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (*signal.valid_signals(),):
            if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        if "SLURM_JOB_ID" in spec.env:
            # Slurm's warning of the time limit is for `train`, but some clusters send it to every process of a step, and
            # it would kill those without a handler.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if spec.cpus:
            _bind(spec.cpus)
        stage = "cwd"
        os.chdir(spec.cwd)
        stage = "exec"
        os.execve(executable, spec.argv, spec.env)
    except OSError as error:
        os.write(status, f"{stage} {error.errno or 0}".encode())
    except ValueError:  # a NUL or an unusable name in arguments or environment, which is refused earlier
        os.write(status, f"{stage} 22".encode())
    finally:
        os._exit(EXIT_NOT_FOUND)


def _bind(cpus: tuple[int, ...]) -> None:
    """Binds this process; runs unbound if the CPUs were taken away meanwhile."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        pass


def find_executable(name: str, path: str, cwd: str) -> str | None:
    """The file that `name` runs: itself if it has a slash (relative to `cwd`), else the first on `path`; None if absent."""
    if "/" in name:
        return os.path.join(cwd, name)
    for folder in path.split(":"):
        candidate = os.path.join(cwd, folder or ".", name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None
