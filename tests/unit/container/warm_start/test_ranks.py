"""Whether ranks may be forked from an interpreter, and why not: what imports leave behind, and in what ranks differ."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainshed.container.supervisor.launch_plan import LaunchPlan, ProcessSpec
from trainshed.container.supervisor.spawn import spawn
from trainshed.container.warm_start.ranks import NotForked, WarmRanks, WarmStart, unfit
from trainshed.machine.processes import become_subreaper

SCRIPT = "import installed\nprint(installed.value)\n"
PACKAGE = "value = 'of the package'\n"


@pytest.fixture
def warm() -> Iterator[WarmStart]:
    become_subreaper()
    made = WarmStart()
    yield made
    made.close()
    become_subreaper(False)


def spec(folder: Path, script: str = SCRIPT, package: str = PACKAGE, **environ: str) -> ProcessSpec:
    """A rank whose script and package are these."""
    code, packages = folder / "code", folder / "site-packages"
    code.mkdir(exist_ok=True)
    packages.mkdir(exist_ok=True)
    (code / "train.py").write_text(script)
    (packages / "installed.py").write_text(package)
    env = {"PATH": os.defpath, "PYTHONPATH": f"{code}:{packages}", "RANK": "0", "PYTHONDONTWRITEBYTECODE": "1", **environ}
    return ProcessSpec(argv=(sys.executable, "train.py", "--epochs", "3"), env=env, cwd=str(code), rank=0)


def begun(warm: WarmStart, first: ProcessSpec) -> WarmStart:
    """The same when it has imported."""
    warm.begin(first)
    while warm.waiting:
        select.select(list(warm.descriptors()), [], [])
        warm.take()
    return warm


def output(started: tuple[int, int, int]) -> tuple[int, str, str]:
    """The exit status of a rank, and what it prints."""
    pid, out, err = started
    texts = []
    for fd in (out, err):
        os.set_blocking(fd, True)
        with os.fdopen(fd, "rb") as file:
            texts.append(file.read().decode())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), texts[0], texts[1]


@pytest.mark.exact
@pytest.mark.parametrize(
    ("package", "environ", "why"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            {},
            "left the thread",
        ),
        ("import socket\nkept = socket.socket()", {}, "socket:"),
        ("import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)", {}, "redirects a standard stream"),
        ("kept = open('/dev/zero')", {}, "left /dev/zero open"),
        ("import mmap\nkept = mmap.mmap(-1, 4096)", {}, "which ranks would share"),
        ("import signal\nsignal.alarm(600)", {}, "set a timer"),
        ("import os\nos.posix_spawn('/bin/sleep', ['sleep', '60'], {})", {}, "started a program"),
        ("import os\nown_pid = os.getpid()", {}, "noted the number of the process in installed.own_pid"),
        ("import os\nclass A:\n  def __init__(self): self.pid = os.getpid()\na = A()", {}, "process in A.pid"),
        ("import random\nrandom.seed(7)", {}, "importing seeds the generator of random"),
        ("import sys\nsys.settrace(lambda *_: None)", {}, "tracer"),
        ("import sys\nsys.setprofile(lambda *_: None)", {}, "profiler"),
        ("import beside", {}, "beside, which is not installed"),
        ("raise SystemExit(3)", {}, "SystemExit: 3"),
        ("import no_such_module", {}, "No module named 'no_such_module'"),
        ("import os\nos._exit(3)", {}, "has ended"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", {}, "has ended"),
        ("print('x' * 40000)", {}, "prints too much"),
        (PACKAGE, {"PYTHONTRACEMALLOC": "1"}, "tracemalloc"),
        (PACKAGE, {"PYTHONPROFILEIMPORTTIME": "1"}, "imports are timed"),
        (PACKAGE, {"LD_PRELOAD": "libm.so.6"}, "preloaded"),
    ],
)
def test_what_imports_leave_behind_keeps_ranks_from_being_forked(
    tmp_path: Path, warm: WarmStart, package: str, environ: dict[str, str], why: str
) -> None:
    first = spec(tmp_path, package=package, **environ)
    (tmp_path / "code/beside.py").touch()

    assert why in begun(warm, first).why


@pytest.mark.exact
@pytest.mark.parametrize(
    "script",
    [
        "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport installed\n",
        "import beside\nimport installed\n",
        "try:\n    import installed\nexcept ImportError:\n    pass\n",
        "import json\n",
        "",
    ],
)
def test_what_comes_after_anything_else_is_not_imported_before_it(tmp_path: Path, warm: WarmStart, script: str) -> None:
    first = spec(tmp_path, script)
    (tmp_path / "code/beside.py").touch()

    assert begun(warm, first).why == "train.py does not begin with imports of installed packages"


@pytest.mark.exact
@pytest.mark.parametrize(
    ("package", "changed", "why"),
    [
        ("import os\nfound = os.environ.get('RANK')", {"RANK": "1"}, "importing reads RANK"),
        ("import os\nfound = os.getenv('RANK')", {"RANK": "1"}, "importing reads RANK"),
        ("import os\nfound = os.environb.get(b'RANK')", {"RANK": "1"}, "importing reads RANK"),
        ("import os\nfound = 'RANK' in os.environ", {"RANK": "1"}, "importing reads RANK"),
        ("import os\nos.environ['RANK'] = '7'", {"RANK": "1"}, "importing reads RANK"),
        ("import os\nfound = dict(os.environ)", {"RANK": "1"}, "importing reads RANK"),
        ("import os\nfound = os.environ.copy()", {"RANK": "1"}, "importing reads RANK"),
        ("import os\nfound = list(os.environ)", {"RANK": "1"}, "the whole environment"),
        ("import subprocess\nsubprocess.run(['true'])", {"RANK": "1"}, "the whole environment"),
        ("import os\nos.system('true')", {"RANK": "1"}, "the whole environment"),
        (PACKAGE, {"OMP_NUM_THREADS": "4"}, "OMP_NUM_THREADS is not what it was"),
    ],
)
def test_a_rank_that_differs_in_what_imports_have_read_is_not_forked(
    tmp_path: Path, warm: WarmStart, package: str, changed: dict[str, str], why: str
) -> None:
    first = spec(tmp_path, package=package, OMP_NUM_THREADS="1")
    begun(warm, first)

    assert warm.why == ""
    with pytest.raises(NotForked, match=why):
        warm.spawn(first.replace(env={**first.env, **changed}))


@pytest.mark.exact
def test_a_package_that_draws_at_import_draws_anew_in_each_rank_but_keeps_what_it_has_seeded(
    tmp_path: Path, warm: WarmStart
) -> None:
    package = """\
