"""A script that reports all that it can see of how its process was started, as JSON; and its imports' package.

Rows of `UNIQUE` differ from process to process, and all others are the same however a rank was started.
"""

from __future__ import annotations

# What is installed: does at import what packages do.
PACKAGE = """\
import argparse, asyncio, atexit, concurrent.futures, ctypes, decimal, logging, multiprocessing, os, random, signal
import socket, ssl, subprocess, sys, tempfile, threading, uuid, warnings
level = os.environ.get("INSTALLED_LEVEL", "none")
os.environ["INSTALLED_WAS_HERE"] = "1"
generator, fixed = random.Random(), random.Random(7)
found = subprocess.run(["true"], env={}).returncode
signal.signal(signal.SIGUSR2, lambda *_: print("got SIGUSR2", flush=True))
atexit.register(print, "bye of installed")
print("installed is here")
warnings.warn("installed is old", DeprecationWarning, stacklevel=2)
"""

SCRIPT = """\
\"\"\"A script.\"\"\"
from __future__ import annotations
import json, os, sys
import installed
from installed import fixed
import asyncio, atexit, ctypes, faulthandler, gc, locale, logging, multiprocessing, random, resource, signal, subprocess
import threading, time, tracemalloc, warnings

libc = ctypes.CDLL(None)
main = sys.modules["__main__"]


def text(path):
    with open(path, "rb") as file:
        return file.read().decode(errors="replace")


def got(number):
    value = ctypes.c_int(-1)
    libc.prctl(number, ctypes.byref(value), 0, 0, 0)
    return value.value


def open_files():
    found = {}
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            link = os.readlink(f"/proc/self/fd/{fd}")
            flags = next(line for line in text(f"/proc/self/fdinfo/{fd}").splitlines() if line.startswith("flags"))
        except OSError:
            continue
        found[fd] = (link.partition("[")[0], flags, os.get_inheritable(fd))
    return found


def status():
    kept = ("Name", "Uid", "Gid", "Groups", "Umask", "Threads", "ShdPnd", "SigPnd", "SigBlk", "SigIgn", "SigCgt", "CapEff",
            "CapBnd", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed", "VmLck", "TracerPid")
    return [line for line in text("/proc/self/status").splitlines() if line.split(":")[0] in kept]


def child(queue):
    queue.put((multiprocessing.current_process().name, os.environ["RANK"]))


def of_children(method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    name, rank = queue.get()
    process.join()
    return name, rank == os.environ["RANK"], process.exitcode


def report():
    stat = text("/proc/self/stat").rpartition(")")[2].split()
    pid, parent = os.getpid(), os.getppid()
    began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(stat[19]) / os.sysconf("SC_CLK_TCK")
    started = logging._startTime if isinstance(logging._startTime, float) else logging._startTime / 1e9
    return {
        "argv": (sys.argv, sys.orig_argv, text("/proc/self/cmdline")),
        "names": (text("/proc/self/comm"), os.readlink("/proc/self/exe"), sys.executable),
        "__main__": {key: repr(value).partition(" at ")[0] for key, value in vars(main).items() if key.startswith("__")},
        "modules": sorted(sys.modules),
        "sys": (sys.path, sys.flags, sys.warnoptions, sys._xoptions, sys.getrecursionlimit(), sys.getswitchinterval(),
                sorted(sys.path_importer_cache), [repr(one).partition(" at ")[0] for one in sys.meta_path]),
        "variables": sorted(os.environ.items()),
        "order of variables": list(os.environ),
        "variables of programs": subprocess.check_output(["env"], text=True).splitlines(),
        "variables in /proc": text("/proc/self/environ").split(chr(0)),
        "class of os.environ": repr(type(os.environ)),
        "folder": (os.getcwd(), os.readlink("/proc/self/cwd"), os.readlink("/proc/self/root")),
        "descriptors": open_files(),
        "status": status(),
        "signal handlers": [repr(signal.getsignal(one)).partition(" at ")[0] for one in sorted(signal.valid_signals())],
        "session and group": (os.getsid(0) == pid, os.getpgid(0) == pid, os.getpgrp() == pid, stat[4], stat[35]),
        "parent": (os.getpgid(parent) != pid, "container.main" in text(f"/proc/{parent}/cmdline")),
        "dies with its parent": got(2),
        "subreaper": got(37),
        "dumpable": libc.prctl(3, 0, 0, 0, 0),
        "limits": [resource.getrlimit(one) for one in range(16)],
        "scheduling": (os.nice(0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)), libc.prctl(30, 0, 0, 0, 0)),
        "cgroup": (text("/proc/self/cgroup"), text("/proc/self/oom_score_adj")),
        "namespaces": [os.readlink(f"/proc/self/ns/{one}") for one in sorted(os.listdir("/proc/self/ns"))],
        "timers": [signal.getitimer(one) for one in range(3)],
        "threads": (threading.active_count(), threading.main_thread() is threading.current_thread(),
                    threading.get_native_id() == pid, threading.main_thread().native_id == pid),
        "collector": (gc.get_threshold(), gc.isenabled(), gc.get_freeze_count(), len(gc.callbacks)),
        "hash seed": (sys.flags.hash_randomization, hash("x"), {"a", "b", "c", "d", "e"}.__repr__()),
        "fixed generator": fixed.random(),
        "profilers": (sys.getprofile(), sys.gettrace(), tracemalloc.is_tracing()),
        "exceptions": (repr(sys.excepthook), repr(sys.exc_info())),
        "faulthandler": faulthandler.is_enabled(),
        "streams": [(s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), s.fileno())
                    for s in (sys.stdin, sys.stdout, sys.stderr)],
        "stdin": (os.readlink("/proc/self/fd/0"), sys.stdin.read()),
        "locale": (locale.setlocale(locale.LC_ALL, None), time.tzname),
        "warning filters": [repr(one) for one in warnings.filters],
        "multiprocessing": (multiprocessing.get_start_method(), multiprocessing.current_process().name,
                            multiprocessing.parent_process() is None),
        "children by fork": of_children("fork"),
        "children by spawn": of_children("spawn"),
        "children by forkserver": of_children("forkserver"),
        "event loop": asyncio.run(asyncio.sleep(0, "slept")),
        "times of logging": started >= began - 0.1,
        "own number": (os.fork.__name__, pid == int(os.readlink("/proc/self")), stat[1] == str(parent)),
        "modules noted": installed.found,
    }


if __name__ == "__main__":
    import installed as again
    assert again is installed
    data = report()
    data["unique"] = {
        "pid": os.getpid(),
        "random": random.random(),
        "generator of a package": installed.generator.random(),
        "key": multiprocessing.current_process().authkey.hex(),
        "system": os.urandom(8).hex(),
    }
    atexit.register(print, "bye of the script")
    with open(f"{os.environ['SM_MODEL_DIR']}/{os.environ['RANK']}.json", "w") as file:
        json.dump(data, file, default=repr)
    print("rank", os.environ["RANK"], os.environ["INSTALLED_WAS_HERE"])
    os.kill(os.getpid(), signal.SIGUSR2)
"""
