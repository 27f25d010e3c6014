"""Who is below us, who is a zombie, who has a handler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.paths import TOOLKIT
from trainshed.machine import processes

# A parent with a sleeping child and a dead one that it never reaps; it says when all is in place.
FAMILY = """\
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
dead = os.fork()
if dead == 0:
    os._exit(0)
os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
print(child.pid, dead, flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int, int]]:
    """PIDs of a parent, of its living child and of its zombie."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child, dead = map(int, parent.stdout.readline().split())
        yield parent.pid, child, dead
        parent.communicate()


def test_descendants_are_the_living_ones_parents_first(family: tuple[int, int, int]) -> None:
    found = processes.descendants()
    parent, child, dead = family
    assert found.index(parent) < found.index(child)
    assert dead not in found and processes._stat_field(dead, 0) == "Z"


def test_a_kernel_without_children_files_gives_the_same_answer(
    family: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child, dead = family
    assert sorted(processes.children(parent)) == sorted((child, dead))
    monkeypatch.setattr(processes, "children", processes._children_by_scan)
    assert processes.descendants(parent) == [child]
    found = processes.descendants()
    assert found.index(parent) < found.index(child) and dead not in found


INHERITED = """\
import os, subprocess, time
from trainshed.machine import processes
processes.become_subreaper()
parent = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; exec cat"], stdin=-1, stdout=-1, text=True)
child = int(parent.stdout.readline())
look = processes._is_zombie

def late(pid):  # the parent ends when our children have been read, and its own have not
    if pid == parent.pid and not look(pid):
        os.kill(pid, 9)
        while not look(pid):
            time.sleep(0.01)
    return look(pid)

processes._is_zombie = late
print(processes.descendants() == [child])
os.kill(child, 9)
"""


@pytest.mark.safety
def test_what_a_child_leaves_that_ends_while_we_look_is_found() -> None:
    environment = {**os.environ, "PYTHONPATH": str(TOOLKIT)}
    done = subprocess.run([sys.executable, "-c", INHERITED], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


def test_a_process_that_is_gone_has_no_children_and_no_handlers() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert processes.children(process.pid) == []
    assert processes._is_zombie(process.pid)
    assert not processes.catches(process.pid, signal.SIGTERM)


def test_handlers_of_other_processes_are_seen() -> None:
    code = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: 0); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.catches(process.pid, signal.SIGUSR1)
        assert not processes.catches(process.pid, signal.SIGUSR2)
        process.communicate()


def test_a_name_with_brackets_and_spaces_does_not_confuse_the_parser() -> None:
    rename = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) Z 1 (b', 0, 0, 0)"
    code = f"{rename}; import sys; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not processes._is_zombie(process.pid)
        assert processes._stat_field(process.pid, 1) == str(os.getpid())
        process.communicate()