import random
drawn = [random.random() for _ in range(2000)]
own, fixed = random.Random(), random.Random()
fixed.seed(7)
"""
    script = "import installed\nimport random\nprint(random.random(), installed.own.random(), installed.fixed.random())\n"
    first = spec(tmp_path, script, package)
    assert begun(warm, first).ready, warm.why
    ranks = [output(warm.spawn(first))[1].split() for _ in range(2)]

    assert [one == other for one, other in zip(*ranks, strict=True)] == [False, False, True]


@pytest.mark.exact
def test_a_rank_is_forked_again_and_again_until_something_that_was_imported_changes(tmp_path: Path, warm: WarmStart) -> None:
    first = spec(tmp_path)
    begun(warm, first)

    for rank in ("0", "1", "0"):
        assert output(warm.spawn(first.replace(env={**first.env, "RANK": rank}))) == (0, "of the package\n", "")
    (tmp_path / "site-packages/installed.py").write_text("value = 'of a newer package'\n")
    with pytest.raises(NotForked, match=r"installed.py has changed"):
        warm.spawn(first)


@pytest.mark.exact
@pytest.mark.parametrize(
    "end",
    [
        *(
            "pass",
            "raise SystemExit(3)",
            "raise SystemExit('told')",
            "1 / 0",
            "import os; os._exit(4)",
            "sys.stdout.close()",
        ),
        *("import os; os.abort()", "import os; os.kill(os.getpid(), 15)", "raise KeyboardInterrupt", "def f(:"),
        *("import ctypes; ctypes.string_at(0)", "import threading; threading.Thread(target=print, args=('late',)).start()"),
    ],
)
def test_a_forked_rank_ends_as_one_that_was_started_plainly(tmp_path: Path, warm: WarmStart, end: str) -> None:
    package = "import atexit, sys\natexit.register(lambda: print('bye', file=sys.stderr))\n"
    first = spec(tmp_path, f"import installed\nimport sys\nprint('begun', flush=True)\n{end}\n", package)
    if end != "def f(:":  # the interpreter cannot read that either, and leaves it to the rank
        begun(warm, first)
        assert warm.why == ""
        assert output(warm.spawn(first)) == output(spawn(first))
    else:
        assert "SyntaxError" in begun(warm, first).why


@pytest.mark.safety
def test_the_interpreter_ends_with_what_asked_for_it(tmp_path: Path, warm: WarmStart) -> None:
    assert begun(warm, spec(tmp_path)).ready
    pid = warm.pid
    warm.dismiss()

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.safety
def test_a_rank_is_started_plainly_when_the_interpreter_is_gone(tmp_path: Path, warm: WarmStart) -> None:
    first = spec(tmp_path)
    assert begun(warm, first).ready
    os.kill(warm.pid, 9)
    os.waitpid(warm.pid, 0)

    with pytest.raises(NotForked, match="does not answer"):
        warm.spawn(first)


def test_an_interpreter_that_cannot_be_started_is_done_without(tmp_path: Path, warm: WarmStart) -> None:
    first = spec(tmp_path)
    warm.begin(first.replace(argv=("/no/such/python", *first.argv[1:])))

    assert "cannot be started" in warm.why


def test_a_command_line_that_is_too_long_to_be_passed_on_is_done_without(tmp_path: Path, warm: WarmStart) -> None:
    first = spec(tmp_path)
    warm.begin(first.replace(argv=(*first.argv, *(["x" * 100_000] * 5))))

    assert "cannot be started: [Errno 90] Message too long" in warm.why


def test_a_python_that_does_not_run_the_hook_runs_nothing_of_the_script(tmp_path: Path, warm: WarmStart) -> None:
    first = spec(tmp_path, "open('ran', 'w')\n")
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python").chmod(0o755)

    assert "has ended" in begun(warm, first.replace(argv=(str(tmp_path / "python"), *first.argv[1:]))).why
    assert not (tmp_path / "code/ran").exists()


@pytest.mark.parametrize(
    ("changes", "again", "why"),
    [
        ({}, True, ""),
        ({}, False, "one rank"),
        ({"argv": (sys.executable, "-m", "package")}, True, "not a Python file"),
        ({"argv": (sys.executable, "/opt/train.py")}, True, "not a Python file"),
        ({"argv": ("/bin/sh", "train.sh")}, True, "not a Python file"),
        ({"helper": "mpirun"}, True, "another program"),
        ({"cpus": (0,)}, True, "bound to CPUs"),
        ({"env": {"PYTHONPATH": "src"}}, True, "PYTHONPATH"),
    ],
)
def test_which_plans_are_fit(tmp_path: Path, changes: dict[str, object], again: bool, why: str) -> None:
    found = unfit(LaunchPlan(processes=(spec(tmp_path).replace(**changes),)), again)

    assert found == "" if not why else why in found


def test_ranks_that_are_different_programs_are_not_fit(tmp_path: Path) -> None:
    first = spec(tmp_path)

    assert unfit(LaunchPlan(processes=(first, first.replace(cwd="/"))), again=False) == "the ranks are different programs"


class Run:
    """As much of a run as starts ranks."""

    stopping = False

    def start_process(self, spec: ProcessSpec, start: Callable[[ProcessSpec], tuple[int, int, int]]) -> object:
        assert output(start(spec)) == (0, "by itself\n", "")
        return self


def test_ranks_are_started_plainly_before_a_job_without_any_would_count_as_hung(tmp_path: Path, warm: WarmStart) -> None:
    told: list[tuple[int, int, str, float]] = []
    package = f"import os, time\nwhile os.path.exists({str(tmp_path / 'slow')!r}): time.sleep(0.01)\nvalue = 'by itself'\n"
    (tmp_path / "slow").touch()
    first = spec(tmp_path, package=package)
    watcher = WarmRanks(warm, (first,), False, 0.2, lambda *how: told.append(how))

    class Quick(Run):
        """Its plain start does not wait for what the interpreter waits for."""

        def start_process(self, *given: Any) -> Any:
            (tmp_path / "slow").unlink()
            return super().start_process(*given)

    run: Any = Quick()
    while watcher.busy():
        select.select(list(watcher.descriptors()), [], [], watcher.pause())
        watcher.turn(run)

    ((forked, plain, why, _),) = told
    assert (forked, plain, why) == (0, 1, "importing took more than 0.1 s")


def test_a_watcher_without_ranks_waits_for_nothing(warm: WarmStart) -> None:
    assert not WarmRanks(warm, (), False, 0.0, lambda *_: None).busy()
